package hub

import "google.golang.org/protobuf/encoding/protowire"

// Tags of the fields that are written by hand: Records.batches, and RecordBatch.partition, next and end (records come ready).
const (
	tagBatches   = 1<<3 | byte(protowire.BytesType)
	tagPartition = 1<<3 | byte(protowire.VarintType)
	tagNext      = 3<<3 | byte(protowire.VarintType)
	tagEnd       = 4<<3 | byte(protowire.VarintType)
)

// Carried says that a part travels within a tailrace.v1.Records, with records or to move a position; the others have messages of their own.
func (p *Part) Carried() bool { return p.Kind == Records || p.Kind == Advance }

// PieceBytes is the size of a part's ready records.
func (p *Part) PieceBytes() int {
	if p.Kind != Records {
		return 0
	}
	return p.bytes(p.Lo, p.Hi)
}

// AppendBatches appends the leading parts that are Carried as an encoded tailrace.v1.Records, and returns the other parts. The pieces are
// copied once; nothing is decoded or encoded again.
func AppendBatches(dst []byte, parts []Part) (_ []byte, rest []Part) {
	for len(parts) > 0 && parts[0].Carried() {
		var r run
		r, parts = takeRun(parts)
		dst = append(dst, tagBatches)
		dst = protowire.AppendVarint(dst, uint64(r.size()))
		dst = appendVarintField(dst, tagPartition, int64(r.partition))
		for i := range r.parts {
			if p := &r.parts[i]; p.Kind == Records {
				dst = append(dst, p.Piece(p.Lo, p.Hi)...)
			}
		}
		dst = appendVarintField(dst, tagNext, r.next)
		dst = appendVarintField(dst, tagEnd, r.end)
	}
	return dst, parts
}

// run is one RecordBatch to be: parts of one partition that follow each other.
type run struct {
	parts     []Part
	partition int32
	next, end int64
	pieces    int // bytes of the parts' ready records
}

// takeRun cuts the longest run from the front of parts, which begins with one that is carried.
func takeRun(parts []Part) (r run, rest []Part) {
	r = run{partition: parts[0].Partition, end: -1}
	n := 0
	for ; n < len(parts); n++ {
		p := &parts[n]
		if !p.Carried() || p.Partition != r.partition {
			break
		}
		r.next = p.Next
		r.end = max(r.end, p.End)
		r.pieces += p.PieceBytes()
	}
	r.parts = parts[:n]
	return r, parts[n:]
}

func (r *run) size() int {
	return sizeVarintField(int64(r.partition)) + r.pieces + sizeVarintField(r.next) + sizeVarintField(r.end)
}

// appendVarintField leaves out zero, as proto3 does for fields without presence.
func appendVarintField(dst []byte, tag byte, value int64) []byte {
	if value == 0 {
		return dst
	}
	return protowire.AppendVarint(append(dst, tag), uint64(value))
}

func sizeVarintField(value int64) int {
	if value == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(uint64(value))
}
