package kafka

import (
	"context"
	"log/slog"
	"runtime"
	"time"

	confluent "github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// drainLogs passes librdkafka's log lines on until quit is closed and none waits: a channel that nobody reads would stop its clients.
func drainLogs(ctx context.Context, logs <-chan confluent.LogEvent, quit <-chan struct{}, to *slog.Logger) {
	for {
		select {
		case l := <-logs:
			to.Log(ctx, level(l.Level), "librdkafka", "client", l.Name, "tag", l.Tag, "message", l.Message)
		case <-quit:
			if len(logs) == 0 {
				return
			}
		}
	}
}

// level translates a syslog level. What librdkafka calls an error is mostly a lost connection, which it heals; the roles of the Client say
// what follows from it.
func level(syslog int) slog.Level {
	switch {
	case syslog <= 2:
		return slog.LevelError
	case syslog <= 4:
		return slog.LevelWarn
	case syslog <= 6:
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// closeBound is how long the shutdown waits for one client to close.
const closeBound = 10 * time.Second

// closeBounded runs a client's Close, which has been seen to hang (confluent-kafka-go #65, #189, #757). Past the bound the stacks are
// logged and the shutdown goes on without it.
func closeBounded(log *slog.Logger, what string, do func()) { closeWithin(log, what, closeBound, do) }

func closeWithin(log *slog.Logger, what string, bound time.Duration, do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(bound):
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		log.Error("Kafka client does not close; going on without it", "client", what, "bound", bound, "stacks", string(stacks))
	}
}
