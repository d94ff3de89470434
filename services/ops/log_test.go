package ops_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

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

// closed returns all that a log has after some lines.
func closed(cfg ops.LogConfig, do func(*slog.Logger)) string {
	var out bytes.Buffer
	l := ops.NewLog(&out, cfg)
	do(l.Logger())
	l.Close()
	return out.String()
}

func TestRepeatedLinesAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := closed(ops.LogConfig{}, func(log *slog.Logger) {
			for i := range 1000 {
				log.Info("session refused")
				log.With("a", 1).Info("call failed")
				log.Info("session started")
				log.Info("session ended")
				log.Info(fmt.Sprintf("http: odd request from 192.0.2.%d", i)) //nolint:sloglint // as an HTTP server does
			}
			<-time.After(time.Second)
			for range 20 {
				log.Info("session refused")
			}
		})
		for line, want := range map[string]int{`msg="session refused"`: 110, `msg="call failed"`: 100, `msg="session started"`: 1000, `msg="session ended"`: 1000, "left_out=900": 1, "odd request": 101} {
			if got := strings.Count(text, line); got != want {
				t.Errorf("%s: got %d lines, want %d", line, got, want)
			}
		}
		last := text[strings.LastIndex(strings.TrimSpace(text), "\n")+1:]
		if !strings.Contains(last, `level=WARN msg="lines were left out: they repeated others"`) || !strings.Contains(last, `\"call failed\": 900, \"http: odd request from \": 900, \"session refused\": 10`) {
			t.Errorf("got %s", last)
		}
	})
}

func TestValuesAreCutAndEscaped(t *testing.T) {
	evil := "a\x1b[2J\u202e\u009b\xff\x00\nlevel=ERROR\u2028"
	for _, asJSON := range []bool{false, true} {
		text := closed(ops.LogConfig{JSON: asJSON}, func(log *slog.Logger) {
			log.Info("line", "evil", evil, "error", errors.New(evil), "long", strings.Repeat("é", 5000), "took", 1500*time.Millisecond, "stack", strings.Repeat("s", 5000))
		})
		if strings.Count(text, "\n") != 1 || !utf8.ValidString(text) || strings.ContainsAny(text, "\x1b\u202e\u009b\x00\u2028") || strings.Contains(text, "\nlevel") {
			t.Errorf("JSON %v: got %q", asJSON, text)
		}
		if len(text) > 7000 || !strings.Contains(text, "(10000 bytes)") || !strings.Contains(text, strings.Repeat("s", 5000)) {
			t.Errorf("JSON %v: got %d bytes: %s", asJSON, len(text), text)
		}
		if asJSON {
			var m map[string]any
			if err := json.Unmarshal([]byte(text), &m); err != nil || m["took"] != 1.5 || m["error"] != m["evil"] {
				t.Errorf("got %v, %v", m, err)
			}
		}
	}
}

func TestLogIsTextOnATerminalAndJSONOtherwise(t *testing.T) {
	terminal, screen := terminal(t)
	for _, test := range []struct {
		to     io.Writer
		format string
		json   bool
	}{
		{terminal, "auto", false},
		{terminal, "json", true},
		{terminal, "text", false},
		{&bytes.Buffer{}, "auto", true},
		{&bytes.Buffer{}, "text", false},
	} {
		log, logger := ops.OpenLog(test.to, "warn", test.format)
		logger.Info("not seen")
		logger.Warn("seen")
		log.Close()
		var got string
		if b, ok := test.to.(*bytes.Buffer); ok {
			got = b.String()
		} else {
			line, err := screen.ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			got = line
		}
		if strings.HasPrefix(got, "{") != test.json || !strings.Contains(got, "seen") || strings.Contains(got, "not seen") {
			t.Errorf("%T, %s: got %q", test.to, test.format, got)
		}
	}
}

// terminal opens a pseudo-terminal: what is written to it can be read from its screen.
func terminal(t *testing.T) (*os.File, *bufio.Reader) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { slave.Close() })
	return slave, bufio.NewReader(master)
}
