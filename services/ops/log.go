package ops

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Bounds of a Log.
const (
	logRoom  = 1 << 20 // bytes that wait to be written; as many may be under way
	logGrace = time.Second
)

// Log is the way of a process's log to standard error, without waiting for it. A terminal that is held, or a collector of logs that hangs, would
// otherwise stop whoever logs: handshakes, sessions, and the drain itself. Its methods may be called concurrently.
type Log struct {
	to    io.Writer
	ended chan struct{} // closed when all was written

	mu     sync.Mutex
	some   *sync.Cond // there is something to write, or the end
	lines  []byte
	lost   int // lines left out since the last that was taken
	closed bool
}

// NewLog returns a Log that writes to to, in a goroutine that Close ends.
func NewLog(to io.Writer) *Log {
	l := &Log{to: to, ended: make(chan struct{})}
	l.some = sync.NewCond(&l.mu)
	go l.run()
	return l
}

// Write takes a copy of line, which is a whole line or several, and never waits. Where 1 MiB waits already the line is left out, and a line of the log
// says later how many were. It never fails.
func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines)+len(line) > logRoom {
		l.lost++
		return len(line), nil
	}
	l.note()
	l.lines = append(l.lines, line...)
	l.some.Signal()
	return len(line), nil
}

// note says how many lines were left out. mu is held.
func (l *Log) note() {
	if l.lost > 0 {
		l.lines = fmt.Appendf(l.lines, "time=%s level=WARN msg=\"lines were left out here: the log was not taken\" lines=%d\n",
			time.Now().Format("2006-01-02T15:04:05.000Z07:00"), l.lost)
		l.lost = 0
	}
}

// Close returns when all was written, and after a second at the latest. What is written later is written as before, or lost at the end of the
// process. Call it once.
func (l *Log) Close() {
	l.mu.Lock()
	l.closed = true
	l.note()
	l.some.Signal()
	l.mu.Unlock()
	select {
	case <-l.ended:
	case <-time.After(logGrace):
	}
}

func (l *Log) run() {
	defer close(l.ended)
	var lines []byte
	for {
		l.mu.Lock()
		for len(l.lines) == 0 && !l.closed {
			l.some.Wait()
		}
		lines, l.lines = l.lines, lines[:0]
		l.mu.Unlock()
		if len(lines) == 0 {
			return // closed
		}
		_, _ = l.to.Write(lines) // there is nowhere to say that the log cannot be written
	}
}
