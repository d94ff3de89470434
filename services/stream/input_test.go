package stream_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"testing"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/stream"
)

// TestLargeRequestsHaveRoomTogether: half-sent requests fill the room; another large one is refused, small ones are not, and all is well when the
// room is free again.
func TestLargeRequestsHaveRoomTogether(t *testing.T) {
	const room = 1 << 20
	s := start(t, patience, func(c *stream.Config) { c.MaxInputBytes, c.BodyTimeout = room, patience })
	s.kafka.publish = func(context.Context, string, []*tailracev1.PublishRecord) ([]*tailracev1.PublishResult, error) {
		return []*tailracev1.PublishResult{{Result: &tailracev1.PublishResult_Published{Published: &tailracev1.Published{}}}}, nil
	}
	var held []net.Conn
	for range 2 {
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = fmt.Fprintf(conn, "POST /tailrace.v1.StreamService/Publish HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/proto\r\nContent-Length: %d\r\n\r\n", room)
		_, _ = conn.Write(bytes.Repeat([]byte{0x0a}, room/2-1000))
		held = append(held, conn)
	}
	eventually(t, "both are held", func() bool { return s.metric("tailrace_stream_input_bytes") >= room-2000 })
	publish := func(size int) error {
		_, err := s.client().Publish(t.Context(), &tailracev1.PublishRequest{Topic: "orders", Records: []*tailracev1.PublishRecord{{Value: make([]byte, size)}}})
		return err
	}
	if got := read(t, publish(200<<10)); got.code != connect.CodeResourceExhausted || got.reason != stream.ReasonLimit || got.retry == 0 {
		t.Errorf("got %+v, want %s with a retry hint", got, stream.ReasonLimit)
	}
	if err := publish(1 << 10); err != nil {
		t.Errorf("a small request: %v", err)
	}
	for _, conn := range held {
		_ = conn.Close()
	}
	eventually(t, "a large request is taken", func() bool { return publish(200<<10) == nil })
}
