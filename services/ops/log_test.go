package ops_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tailrace.dev/tailrace/services/ops"
)

// held is a writer that takes nothing until it is let go.
type held struct {
	bytes.Buffer
	free chan struct{}
}

func (h *held) Write(p []byte) (int, error) {
	<-h.free
	return h.Buffer.Write(p)
}

func TestLogKeepsTheOrderAndEndsWritten(t *testing.T) {
	var out bytes.Buffer
	l := ops.NewLog(&out, ops.LogConfig{})
	logger := slog.New(slog.NewTextHandler(l, nil))
	for i := range 1000 {
		logger.Info("line", "n", i)
	}
	l.Close()
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	if len(lines) != 1000 {
		t.Fatalf("got %d lines, want 1000", len(lines))
	}
	for i, line := range lines {
		if want := fmt.Sprintf("msg=line n=%d", i); !strings.HasSuffix(line, want) {
			t.Fatalf("line %d: got %q, want …%q", i, line, want)
		}
	}
}

func TestLogWaitsForNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := &held{free: make(chan struct{})}
		l := ops.NewLog(to, ops.LogConfig{})
		line := strings.Repeat("x", 99) + "\n"
		const written = 50_000 // 5 MB
		for range written {
			if n, err := io.WriteString(l, line); n != len(line) || err != nil {
				t.Fatalf("got %d, %v, want %d", n, err, len(line))
			}
		}
		began := time.Now()
		l.Close()
		if took := time.Since(began); took != time.Second {
			t.Errorf("closing a log that is not taken: got %v, want 1s", took)
		}
		close(to.free)
		synctest.Wait()
		got, note := strings.Count(to.String(), line), 0
		if _, after, ok := strings.Cut(to.String(), "left_out="); ok {
			if _, err := fmt.Sscan(after, &note); err != nil {
				t.Error(err)
			}
		}
		if got+note != written || note == 0 || len(to.Bytes()) > 3<<20 {
			t.Errorf("got %d lines, %d told as left out, %d bytes, want %d lines in all and at most 3 MiB", got, note, to.Len(), written)
		}
	})
}
