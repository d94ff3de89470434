package kafka

import (
	"log/slog"
	"sync"
)

// Health is the state of the connection to Kafka.
type Health struct {
	Reached bool   // it has answered at least once
	Up      bool   // it answered last time
	Error   string // why it did not
}

// health gathers what the roles of a Client learn.
type health struct {
	log     *slog.Logger
	reached chan struct{}

	mu    sync.Mutex
	state Health
}

func newHealth(log *slog.Logger) *health { return &health{log: log, reached: make(chan struct{})} }

func (h *health) up() {
	h.mu.Lock()
	was := h.state
	h.state = Health{Reached: true, Up: true}
	h.mu.Unlock()
	if !was.Reached {
		close(h.reached)
	}
	if !was.Up {
		h.log.Info("Kafka answers")
	}
}

func (h *health) down(err error) {
	h.mu.Lock()
	was := h.state
	h.state = Health{Reached: was.Reached, Error: err.Error()}
	h.mu.Unlock()
	if was.Up || was.Error == "" {
		h.log.Warn("Kafka does not answer", "error", err)
	}
}

func (h *health) get() Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}
