package kafka

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/group"
)

// Headers of a dead letter, behind those of the record.
const (
	headerTopic     = "tailrace-topic"
	headerPartition = "tailrace-partition"
	headerOffset    = "tailrace-offset"
	headerGroup     = "tailrace-group"
	headerAttempts  = "tailrace-attempts"
	headerReason    = "tailrace-reason"
	headerDead      = "tailrace-time"      // RFC 3339, when it became a dead letter
	headerHops      = "tailrace-hops"      // how many dead letters it has been by now, from 2
	headerCut       = "tailrace-truncated" // how many bytes of the value there were, where it was cut
	headerStripped  = "tailrace-stripped"  // what was left out besides
)

// What can be left out of a letter that its topic does not take, one after the other, with the value of headerStripped. The key is then the place
// that the record has, since a topic that is compacted takes none without one.
var strips = []string{"", "headers", "headers,key", "headers,key,reason"}

// stripAll leaves out all of them: what remains has at most 2 KiB.
var stripAll = len(strips) - 1

// maxHops is how often a record may become a dead letter. One that has so often goes round: groups that read each other's dead letters, or
// something that puts them back as they are, each time.
const maxHops = 10

// letter is a dead letter of a record.
type letter struct {
	to      string
	place   string // of the record
	key     []byte
	value   []byte
	headers []*tailracev1.Header // of the record
	own     []*tailracev1.Header
}

// newLetter makes the letter of a record. An error is group.ErrGoesRound, or our bug.
func newLetter(l group.Letter) (*letter, error) {
	r := &tailracev1.Record{}
	if err := proto.Unmarshal(l.Record.Body, r); err != nil {
		return nil, fmt.Errorf("dead letter: %w", err)
	}
	hops := 1 + hopsOf(r.GetHeaders())
	if hops > maxHops {
		return nil, fmt.Errorf("dead letter: %w: for the %dth time", group.ErrGoesRound, hops)
	}
	d := &letter{
		to: l.To, place: fmt.Sprintf("%s/%d/%d", l.Topic, l.Partition.Partition, l.Record.Offset), key: r.Key, value: r.Value, headers: r.GetHeaders(),
		own: []*tailracev1.Header{
			header(headerTopic, l.Topic),
			header(headerPartition, strconv.Itoa(int(l.Partition.Partition))),
			header(headerOffset, strconv.FormatInt(l.Record.Offset, 10)),
			header(headerGroup, l.Group),
			header(headerAttempts, strconv.Itoa(l.Attempts)),
			header(headerReason, l.Reason),
			header(headerDead, l.Time.UTC().Format(time.RFC3339Nano)),
		},
	}
	if hops > 1 {
		d.own = append(d.own, header(headerHops, strconv.Itoa(hops)))
	}
	return d, nil
}

func header(name, value string) *tailracev1.Header {
	return &tailracev1.Header{Name: name, Value: []byte(value)}
}

// hopsOf is how many dead letters a record with these headers has been.
func hopsOf(headers []*tailracev1.Header) (hops int) {
	for _, h := range slices.Backward(headers) {
		switch h.GetName() {
		case headerHops:
			if n, err := strconv.Atoi(string(h.GetValue())); err == nil && n > 0 {
				return n
			}
		case headerGroup:
			hops = 1
		}
	}
	return hops
}

// record is what is stored: stripped so far, with so much of the value.
func (d *letter) record(strip, keep int) *tailracev1.PublishRecord {
	r := &tailracev1.PublishRecord{Key: d.key, Value: d.value}
	if strip < 1 {
		r.Headers = slices.Clone(d.headers)
	}
	if strip >= 2 {
		r.Key = []byte(d.place)
	}
	for _, h := range d.own {
		if h.GetName() == headerReason && strip >= 3 {
			h = header(headerReason, "")
		}
		r.Headers = append(r.Headers, h)
	}
	if keep < len(d.value) {
		r.Value = bytes.Clone(d.value[:keep])
		r.Headers = append(r.Headers, header(headerCut, strconv.Itoa(len(d.value))))
	}
	if strip > 0 {
		r.Headers = append(r.Headers, header(headerStripped, strips[strip]))
	}
	return r
}
