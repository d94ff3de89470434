package edge

import (
	"time"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
)

// Of how much time messages, and publishes, may come at once.
const (
	messageBurst = 10 * time.Second
	publishBurst = 2 * time.Second
)

// allowance is what is left of a rate, as the Server.now up to which what came is paid for. The zero allowance is whole.
type allowance int64

// spend takes one of so many a second, after a burst. It takes nothing where it has to wait first.
func (a *allowance) spend(now int64, perSecond int, burst time.Duration) (wait time.Duration) {
	next := max(int64(*a), now) + int64(time.Second)/int64(perSecond)
	if wait = time.Duration(next-now) - burst; wait > 0 {
		return wait
	}
	*a = allowance(next)
	return 0
}

// mayAsk says whether a session may have another message answered now.
func (w *worker) mayAsk(s *session) bool {
	return s.asks.spend(w.srv.now(), w.srv.cfg.MaxMessageRate, messageBurst) == 0
}

// askedBy is the request that a message makes, and its id; "" for what is counted elsewhere, or is no message.
func askedBy(what any) (re, id string) {
	switch what := what.(type) {
	case *frame.Subscribe:
		return "subscribe", what.ID
	case *frame.Unsubscribe:
		return "unsubscribe", what.ID
	case *frame.Consume:
		return "consume", what.ID
	case *frame.Ping:
		return "frame", what.ID
	case *frame.Unbuilt:
		return what.Op, what.ID
	case *frame.Error:
		return what.Re, what.ID
	}
	return "", ""
}

// tooMany refuses a message for its number.
func (w *worker) tooMany(s *session, re, id string) {
	rate := w.srv.cfg.MaxMessageRate
	w.refuseOp(s, frame.ErrorOf(re, id, &hub.LimitError{
		Limit: "messages per second of a session", Value: int64(rate), Retry: max(time.Second/time.Duration(rate), 100*time.Millisecond),
	}))
}

// overdue says why a session is to be ended that does nothing wrong by itself: the service is away, it is old, or a message takes too long.
func (w *worker) overdue(s *session, now int64) (*reason, int64) {
	cfg := &w.srv.cfg
	// Sessions that began together, or lost the service together, are not ended together.
	late := func(most time.Duration) int64 { return int64(s.share * float32(min(most, comeBackSpread))) }
	if grace := cfg.UpstreamGrace; grace > 0 && !w.upstream {
		if away := now - max(w.downSince, s.started); away > int64(grace)+late(grace) {
			return &endUpstreamGone, away
		}
	}
	if age := cfg.MaxConnectionAge; age > 0 {
		if lived := now - s.started; lived > int64(age)-int64(s.share*float32(age/10)) {
			return &endAge, lived
		}
	}
	if begun := s.begun.Load(); begun != 0 && !s.paused.Load() && now-begun > int64(cfg.MessageTimeout) {
		return &endSlowMessage, now - begun
	}
	return nil, 0
}
