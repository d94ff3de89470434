package stream_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
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
	refused := subscribe(t, s.client(), &tailracev1.SubscribeRequest{Topic: "orders", Keys: [][]byte{make([]byte, 20<<10)}})
	if got := read(t, refused.end()); got.code != connect.CodeResourceExhausted || got.reason != stream.ReasonLimit || got.retry == 0 {
		t.Errorf("subscribe: got %+v, want %s with a retry hint", got, stream.ReasonLimit)
	}
	if err := publish(1 << 10); err != nil {
		t.Errorf("a small request: %v", err)
	}
	for _, conn := range held {
		_ = conn.Close()
	}
	eventually(t, "a large request is taken", func() bool { return publish(200<<10) == nil })
}

// TestMessagesOfPublishStreamsHaveRoomTogether: so have the messages of streams, those that are arriving and those that wait for their turn; one that has
// been handed over takes none any more.
func TestMessagesOfPublishStreamsHaveRoomTogether(t *testing.T) {
	const room = 1 << 20
	s, q := startQueue(t, true, func(c *stream.Config) { c.MaxInputBytes = room })
	client := s.client()
	under := openPublisher(t, client)
	for i := range 10 {
		under.send(publishOne(fmt.Sprint(i), strings.Repeat("v", 200<<10)))
		eventually(t, "it is handed over", func() bool { return q.handed() == i+1 })
	}
	eventually(t, "and takes no room", func() bool { return s.metric("tailrace_stream_input_bytes") == 0 })

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	halves, sending := io.Pipe()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+tailracev1connect.StreamServicePublishStreamProcedure, halves)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/connect+proto")
	var half sync.WaitGroup
	half.Go(func() {
		if response, err := h2c(t, nil).Do(request); err == nil {
			_ = response.Body.Close()
		}
	})
	// An envelope that announces 4 MB, and all of the room's bytes of it but a few.
	_, _ = sending.Write([]byte{0, 0, 0x3d, 0x09, 0})
	_, _ = sending.Write(make([]byte, room-1000))
	eventually(t, "half a message is held", func() bool { return s.metric("tailrace_stream_input_bytes") >= room-2000 })

	small := openPublisher(t, client)
	small.send(publishOne("a", "small"))
	eventually(t, "a small one is handed over", func() bool { return q.handed() == 11 })
	large := openPublisher(t, client)
	large.send(publishOne("a", strings.Repeat("v", 200<<10)))
	if got := read(t, large.end()); got.code != connect.CodeResourceExhausted || got.reason != stream.ReasonLimit || got.retry == 0 {
		t.Errorf("got %+v, want %s with a retry hint", got, stream.ReasonLimit)
	}
	_ = sending.CloseWithError(io.ErrUnexpectedEOF)
	half.Wait()
	eventually(t, "the room is free", func() bool { return s.metric("tailrace_stream_input_bytes") == 0 })
	again := openPublisher(t, client)
	again.send(publishOne("a", strings.Repeat("v", 200<<10)))
	eventually(t, "a large one is handed over", func() bool { return q.handed() == 12 })
}

// TestStreamsOfRecordsTakeNoRoom: what a Subscribe was asked with counts until it has begun, not for as long as it lives.
func TestStreamsOfRecordsTakeNoRoom(t *testing.T) {
	s := start(t, patience, func(c *stream.Config) { c.MaxInputBytes = 64 << 10 })
	client := s.client()
	for i := range 5 {
		keys := make([][]byte, 1000)
		for k := range keys {
			keys[k] = fmt.Appendf(nil, "a key of some length, number %d of %d", k, i)
		}
		subscribe(t, client, &tailracev1.SubscribeRequest{Topic: "orders", Keys: keys}).started()
		if got := s.metric("tailrace_stream_input_bytes"); got != 0 {
			t.Fatalf("%v bytes count for %d streams, want none", got, i+1)
		}
	}
}
