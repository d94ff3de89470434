package kafka

import (
	"errors"
	"log/slog"
	"sync"
	"time"
)

// healthGrace is for how long an answer outweighs questions that failed later.
const healthGrace = 5 * time.Second

// errNoBroker is librdkafka's "2/2 brokers are down", which counts an address of -kafka and the broker found there as two.
var errNoBroker = errors.New("none of its brokers can be reached")

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

	mu       sync.Mutex
	state    Health
	answered time.Time // when it last did
}

func newHealth(log *slog.Logger) *health { return &health{log: log, reached: make(chan struct{})} }

func (h *health) up() {
	h.mu.Lock()
	was := h.state
	h.state = Health{Reached: true, Up: true}
	h.answered = time.Now()
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
		h.log.Warn("Kafka does not answer", "error", err, "advice", "readers and publishers wait; see that -kafka names brokers that run and can be reached from here")
	}
}

// doubt takes a question that failed: one broker of several may be away, and then others have answered meanwhile.
func (h *health) doubt(err error) {
	h.mu.Lock()
	answered := h.answered
	h.mu.Unlock()
	if time.Since(answered) > healthGrace {
		h.down(err)
	}
}

func (h *health) get() Health {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}
