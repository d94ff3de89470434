package frame

import (
	"encoding/base64"
	"math"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"tailrace.dev/tailrace/edge/wire"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// Field numbers of tailrace.v1.Record, Header and google.protobuf.Timestamp.
const (
	recordTopic     = 1
	recordPartition = 2
	recordOffset    = 3
	recordTime      = 4
	recordTimeType  = 5
	recordEpoch     = 6
	recordKey       = 7
	recordValue     = 8
	recordHeaders   = 9

	headerName  = 1
	headerValue = 2

	timestampSeconds = 1
	timestampNanos   = 2
)

// record is an encoded tailrace.v1.Record, its parts found but not copied. A nil key or value is an absent one.
type record struct {
	topic, key, value []byte
	headers           []byte // the fields from the first header on
	partition         int32
	epoch             int32 // -1: absent
	offset            int64
	seconds           int64
	nanos             int32
	timed             bool
	timeType          int32
}

// read finds the parts of an encoded record. On a malformed one it returns false, with what came before the fault.
func (r *record) read(b []byte) bool {
	*r = record{epoch: -1}
	var f wire.Field
	for len(b) > 0 {
		n := f.Next(b)
		if n < 0 {
			return false
		}
		switch f.Type {
		case protowire.BytesType:
			switch f.Num {
			case recordTopic:
				r.topic = f.Data
			case recordTime:
				if !r.readTime(f.Data) {
					return false
				}
			case recordKey:
				r.key = f.Data
			case recordValue:
				r.value = f.Data
			case recordHeaders:
				if r.headers == nil {
					r.headers = b
				}
			default:
			}
		case protowire.VarintType:
			switch f.Num {
			case recordPartition:
				r.partition = int32(f.N)
			case recordOffset:
				r.offset = int64(f.N)
			case recordTimeType:
				r.timeType = int32(f.N)
			case recordEpoch:
				r.epoch = int32(f.N)
			default:
			}
		default:
		}
		b = b[n:]
	}
	return true
}

func (r *record) readTime(b []byte) bool {
	r.timed = true
	var f wire.Field
	for len(b) > 0 {
		n := f.Next(b)
		if n < 0 {
			return false
		}
		if f.Type == protowire.VarintType {
			switch f.Num {
			case timestampSeconds:
				r.seconds = int64(f.N)
			case timestampNanos:
				r.nanos = int32(f.N)
			default:
			}
		}
		b = b[n:]
	}
	return true
}

// appendHead appends the members that the records of one entry have in common.
func (r *record) appendHead(dst []byte) []byte {
	dst = appendText(append(dst, `{"topic":`...), r.topic)
	dst = appendInt(append(dst, `,"partition":`...), int64(r.partition))
	return append(dst, `,"offset":`...)
}

// appendTail appends the rest of the record's object.
func (r *record) appendTail(dst []byte, as As) []byte {
	dst = appendInt(dst, r.offset)
	if r.timed {
		dst = appendInt(append(dst, `,"time":`...), r.millis())
		if r.timeType == int32(tailracev1.TimestampType_TIMESTAMP_TYPE_APPEND) {
			dst = append(dst, `,"timeType":"append"`...)
		}
	}
	if r.epoch >= 0 {
		dst = appendInt(append(dst, `,"epoch":`...), int64(r.epoch))
	}
	if r.key != nil {
		if utf8.Valid(r.key) {
			dst = appendText(append(dst, `,"key":`...), r.key)
		} else {
			dst = appendBase64(append(dst, `,"keyBase64":`...), r.key)
		}
	}
	if r.headers != nil {
		dst = appendHeaders(append(dst, `,"headers":[`...), r.headers)
		dst = append(dst, ']')
	}
	return append(appendPayload(dst, r.value, as), '}')
}

// millis is the time in Unix milliseconds, rounded down; the ends of int64 stand for what lies beyond them.
func (r *record) millis() int64 {
	const most = math.MaxInt64/1000 - 1
	return min(max(r.seconds, -most), most)*1000 + int64(math.Floor(float64(r.nanos)/1e6))
}

// appendPayload appends the value in exactly one of value, text, base64 and tombstone.
func appendPayload(dst, value []byte, as As) []byte {
	switch {
	case value == nil:
		return append(dst, `,"tombstone":true`...)
	case (as == AsAuto || as == AsJSON) && validJSON(value, maxValueDepth):
		return append(append(dst, `,"value":`...), value...)
	case (as == AsAuto || as == AsText) && utf8.Valid(value):
		return appendText(append(dst, `,"text":`...), value)
	default:
		return appendBase64(append(dst, `,"base64":`...), value)
	}
}

// appendHeaders appends [name, value] of every header among the fields b: value is a string, null, or {"base64":…} where it is not UTF-8.
func appendHeaders(dst, b []byte) []byte {
	var f wire.Field
	for first := true; len(b) > 0; {
		n := f.Next(b)
		if n < 0 {
			return dst
		}
		b = b[n:]
		if f.Num != recordHeaders || f.Type != protowire.BytesType {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		name, value := readHeader(f.Data)
		dst = append(appendText(append(dst, '['), name), ',')
		switch {
		case value == nil:
			dst = append(dst, "null"...)
		case utf8.Valid(value):
			dst = appendText(dst, value)
		default:
			dst = append(appendBase64(append(dst, `{"base64":`...), value), '}')
		}
		dst = append(dst, ']')
	}
	return dst
}

// readHeader returns the parts of an encoded header; a nil value is an absent one.
func readHeader(b []byte) (name, value []byte) {
	var f wire.Field
	for len(b) > 0 {
		n := f.Next(b)
		if n < 0 {
			return name, value
		}
		if f.Type == protowire.BytesType {
			switch f.Num {
			case headerName:
				name = f.Data
			case headerValue:
				value = f.Data
			default:
			}
		}
		b = b[n:]
	}
	return name, value
}

func appendBase64(dst, b []byte) []byte {
	return append(base64.StdEncoding.AppendEncode(append(dst, '"'), b), '"')
}
