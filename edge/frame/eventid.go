package frame

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"unicode/utf8"

	"tailrace.dev/tailrace/services/hub"
)

// MaxEventPartitions is the most partitions whose positions an event's id may hold: a client sends the id back in a request header, and proxies
// take about 8 KiB of one.
const MaxEventPartitions = 200

// maxEventID is the longest event id in characters: beyond what MaxEventPartitions take.
const maxEventID = 8 << 10

// What the first byte of an event id says.
const (
	eventIDDone      = 0 // there is nothing to resume
	eventIDPositions = 1 // topic id and positions follow
)

// EventID is where a stream of events stands, so that a client resumes there by the id of the last event it got.
type EventID struct {
	Done      bool // the stream is over: it is not to be opened again
	TopicID   string
	Positions []hub.Position // in the order of their partitions
}

// AppendEventID appends the id in base64url. Its bytes: the version; length and bytes of the topic id; the number of positions; for each
// the distance to the partition before (less one), to its offset and to its leader epoch, as varints.
func AppendEventID(dst []byte, id *EventID) []byte {
	if id.Done {
		return base64.RawURLEncoding.AppendEncode(dst, []byte{eventIDDone})
	}
	b := make([]byte, 0, 32+len(id.TopicID)+8*len(id.Positions))
	b = binary.AppendUvarint(append(b, eventIDPositions), uint64(len(id.TopicID)))
	b = binary.AppendUvarint(append(b, id.TopicID...), uint64(len(id.Positions)))
	last := hub.Position{Partition: -1, Epoch: -1}
	for _, p := range id.Positions {
		b = binary.AppendUvarint(b, uint64(p.Partition-last.Partition-1))
		b = binary.AppendVarint(b, p.Offset-last.Offset)
		b = binary.AppendVarint(b, int64(p.Epoch)-int64(last.Epoch))
		last = p
	}
	return base64.RawURLEncoding.AppendEncode(dst, b)
}

var errEventID = errors.New("is not an id of this edge's events")

// ParseEventID reads the id of an event. Its memory is bounded by the length of s.
func ParseEventID(s string) (*EventID, error) {
	if len(s) > maxEventID {
		return nil, errEventID
	}
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) == 0 {
		return nil, errEventID
	}
	switch {
	case b[0] == eventIDDone && len(b) == 1:
		return &EventID{Done: true}, nil
	case b[0] != eventIDPositions:
		return nil, errEventID
	}
	r := idReader{b: b[1:]}
	id := &EventID{TopicID: r.text()}
	n := r.count()
	last := hub.Position{Partition: -1, Epoch: -1}
	for range n {
		last.Partition = int32(r.within(int64(last.Partition)+1, r.unsigned(), math.MaxInt32))
		last.Offset = r.within(last.Offset, r.signed(), maxNumber)
		last.Epoch = int32(r.within(int64(last.Epoch)+1, r.signed(), math.MaxInt32+1) - 1)
		id.Positions = append(id.Positions, last)
	}
	if r.bad || len(r.b) > 0 {
		return nil, errEventID
	}
	id.Positions = slices.Clip(id.Positions)
	return id, nil
}

// idReader takes the parts of an id. After the first that is malformed all are zero.
type idReader struct {
	b   []byte
	bad bool
}

func (r *idReader) fail() {
	r.b, r.bad = nil, true
}

func (r *idReader) unsigned() int64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > math.MaxInt64/2 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return int64(v)
}

func (r *idReader) signed() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 || v > math.MaxInt64/2 || v < -math.MaxInt64/2 {
		r.fail()
		return 0
	}
	r.b = r.b[n:]
	return v
}

// within returns base + distance, which must lie from 0 to most.
func (r *idReader) within(base, distance, most int64) int64 {
	if v := base + distance; !r.bad && 0 <= v && v <= most {
		return v
	}
	r.fail()
	return 0
}

// text is a topic id.
func (r *idReader) text() string {
	n := r.unsigned()
	if n > int64(len(r.b)) || !utf8.Valid(r.b[:n]) {
		r.fail()
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

// count is a number of positions, each of which takes three bytes or more.
func (r *idReader) count() int64 {
	n := r.unsigned()
	if n > int64(len(r.b)/3) {
		r.fail()
		return 0
	}
	return n
}
