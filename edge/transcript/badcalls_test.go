package transcript_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// Procedures.
const (
	subscribeCall = "/tailrace.v1.StreamService/Subscribe"
	publishCall   = "/tailrace.v1.StreamService/Publish"
	listCall      = "/tailrace.v1.TopicService/ListTopics"
	getCall       = "/tailrace.v1.TopicService/GetTopic"
)

// call sends one request to the service over HTTP/2 and returns the answer as "STATUS headers body trailers".
func (w *world) call(method, path string, header http.Header, body []byte) (string, error) {
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols, DisableCompression: true}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+w.rpc+path, bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header = header
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var got strings.Builder
	fmt.Fprintf(&got, "%d ", resp.StatusCode)
	_ = resp.Header.Write(&got)
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	got.Write(text)
	_ = resp.Trailer.Write(&got)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return got.String(), err
}

// envelope is a message of a stream: flags, length, bytes. The length may be a lie.
func envelope(flags byte, length uint32, message string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, length), message...)
}

func enveloped(message string) []byte { return envelope(0, uint32(len(message)), message) }

func gzipped(p []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write(p)
	_ = z.Close()
	return b.Bytes()
}

// badCalls are misdeeds of RPC: unary and streaming, Connect, gRPC and gRPC-Web, JSON and protobuf.
func badCalls() []misdeed {
	var deeds []misdeed
	add := func(name, want, path, contentType string, body []byte, headers ...string) {
		deeds = append(deeds, misdeed{"rpc: " + name, func(w *world) (string, error) {
			h := http.Header{"Content-Type": {contentType}}
			for _, line := range headers {
				k, v, _ := strings.Cut(line, ": ")
				h.Set(k, v)
			}
			return w.call(http.MethodPost, path, h, body)
		}, want})
	}
	const asJSON, asProto, streamJSON, streamProto, grpc, grpcWeb = "application/json", "application/proto", "application/connect+json", "application/connect+proto", "application/grpc", "application/grpc-web"
	const invalid, invalidGRPC = `"code":"invalid_argument"`, "Grpc-Status: 3"
	unary := func(name, want, body string) { add("unary JSON: "+name, want, getCall, asJSON, []byte(body)) }
	unary("empty", invalid, "")
	unary("an array", invalid, "[]")
	unary("a torso", invalid, `{"topic":"x"`)
	unary("two objects", invalid, `{"topic":"x"}{}`)
	unary("an unknown field", invalid, `{"tpoic":"x"}`)
	unary("a field twice", invalid, `{"topic":"x","topic":"y"}`)
	unary("a number for a string", invalid, `{"topic":1}`)
	unary("half a surrogate pair", invalid, `{"topic":"\ud800"}`)
	unary("not UTF-8", invalid, "{\"topic\":\"\xff\"}")
	unary("100,000 deep", invalid, `{"topic":`+strings.Repeat("[", 100_000))
	unary("no topic", "INVALID_ARGUMENT", "{}")
	unary("an unknown topic", `"code":"not_found"`, `{"topic":"nosuch"}`)
	add("a negative page", invalid, listCall, asJSON, []byte(`{"pageSize":-1}`))
	add("a page token of another making", invalid, listCall, asJSON, []byte(`{"pageToken":"***"}`))
	add("unary proto: truncated", invalid, getCall, asProto, []byte{0x0a, 5, 'x'})
	add("unary proto: wrong wire type", "INVALID_ARGUMENT", getCall, asProto, []byte{0x08, 1})
	add("unary proto: not UTF-8", invalid, getCall, asProto, []byte{0x0a, 1, 0xff})
	add("unary proto: a tag without a field", invalid, getCall, asProto, []byte{0x00})
	add("unary proto: a length of 2^63", invalid, getCall, asProto, append([]byte{0x0a}, protowire.AppendVarint(nil, 1<<63)...))
	add("unary proto: a varint of eleven bytes", invalid, getCall, asProto, bytes.Repeat([]byte{0xff}, 11))
	add("unary proto: groups 100,000 deep", invalid, getCall, asProto, bytes.Repeat([]byte{0x7b}, 100_000))
	add("unary proto: an end of no group", invalid, getCall, asProto, []byte{0x7c})
	add("unary: larger than a request may be", `"code":"resource_exhausted"`, publishCall, asProto, make([]byte, 9<<20))
	add("unary: a bomb", `"code":"resource_exhausted"`, publishCall, asProto, gzipped(make([]byte, 16<<20)), "Content-Encoding: gzip")
	add("unary: gzip that is none", invalid, getCall, asProto, []byte("plain"), "Content-Encoding: gzip")
	add("unary: an unknown encoding", `"code":"unimplemented"`, getCall, asProto, nil, "Content-Encoding: br")
	add("an unknown codec", "415 ", getCall, "application/xml", nil)
	add("no content type", "415 ", getCall, "", nil)
	add("a unary content type for a stream", "415 ", subscribeCall, asJSON, []byte("{}"))
	add("a stream's content type for a unary call", "415 ", getCall, streamJSON, enveloped("{}"))
	add("an unknown procedure", "404 ", "/tailrace.v1.StreamService/Unsubscribe", asJSON, []byte("{}"))
	add("an unknown service", "404 ", "/tailrace.v2.StreamService/Subscribe", asJSON, []byte("{}"))
	add("a timeout that is no number", invalid, getCall, asJSON, []byte("{}"), "Connect-Timeout-Ms: soon")
	add("a negative timeout", "4", getCall, asJSON, []byte(`{"topic":"x"}`), "Connect-Timeout-Ms: -1")
	add("a timeout of 20 digits", invalid, getCall, asJSON, []byte("{}"), "Connect-Timeout-Ms: 99999999999999999999")
	add("an unknown protocol version", invalid, getCall, asJSON, []byte("{}"), "Connect-Protocol-Version: 9")
	add("a page of a rebound name", "404 ", getCall, asJSON, []byte(`{"topic":"nosuch"}`), "Origin: http://evil.example")

	publish := func(name, want, rest string) {
		add("publish: "+name, want, publishCall, asJSON, []byte(`{"topic":"orders","records":[`+rest+`]}`))
	}
	publish("nothing", invalid, "")
	publish("10,001 records", invalid, "{}"+strings.Repeat(",{}", 10_000))
	publish("a negative partition", invalid, `{"value":"eA==","partition":-1}`)
	publish("bad base64", invalid, `{"value":"*"}`)
	publish("1e999", invalid, `{"value":"eA==","partition":1e999}`)
	publish("null", invalid, `null`)

	stream := func(name, want string, body []byte, headers ...string) {
		add("stream JSON: "+name, want, subscribeCall, streamJSON, body, headers...)
	}
	stream("nothing", `"code":"unimplemented"`, nil) // the library's answer, after gRPC's

	stream("half an envelope", `"code":"internal"`, []byte{0, 0, 0})
	stream("a length of 4 GiB", `"code":"resource_exhausted"`, envelope(0, 0xffffffff, "{"))
	stream("a length over the body", `"code":"internal"`, envelope(0, 100, "{}"))
	stream("compressed without an encoding", `"code":"internal"`, envelope(1, 2, "{}"))
	stream("compressed, but not", invalid, envelope(1, 2, "{}"), "Connect-Content-Encoding: gzip")
	stream("a bomb", `"code":"resource_exhausted"`, envelope(1, uint32(len(gzipped(make([]byte, 16<<20)))), string(gzipped(make([]byte, 16<<20)))), "Connect-Content-Encoding: gzip")
	stream("unknown flags", `"error":{"code":"`, envelope(0xf0, 2, "{}"))
	stream("two requests", `"error":{"code":"`, append(enveloped(`{"topic":"nosuch"}`), enveloped(`{"topic":"nosuch"}`)...))
	stream("no topic", invalid, enveloped("{}"))
	stream("an unknown field", invalid, enveloped(`{"topic":"orders","strat":{}}`))
	stream("an unknown enum", invalid, enveloped(`{"topic":"orders","slowPolicy":"SLOW_POLICY_FAST"}`))
	stream("two starts", invalid, enveloped(`{"topic":"orders","start":{"latest":{},"earliest":{}}}`))
	stream("last 0", invalid, enveloped(`{"topic":"orders","start":{"last":0}}`))
	stream("last 2^31", invalid, enveloped(`{"topic":"orders","start":{"last":2147483648}}`))
	stream("a negative position", invalid, enveloped(`{"topic":"orders","start":{"positions":{"positions":[{"partition":0,"offset":"-1"}]}}}`))
	stream("a position twice", invalid, enveloped(`{"topic":"orders","start":{"positions":{"positions":[{"offset":"1"},{"offset":"2"}]}}}`))
	stream("an offset over 2^63", invalid, enveloped(`{"topic":"orders","start":{"positions":{"positions":[{"offset":"9223372036854775808"}]}}}`))
	stream("a time out of range", invalid, enveloped(`{"topic":"orders","start":{"time":"99999-01-01T00:00:00Z"}}`))
	stream("a heartbeat of a microsecond", invalid, enveloped(`{"topic":"orders","heartbeatInterval":"0.000001s"}`))
	stream("a heartbeat of an hour", invalid, enveloped(`{"topic":"orders","heartbeatInterval":"3600s"}`))
	stream("negative limits", invalid, enveloped(`{"topic":"orders","maxBatchBytes":-1}`))
	stream("an unknown partition", `"code":"not_found"`, enveloped(`{"topic":"orders","partitions":[9]}`))
	add("stream proto: truncated", invalid, subscribeCall, streamProto, enveloped("\x0a\x05x"))
	add("stream proto: a huge nested length", invalid, subscribeCall, streamProto, enveloped("\x0a\x06orders\x3a"+string(protowire.AppendVarint(nil, 1<<40))))

	add("gRPC: nothing", "Grpc-Status: ", subscribeCall, grpc, nil)
	add("gRPC: half an envelope", "Grpc-Status: 13", subscribeCall, grpc, []byte{0, 0})
	add("gRPC: a length of 4 GiB", "Grpc-Status: 8", subscribeCall, grpc, envelope(0, 0xffffffff, "x"))
	add("gRPC: truncated", invalidGRPC, subscribeCall, grpc, enveloped("\x0a\x05x"))
	add("gRPC: compressed without an encoding", "Grpc-Status: 13", subscribeCall, grpc, envelope(1, 1, "x"))
	add("gRPC: an unknown encoding", "Grpc-Status: 12", subscribeCall, grpc, enveloped(""), "Grpc-Encoding: br")
	add("gRPC: a bad timeout", "Grpc-Status: ", getCall, grpc, enveloped(""), "Grpc-Timeout: 1h30m")
	add("gRPC: an unknown procedure", "404 ", "/tailrace.v1.StreamService/Nothing", grpc, nil)
	add("gRPC: an unknown codec", "415 ", getCall, grpc+"+xml", nil)
	add("gRPC-Web: truncated", invalidGRPC, subscribeCall, grpcWeb, enveloped("\x0a\x05x"))
	deeds = append(deeds,
		misdeed{"rpc: another method", func(w *world) (string, error) {
			return w.call(http.MethodPut, publishCall, http.Header{"Content-Type": {asJSON}}, nil)
		}, "405 "},
		misdeed{"rpc: HTTP/1.1, a body that is shorter than it says", func(w *world) (string, error) {
			return exchange(w.rpc, "POST", "POST "+getCall+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{}", true)
		}, "4"},
		misdeed{"rpc: HTTP/1.1, gRPC", func(w *world) (string, error) {
			return exchange(w.rpc, "POST", "POST "+getCall+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/grpc\r\nContent-Length: 0\r\n\r\n", false)
		}, "Grpc-Status: 12"},
		misdeed{"rpc: HTTP/1.1, a page of a rebound name", func(w *world) (string, error) {
			return exchange(w.rpc, "POST", "POST "+getCall+" HTTP/1.1\r\nHost: evil.example\r\nOrigin: http://evil.example\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}", false)
		}, "421 "},
		misdeed{"rpc: HTTP/2, frames that are none", func(w *world) (string, error) {
			conn, err := dialTCP(w.rpc)
			if err != nil {
				return "", err
			}
			defer conn.Close()
			_ = conn.SetReadDeadline(time.Now().Add(patience))
			if _, err := conn.Write(append([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), bytes.Repeat([]byte{0xff}, 1000)...)); err != nil {
				return "", err
			}
			_, err = io.Copy(io.Discard, conn)
			if err != nil && errors.Is(err, context.DeadlineExceeded) {
				return "", err
			}
			return "closed", nil
		}, "closed"},
	)
	return deeds
}
