package hubtest

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// FirstTime is the time in Unix milliseconds of the record at offset 0 of a partition whose records have no Time of their own; that at
// offset n is n milliseconds later.
const FirstTime int64 = 1764518400000

// NoTime as a Record's Time makes a record without a time.
const NoTime int64 = -1

// Record is a record to append. A nil key or value is absent, which is not the same as empty.
type Record struct {
	Key     []byte
	Value   []byte
	Headers []*tailracev1.Header
	Time    int64 // Unix milliseconds; 0: FirstTime and its offset; NoTime: none
}

// Text returns a record with this key and value.
func Text(key, value string) Record {
	return Record{Key: []byte(key), Value: []byte(value)}
}

// Piece returns the ready piece of a record (see hub.Entry): what a reader must get for it, byte for byte.
func Piece(topic string, partition int32, offset int64, epoch int32, r Record) []byte {
	piece, _ := encode(topic, partition, offset, epoch, r)
	return piece
}

// encode returns the piece, and its Meta with places relative to the piece's start.
func encode(topic string, partition int32, offset int64, epoch int32, r Record) ([]byte, hub.Meta) {
	record := &tailracev1.Record{
		Topic: topic, Partition: partition, Offset: offset, LeaderEpoch: &epoch,
		Key: r.Key, Value: r.Value, Headers: r.Headers,
	}
	at := r.Time
	if at == 0 {
		at = FirstTime + offset
	}
	if at != NoTime {
		record.Time = &timestamppb.Timestamp{Seconds: at / 1000, Nanos: int32(at % 1000 * 1e6)}
		record.TimeType = tailracev1.TimestampType_TIMESTAMP_TYPE_CREATE
	}
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(record)
	if err != nil {
		panic(fmt.Sprintf("hubtest: encode record: %v", err))
	}
	piece := protowire.AppendTag(nil, 2, protowire.BytesType)
	piece = protowire.AppendVarint(piece, uint64(len(encoded)))
	head := len(piece)
	piece = append(piece, encoded...)
	meta := hub.Meta{Offset: offset, Time: at, End: int32(len(piece)), Key: -1, Epoch: epoch}
	if r.Key != nil {
		meta.Key = int32(head + keyAt(encoded))
		meta.KeyLen = int32(len(r.Key))
	}
	return piece, meta
}

// keyAt returns where the bytes of field key (7) begin in an encoded Record.
func keyAt(encoded []byte) int {
	for at := 0; at < len(encoded); {
		number, kind, n := protowire.ConsumeTag(encoded[at:])
		at += n
		if number == 7 {
			_, n := protowire.ConsumeVarint(encoded[at:])
			return at + n
		}
		at += protowire.ConsumeFieldValue(number, kind, encoded[at:])
	}
	panic("hubtest: an encoded record has lost its key")
}
