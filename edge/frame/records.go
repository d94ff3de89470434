package frame

import "tailrace.dev/tailrace/services/hub"

// Run is the number of leading parts that go into one records frame. 0: the first part is for AppendControl.
func Run(parts []hub.Part) int {
	for i := range parts {
		if k := parts[i].Kind; k != hub.Records && k != hub.Advance {
			return i
		}
	}
	return len(parts)
}

// AppendRecordsPrefix appends what differs between subscribers of the same records: {"op":"records","id":"a","records":[
func AppendRecordsPrefix(dst []byte, id string) []byte {
	return append(appendString(append(dst, `{"op":"records","id":`...), id), `,"records":[`...)
}

// Tells says whether a records frame of these parts would tell anything: a record, or a position that moved. Where not, no frame is due.
func Tells(parts []hub.Part) bool {
	for i := range parts {
		if p := &parts[i]; p.Lo < p.Hi || p.Next != p.From {
			return true
		}
	}
	return false
}

// AppendRecordsBody appends the rest of the frame, the same for all subscribers at the same place with the same as: the records, then the
// positions that moved without a record: …],"positions":{…}}. parts are a Run; the JSON of a record is made at most once for each as.
func AppendRecordsBody(dst []byte, parts []hub.Part, as As) []byte {
	panic("in the making")
}
