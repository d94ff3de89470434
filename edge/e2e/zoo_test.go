package e2e_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// specimen is the content of a record, without a place in a log.
type specimen struct {
	name    string
	key     []byte
	value   []byte
	headers []header
}

// zoo is every kind of content that a bridge has been known to spoil.
func zoo() []specimen {
	big := make([]byte, 1_000_000)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(big)
	bigJSON := []byte(`{"big":"` + strings.Repeat("0123456789", 99_990) + `"}`)
	deep := strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000)
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	return []specimen{
		{name: "no key", value: []byte("plain")},
		{name: "all empty", key: []byte{}, value: []byte{}},
		{name: "tombstone", key: []byte("k1")},
		{name: "nothing at all"},
		{name: "json", key: []byte("k2"), value: []byte(`{"any":"json","n":[1,2.50,1e400,-0,12345678901234567890]}`)},
		{name: "json with inner space", key: []byte("k2"), value: []byte("{ \"a\" :\n\t1 }")},
		{name: "json with outer space", key: []byte("k2"), value: []byte(" {\"a\":1}\n")},
		{name: "json null", value: []byte("null")},
		{name: "json string", value: []byte(`"<\u0000&\/>"`)},
		{name: "json with double names", value: []byte(`{"a":1,"a":2}`)},
		{name: "lone surrogate escape", value: []byte(`"\ud800"`)},
		{name: "two values", value: []byte(`{} {}`)},
		{name: "cut json", value: []byte(`{"a":`)},
		{name: "json with bad UTF-8", value: []byte("{\"a\":\"\xff\"}")},
		{name: "deep json", value: []byte(deep)},
		{name: "byte order mark", value: []byte("\xEF\xBB\xBF{}")},
		{name: "line separators", key: []byte("\u2028"), value: []byte("a\u2028b\u2029c\r\n\t\x00\x7f\u0085")},
		{name: "emoji", key: []byte("🐟"), value: []byte("🐟 in the 水")},
		{name: "all bytes", key: all, value: all},
		{name: "quotes", key: []byte("\"\\'</script>"), value: []byte("\"\\'</script>")},
		{name: "headers", value: []byte("h"), headers: []header{
			{"a", []byte("1")}, {"a", []byte("2")}, {"a", nil}, {"a", []byte{}}, {"", []byte("empty name")}, {"bin", all}, {"🐟\"", []byte("\"\n")}, {"a", []byte("1")},
		}},
		{name: "many headers", headers: bytesToHeaders(200)},
		{name: "1 MB of bytes", key: []byte("big"), value: big},
		{name: "1 MB of json", key: []byte("big"), value: bigJSON},
	}
}

func bytesToHeaders(n int) []header {
	headers := make([]header, n)
	for i := range headers {
		headers[i] = header{name: string(rune('a' + i%26)), value: bytes.Repeat([]byte{byte(i)}, i)}
	}
	return headers
}

func (s *specimen) forKafka(topic string, partition int32) *kgo.Record {
	r := &kgo.Record{Topic: topic, Partition: partition, Key: s.key, Value: s.value}
	for _, h := range s.headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.name, Value: h.value})
	}
	return r
}

func (s *specimen) forRPC() *tailracev1.PublishRecord {
	r := &tailracev1.PublishRecord{Key: s.key, Value: s.value}
	for _, h := range s.headers {
		r.Headers = append(r.Headers, &tailracev1.Header{Name: h.name, Value: h.value})
	}
	return r
}

// forSocket is the publish op of the JSON subprotocol.
func (s *specimen) forSocket(id, topic string) []byte {
	op := map[string]any{"op": "publish", "id": id, "topic": topic}
	switch {
	case s.key != nil && utf8.Valid(s.key):
		op["key"] = string(s.key)
	case s.key != nil:
		op["keyBase64"] = base64.StdEncoding.EncodeToString(s.key)
	}
	var verbatim string
	switch {
	case s.value == nil:
		op["tombstone"] = true
	case utf8.Valid(s.value) && json.Valid(s.value) && len(bytes.TrimSpace(s.value)) == len(s.value) && len(s.name)%2 == 0:
		verbatim = string(s.value) // added by hand: encoding/json would rewrite it
	case utf8.Valid(s.value):
		op["text"] = string(s.value)
	default:
		op["base64"] = base64.StdEncoding.EncodeToString(s.value)
	}
	var headers [][2]any
	for _, h := range s.headers {
		switch {
		case h.value == nil:
			headers = append(headers, [2]any{h.name, nil})
		case utf8.Valid(h.value):
			headers = append(headers, [2]any{h.name, string(h.value)})
		default:
			headers = append(headers, [2]any{h.name, map[string]any{"base64": base64.StdEncoding.EncodeToString(h.value)}})
		}
	}
	if headers != nil {
		op["headers"] = headers
	}
	text, err := json.Marshal(op)
	if err != nil {
		panic(err) // strings and byte slices always marshal
	}
	if verbatim != "" {
		text = append(append(append(text[:len(text)-1], `,"value":`...), verbatim...), '}')
	}
	return text
}

// equals says whether a record has this content.
func (s *specimen) equals(r *record) bool {
	want := record{partition: r.partition, offset: r.offset, time: r.time, key: s.key, value: s.value, headers: s.headers}
	return want.mark() == r.mark()
}
