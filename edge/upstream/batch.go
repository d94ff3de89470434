package upstream

import (
	"google.golang.org/protobuf/encoding/protowire"

	"tailrace.dev/tailrace/edge/wire"
	"tailrace.dev/tailrace/services/hub"
)

// Field numbers of tailrace.v1: Records, RecordBatch, Record, and google.protobuf.Timestamp.
const (
	recordsBatches = 1

	batchPartition = 1
	batchRecords   = 2
	batchNext      = 3
	batchEnd       = 4

	recordOffset = 3
	recordTime   = 4
	recordEpoch  = 6
	recordKey    = 7

	timestampSeconds = 1
	timestampNanos   = 2
)

// readRecords cuts an encoded tailrace.v1.Records into entries, one for each batch, without copying: they lie in b. From is left to the caller,
// which knows the position.
func readRecords(b []byte) ([]*hub.Entry, error) {
	es := make([]*hub.Entry, 0, 1)
	var f wire.Field
	for len(b) > 0 {
		n := f.Next(b)
		if n < 0 {
			return nil, errMalformed
		}
		b = b[n:]
		if f.Num != recordsBatches || f.Type != protowire.BytesType {
			continue
		}
		e, err := readBatch(f.Data)
		if err != nil {
			return nil, err
		}
		es = append(es, e)
	}
	return es, nil
}

// readBatch makes an entry of an encoded RecordBatch: Records, or Advance where it has none.
func readBatch(b []byte) (*hub.Entry, error) {
	lo, hi, n, ok := recordsRun(b)
	if !ok {
		b = gatherRecords(b)
		lo, hi, n, ok = recordsRun(b)
	}
	if !ok {
		return nil, errMalformed
	}
	e := &hub.Entry{Kind: hub.Advance}
	if n > 0 {
		e.Kind, e.Body, e.Meta = hub.Records, b[lo:hi:hi], make([]hub.Meta, 0, n)
	}
	var f wire.Field
	for at := 0; at < len(b); {
		at += f.Next(b[at:])
		switch {
		case f.Type == protowire.BytesType && f.Num == batchRecords:
			m, ok := readMeta(f.Data, at-len(f.Data)-lo)
			if !ok || len(e.Meta) > 0 && m.Offset <= e.Meta[len(e.Meta)-1].Offset {
				return nil, errMalformed
			}
			e.Meta = append(e.Meta, m)
		case f.Type != protowire.VarintType:
		case f.Num == batchPartition:
			e.Partition = int32(f.N)
		case f.Num == batchNext:
			e.Next = int64(f.N)
		case f.Num == batchEnd:
			e.End = int64(f.N)
		}
	}
	if n > 0 && e.Next <= e.Meta[n-1].Offset {
		return nil, errMalformed
	}
	return e, nil
}

// recordsRun finds the records of a batch, which a service writes one after the other. Without ok they are not, or b is malformed.
func recordsRun(b []byte) (lo, hi, n int, ok bool) {
	var f wire.Field
	for at := 0; at < len(b); {
		size := f.Next(b[at:])
		if size < 0 {
			return 0, 0, 0, false
		}
		if f.Num == batchRecords && f.Type == protowire.BytesType {
			if n > 0 && at != hi {
				return 0, 0, 0, false
			}
			if n == 0 {
				lo = at
			}
			hi = at + size
			n++
		}
		at += size
	}
	return lo, hi, n, true
}

// gatherRecords returns a copy of a batch in which the records are together, as far as it is well formed.
func gatherRecords(b []byte) []byte {
	records, others := make([]byte, 0, len(b)), make([]byte, 0, 64)
	var f wire.Field
	for len(b) > 0 {
		n := f.Next(b)
		switch {
		case n < 0:
			return append(append(records, others...), b...)
		case f.Num == batchRecords && f.Type == protowire.BytesType:
			records = append(records, b[:n]...)
		default:
			others = append(others, b[:n]...)
		}
		b = b[n:]
	}
	return append(records, others...)
}

// readMeta finds what the hub needs of an encoded record that begins at base in the entry's body.
func readMeta(b []byte, base int) (m hub.Meta, ok bool) {
	m = hub.Meta{Time: -1, Key: -1, Epoch: -1, End: int32(base + len(b))}
	var f wire.Field
	for at := 0; at < len(b); {
		n := f.Next(b[at:])
		if n < 0 {
			return m, false
		}
		at += n
		switch {
		case f.Type == protowire.VarintType && f.Num == recordOffset:
			m.Offset = int64(f.N)
		case f.Type == protowire.VarintType && f.Num == recordEpoch:
			m.Epoch = int32(f.N)
		case f.Type == protowire.BytesType && f.Num == recordTime:
			if m.Time, ok = readMillis(f.Data); !ok {
				return m, false
			}
		case f.Type == protowire.BytesType && f.Num == recordKey:
			m.Key, m.KeyLen = int32(base+at-len(f.Data)), int32(len(f.Data))
		}
	}
	return m, true
}

func readMillis(b []byte) (millis int64, ok bool) {
	var seconds, nanos int64
	var f wire.Field
	for len(b) > 0 {
		n := f.Next(b)
		if n < 0 {
			return 0, false
		}
		b = b[n:]
		if f.Type != protowire.VarintType {
			continue
		}
		switch f.Num {
		case timestampSeconds:
			seconds = int64(f.N)
		case timestampNanos:
			nanos = int64(f.N)
		default:
		}
	}
	return seconds*1000 + nanos/1_000_000, true
}
