package transcript_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"
)

// exchange sends bytes over a connection of its own and returns what came: the first answer as "STATUS headers body trailers", or "closed". With
// cut the client's side is closed behind the bytes.
func exchange(addr, method, raw string, cut bool) (string, error) {
	conn, err := dialTCP(addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	var sending sync.WaitGroup
	sending.Go(func() {
		if _, err := io.WriteString(conn, raw); err == nil && cut { // the server may not want to read it
			_ = conn.CloseWrite()
		}
	})
	got, err := answerOf(conn, method)
	conn.Close()
	sending.Wait()
	return got, err
}

func answerOf(conn net.Conn, method string) (string, error) {
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		return "closed", nil
	}
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var got strings.Builder
	fmt.Fprintf(&got, "%d ", resp.StatusCode)
	_ = resp.Header.Write(&got)
	if resp.StatusCode == http.StatusSwitchingProtocols {
		return got.String(), nil
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	got.Write(body)
	_ = resp.Trailer.Write(&got)
	return got.String(), err
}

// drip sends bytes one by one until the connection is closed, or all are sent; then it returns what came.
func drip(addr, method, raw string, pause time.Duration) (string, error) {
	conn, err := dialTCP(addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range len(raw) {
			if _, err := conn.Write([]byte{raw[i]}); err != nil {
				return
			}
			select {
			case <-time.After(pause):
			case <-stop:
				return
			}
		}
	}()
	got, err := answerOf(conn, method)
	close(stop)
	<-done
	return got, err
}
