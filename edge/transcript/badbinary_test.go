package transcript_test

import (
	"bytes"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// badBinary are messages of the binary subprotocol.
func badBinary() []misdeed {
	var deeds []misdeed
	add := func(name, want string, data ...[]byte) {
		deeds = append(deeds, misdeed{"binary: " + name, func(w *world) (string, error) {
			return converse(w, "/ws", protocolProto, want, append(data, lastPing())...)
		}, want})
	}
	message := func(name, want string, payload []byte) { add(name, want, masked(fin|opBinary, payload)) }
	field := func(n protowire.Number, payload ...byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, n, protowire.BytesType), payload)
	}
	number := func(n protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(nil, n, protowire.VarintType), v)
	}
	id := field(1, 'a')
	topic := field(1, []byte("orders")...)
	join := func(ps ...[]byte) []byte { return bytes.Join(ps, nil) }
	subscribe := func(request ...[]byte) []byte { return field(1, join(id, field(2, join(request...)...))...) }
	publish := func(record ...[]byte) []byte {
		return field(6, join(id, field(2, []byte("orders")...), field(3, join(record...)...))...)
	}

	add("text", "close 1003", masked(fin|opText, []byte("{}")))
	add("text, first fragment", "close 1003", masked(opText, []byte("{}")))
	message("truncated tag", "close 4500", []byte{0x80})
	message("truncated length", "close 4500", []byte{0x0a, 0x80})
	message("a length over the message", "close 4500", []byte{0x0a, 0x7f, 1})
	message("a length of 2^63", "close 4500", protowire.AppendVarint([]byte{0x0a}, 1<<63))
	message("a varint of eleven bytes", "close 4500", bytes.Repeat([]byte{0xff}, 11))
	message("field number 0", "close 4500", []byte{0x02, 0})
	message("an end of no group", "close 4500", []byte{0x0c})
	message("a reserved wire type", "close 4500", []byte{0x0f})
	message("groups 100,000 deep", "close 4500", bytes.Repeat([]byte{0x0b}, 100_000))
	message("text in the place of protobuf", "close 4500", []byte(`{"op":"ping","id":"x"}`))
	message("a nested length over its message", "close 4500", field(1, 0x12, 0x7f, 1))
	message("empty", "frame: INVALID_ARGUMENT: op", nil)
	message("two ops", "INVALID_ARGUMENT: op", join(field(8, id...), field(8, id...)))
	message("an unknown op", "frame: UNKNOWN_OP", field(77))
	message("an op of the wrong wire type", "INVALID_ARGUMENT", number(8, 1))
	message("no id", "frame: INVALID_ARGUMENT: id", field(8))
	message("an id of 33", "frame: INVALID_ARGUMENT: id", field(8, field(1, bytes.Repeat([]byte{'x'}, 33)...)...))
	message("an id that is not UTF-8", "frame: INVALID_ARGUMENT: id", field(8, field(1, 0xff)...))
	message("an unknown field", "frame: INVALID_ARGUMENT: 99: unknown field", field(8, join(id, number(99, 1))...))
	message("a million unknown fields", "INVALID_ARGUMENT", field(8, join(id, bytes.Repeat(number(99, 1), 300_000))...))
	message("subscribe: no request", "subscribe: INVALID_ARGUMENT: ", field(1, id...))
	message("subscribe: no topic", "subscribe: INVALID_ARGUMENT: request.topic", subscribe())
	message("subscribe: topic twice", "subscribe: INVALID_ARGUMENT: request.topic", subscribe(topic, topic))
	message("subscribe: topic not UTF-8", "subscribe: INVALID_ARGUMENT: request.topic", subscribe(field(1, 0xff)))
	message("subscribe: an unknown field deep in it", "unknown field", subscribe(topic, field(6, field(3, number(88, 1)...)...)))
	message("subscribe: a partition of 64 bits", "subscribe: INVALID_ARGUMENT: request.partitions", subscribe(topic, number(3, 1<<40)))
	message("subscribe: a negative partition", "subscribe: INVALID_ARGUMENT: request.partitions", subscribe(topic, number(3, 1<<64-1)))
	message("subscribe: 10,001 partitions, packed", "subscribe: INVALID_ARGUMENT: request.partitions", subscribe(topic, field(3, make([]byte, 10_001)...)))
	message("subscribe: 1,001 keys", "subscribe: INVALID_ARGUMENT: request.keys", subscribe(topic, bytes.Repeat(field(4, 'k'), 1001)))
	message("subscribe: keys of 100 KB", "subscribe: INVALID_ARGUMENT: request.keys", subscribe(topic, field(4, make([]byte, 100_000)...)))
	message("publish: no topic", "publish: INVALID_ARGUMENT: topic", field(6, id...))
	message("publish: no record", "publish: INVALID_ARGUMENT: record", field(6, join(id, field(2, 'x'))...))
	message("publish: value twice", "publish: INVALID_ARGUMENT: record.value", publish(field(2, 'x'), field(2, 'x')))
	message("publish: a header with NUL", "publish: INVALID_ARGUMENT: record.headers", publish(field(3, field(1, 'h', 0)...)))
	message("publish: 1,001 headers", "publish: INVALID_ARGUMENT: record.headers", publish(bytes.Repeat(field(3, field(1, 'h')...), 1001)))
	message("publish: a negative partition", "publish: INVALID_ARGUMENT: record.partition", publish(number(4, 1<<64-1)))
	add("a declared length of 2^62", "close 1009", append([]byte{fin | opBinary, 0x80 | 127, 0x40, 0, 0, 0, 0, 0, 0, 0}, 1, 2, 3, 4))
	add("a ping op in fragments around control frames", "pong lives",
		masked(opBinary, []byte{0x42, 3}), masked(fin|opPing, []byte("a")), masked(opContinuation, []byte{0x0a}), masked(fin|opContinuation, []byte{1, 'x'}))
	return deeds
}

