package frame

import (
	"bytes"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"

	"tailrace.dev/tailrace/services/hub"
)

// Run is the number of leading parts that go into one records frame. 0: the first part is for AppendControl.
func Run(parts []hub.Part) int {
	for i := range parts {
		if k := parts[i].Kind; k != hub.Records && k != hub.Advance {
			return i
		}
	}
	return len(parts)
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

// AppendRecordsPrefix appends what differs between subscribers of the same records: {"op":"records","id":"a","records":[
func AppendRecordsPrefix(dst []byte, id string) []byte {
	return append(appendString(append(dst, `{"op":"records","id":`...), id), `,"records":[`...)
}

// AppendRecordsBody appends the rest of the frame, the same for all subscribers at the same place with the same as: the records, then the
// positions that moved without a record: …],"positions":{…}}. parts are a Run; the JSON of a record is made at most once for each as.
func AppendRecordsBody(dst []byte, parts []hub.Part, as As) []byte {
	dst = append(appendRecords(dst, parts, as), ']')
	if ps := moved(parts); len(ps) > 0 {
		dst = appendPositions(append(dst, `,"positions":`...), ps)
	}
	return append(dst, '}')
}

// AppendRecordsArray appends the records alone: [{…},{…}]. parts are a Run. Without a record it appends nothing.
func AppendRecordsArray(dst []byte, parts []hub.Part, as As) []byte {
	from := len(dst)
	if dst = appendRecords(append(dst, '['), parts, as); len(dst) == from+1 {
		return dst[:from]
	}
	return append(dst, ']')
}

// appendRecords appends records, with commas between them.
func appendRecords(dst []byte, parts []hub.Part, as As) []byte {
	enc := encoder(as)
	from := len(dst)
	for i := range parts {
		p := &parts[i]
		if p.Lo >= p.Hi {
			continue
		}
		f := p.Form(hub.FormID(as), enc)
		lo := int32(0)
		if p.Lo > 0 {
			lo = f.Ends[p.Lo-1]
		}
		dst = append(dst, f.Body[lo:f.Ends[p.Hi-1]]...)
	}
	if len(dst) > from {
		dst = dst[:len(dst)-1] // every piece ends with a comma
	}
	return dst
}

// moved returns the positions after parts that the records in them do not tell: a record tells offset + 1.
func moved(parts []hub.Part) []hub.Position {
	silent := func(p *hub.Part) bool {
		if p.Lo < p.Hi {
			return p.Next == p.Meta[p.Hi-1].Offset+1
		}
		return p.Next == p.From
	}
	if !slices.ContainsFunc(parts, func(p hub.Part) bool { return !silent(&p) }) {
		return nil
	}
	var ps []hub.Position
	at := make(map[int32]int, 8)
	for i := range parts {
		p := &parts[i]
		j, known := at[p.Partition]
		switch {
		case !silent(p):
			pos := hub.Position{Partition: p.Partition, Offset: p.Next, Epoch: -1}
			if p.Lo < p.Hi {
				pos.Epoch = p.Meta[p.Hi-1].Epoch
			}
			if !known {
				at[p.Partition] = len(ps)
				ps = append(ps, pos)
			} else {
				ps[j] = pos
			}
		case known && p.Lo < p.Hi: // a later record tells it
			ps[j].Offset = -1
		}
	}
	return slices.DeleteFunc(ps, func(p hub.Position) bool { return p.Offset < 0 })
}

// encoder returns the function that renders an entry.
func encoder(as As) func(*hub.Entry) *hub.Form {
	switch as {
	case AsJSON:
		return func(e *hub.Entry) *hub.Form { return encode(e, AsJSON) }
	case AsText:
		return func(e *hub.Entry) *hub.Form { return encode(e, AsText) }
	case AsBase64:
		return func(e *hub.Entry) *hub.Form { return encode(e, AsBase64) }
	default:
		return func(e *hub.Entry) *hub.Form { return encode(e, AsAuto) }
	}
}

// encode renders the records of an entry: each an object followed by a comma, so that any run of them is ready to be sent.
func encode(e *hub.Entry, as As) *hub.Form {
	const more = 96 // names and punctuation of a record, beyond what the encoded record takes
	f := &hub.Form{
		Body: make([]byte, 0, len(e.Body)+more*len(e.Meta)),
		Ends: make([]int32, len(e.Meta)),
	}
	var (
		r, first record
		head     []byte
	)
	for i := range e.Meta {
		r.read(message(e.Piece(i, i+1)))
		if head == nil || r.partition != first.partition || !bytes.Equal(r.topic, first.topic) {
			first = r
			head = r.appendHead(nil)
		}
		f.Body = append(r.appendTail(append(f.Body, head...), as), ',')
		f.Ends[i] = int32(len(f.Body))
	}
	if cap(f.Body)-len(f.Body) > len(f.Body)/4 {
		f.Body = bytes.Clone(f.Body) // it stays as long as the entry does
	}
	return f
}

// message returns the record in a piece: what comes after tag and length.
func message(piece []byte) []byte {
	_, _, tagLen := protowire.ConsumeTag(piece)
	if tagLen < 0 {
		return nil
	}
	b, n := protowire.ConsumeBytes(piece[tagLen:])
	if n < 0 {
		return nil
	}
	return b
}
