package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gobwas/ws"
)

// written is the answer to an order.
type written struct {
	Frames     int64   `json:"frames"`
	Records    int64   `json:"records"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpuSeconds"`
}

// started is what sockets are told first: the edge tells more, this is all that the client waits for.
const started = `{"op":"started","id":"0"}`

// writes accepts sockets, each with a goroutine that reads and discards, as a simple server has it. Then it follows orders, one a line:
// records, records a second (0: at once), records a frame. The loop writes each frame to every socket, in one write, and does nothing else.
func writes(address string, sockets int, in io.Reader) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println("listening")
	conns := make([]net.Conn, 0, sockets)
	for range sockets {
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		defer conn.Close()
		if _, err := ws.Upgrade(conn); err != nil {
			return fmt.Errorf("upgrading: %w", err)
		}
		if _, err := conn.Write(ws.MustCompileFrame(ws.NewTextFrame([]byte(started)))); err != nil {
			return err
		}
		conns = append(conns, conn)
		go discard(conn)
	}
	for {
		var records, perSecond, perFrame int
		if _, err := fmt.Fscanln(in, &records, &perSecond, &perFrame); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("reading an order: %w", err)
		}
		done, err := spread(conns, records, perSecond, perFrame)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(os.Stdout).Encode(done); err != nil {
			return err
		}
	}
}

// discard reads what a client sends until it leaves.
func discard(conn net.Conn) {
	buf := make([]byte, 512)
	for {
		if _, err := conn.Read(buf); err != nil {
			return
		}
	}
}

func spread(conns []net.Conn, records, perSecond, perFrame int) (done written, err error) {
	cpu, began := cpuTime(), time.Now()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	var frame []byte
	for n := 0; n < records; {
		if perSecond > 0 {
			<-tick.C
			if n >= int(time.Since(began).Seconds()*float64(perSecond)) {
				continue
			}
		}
		k := min(perFrame, records-n)
		frame = appendFrame(frame[:0], n, k)
		for _, conn := range conns {
			if _, err := conn.Write(frame); err != nil {
				return done, err
			}
		}
		n += k
		done.Frames += int64(len(conns))
		done.Records += int64(len(conns) * k)
	}
	done.Seconds, done.CPUSeconds = time.Since(began).Seconds(), (cpuTime() - cpu).Seconds()
	return done, nil
}

// appendFrame makes a frame of records as the edge's are, with values of 128 bytes that begin with the time.
func appendFrame(frame []byte, from, n int) []byte {
	stamp := strconv.FormatInt(time.Now().UnixNano(), 10)
	value := stamp + " " + strings.Repeat("x", 127-len(stamp))
	body := []byte(`{"op":"records","id":"0","records":[`)
	for i := range n {
		if i > 0 {
			body = append(body, ',')
		}
		body = fmt.Appendf(body, `{"topic":"benchmarkfanout-1764518400000000000","partition":0,"offset":%d,"time":%s,"epoch":0,"text":"%s"}`, from+i, stamp[:13], value)
	}
	return append(frame, ws.MustCompileFrame(ws.NewTextFrame(append(body, "]}"...)))...)
}