// badPosts are publishes without a socket, and requests for streams of events.
func badPosts() []misdeed {
	var deeds []misdeed
	add := func(name, want, line, rest string, cut bool) {
		method, _, _ := strings.Cut(line, " ")
		deeds = append(deeds, misdeed{"post: " + name, func(w *world) (string, error) {
			return exchange(w.web, method, line+" HTTP/1.1\r\n"+host+rest, cut)
		}, want})
	}
	const empty = "Content-Length: 0\r\n\r\n"
	for name, query := range map[string]string{
		"unknown parameter": "kye=k", "key twice": "key=a&key=b", "key and keyBase64": "key=a&keyBase64=YQ==", "bad base64": "keyBase64=*", "partition -1": "partition=-1", "partition 01": "partition=01",
		"partition 2^31": "partition=2147483648", "tombstone=false": "tombstone=false", "a header without =": "header=h", "a header with NUL": "header=h%00=v", "a parameter that is not UTF-8": "%ff=1",
	} {
		add(name, `400 `, "POST /publish/orders?"+query, empty, false)
	}
	add("unknown topic", `"reason":"UNKNOWN_TOPIC"`, "POST /publish/nosuch", empty, false)
	add("a topic that climbs", `"reason":"UNKNOWN_TOPIC"`, "POST /publish/..%2f..%2fetc", empty, false)
	add("a topic that is not UTF-8", `400 `, "POST /publish/%ff", empty, false)
	add("unknown partition", `"reason":"UNKNOWN_PARTITION"`, "POST /publish/orders?partition=9", empty, false)
	add("a tombstone with a body", `400 `, "POST /publish/orders?tombstone=true", "Content-Length: 1\r\n\r\nx", false)
	add("a body over the limit", "413 ", "POST /publish/orders", "Content-Length: 3000000\r\n\r\nx", false)
	add("a body of 2^62", "413 ", "POST /publish/orders", "Content-Length: 4611686018427387904\r\n\r\nx", false)
	add("chunks over the limit", "413 ", "POST /publish/orders", "Transfer-Encoding: chunked\r\n\r\n300000\r\n"+strings.Repeat("x", 3<<20)+"\r\n0\r\n\r\n", false)
	add("a body that is shorter than it says", "400 ", "POST /publish/orders", "Content-Length: 10\r\n\r\nx", true)
	add("a compressed body", "400 ", "POST /publish/orders", "Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx", false)
	add("a body that does not come", "408 ", "POST /publish/orders", "Content-Length: 10\r\n\r\n", false)
	add("another method", "405 ", "DELETE /publish/orders", "\r\n", false)
	add("another origin", "403 ", "POST /publish/orders", "Origin: http://evil.example\r\n"+empty, false)
	for name, query := range map[string]string{
		"unknown parameter": "strat=x", "start twice": "start=latest&start=latest", "a bad id": "lastEventId=17", "an id that is not base64": "lastEventId=%25", "positions with a sign": "positions=0:%2B1",
		"last 0": "last=0", "a bad time": "time=now", "an id of a million partitions": "lastEventId=AQDAhD0",
	} {
		add("stream, "+name, "400 ", "GET /sse/orders?"+query, "\r\n", false)
	}
	add("stream, an id of 10 KB", "400 ", "GET /sse/orders", "Last-Event-ID: "+strings.Repeat("A", 10_000)+"\r\n\r\n", false)
	add("stream, two ids", "400 ", "GET /sse/orders", "Last-Event-ID: 17\r\nLast-Event-ID: 18\r\n\r\n", false)
	add("stream, a body", "400 ", "GET /sse/orders", "Content-Length: 5\r\n\r\nhello", false)
	add("stream, unknown topic", "404 ", "GET /sse/nosuch", "\r\n", false)
	add("stream, another origin", "403 ", "GET /sse/orders", "Origin: http://evil.example\r\n\r\n", false)
	add("stream, HTTP/1.1 by PUT", "405 ", "PUT /sse/orders", empty, false)
	return deeds
}
