package edge

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/hub"
)

// Clients of a stream that broke come back after a random time between these, so that they don't come all at once. (A goodbye tells another.)
const (
	minRetry = time.Second
	maxRetry = 4 * time.Second
)

// events is what a session has that is a stream of events (text/event-stream) and no socket. It has one subscription, that of its URL, and
// takes no input. The answer's head is written once it is known how the subscription was resolved: EventSource gives up for good at any status
// but 200, and comes back by itself after 200. So what passes is told in the stream, and only what stays is a status.
type events struct {
	origin  string // of the page that may read it; empty: not said
	resumed bool   // the client gave positions
	headed  bool   // the head is written, or queued
	refused bool   // by a status
	topicID string // of the log that the client was told of last
}

// appendStreamHead appends the head of the answer. The body ends with the connection.
func appendStreamHead(dst []byte, origin string) []byte {
	dst = append(dst, "HTTP/1.1 200 OK\r\n"...)
	for name, values := range streamHeader(origin) {
		for _, v := range values {
			dst = append(append(append(append(dst, name...), ": "...), v...), "\r\n"...)
		}
	}
	return append(dst, "Connection: close\r\n\r\n"...)
}

// streamHeader are the headers of a stream. no-transform keeps proxies from compressing it, X-Accel-Buffering nginx from gathering it.
func streamHeader(origin string) http.Header {
	h := crossOriginHeader(origin)
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	return h
}

// appendRetry appends when the client is to come back, should the stream break.
func appendRetry(dst []byte, from, to time.Duration) []byte {
	wait := from + rand.N(to-from)
	return append(strconv.AppendInt(append(dst, "retry: "...), wait.Milliseconds(), 10), "\n"...)
}

// head queues the head of the answer, once.
func (w *worker) head(s *session) {
	if s.events.headed {
		return
	}
	s.events.headed = true
	s.ctl = appendStreamHead(s.ctl, s.events.origin)
	s.ctl = append(appendRetry(s.ctl, minRetry, maxRetry), '\n')
	w.touch(s)
}

// event queues an event with w.msg as its data. id may be empty.
func (w *worker) event(s *session, name string, id []byte) {
	w.head(s)
	s.ctl = frame.AppendEvent(s.ctl, name, id, w.msg)
	w.touch(s)
}

// beginEvents begins a stream whose subscription has started. The event has an id, so that a client which is cut off before the first record
// resumes all the same, unless the client gave positions: then a gap may come first, and who did not get that is to ask again from there.
func (w *worker) beginEvents(sb *subscription, topic string) bool {
	s, started := sb.s, sb.sub.Started()
	if n := len(started.Partitions); n > frame.MaxEventPartitions {
		w.over(sb, &hub.InvalidError{Field: "topic", Problem: fmt.Sprintf(
			"%d partitions are more than the id of an event can tell, which is %d: ask for some of them by partition, or by key, or use a WebSocket", n, frame.MaxEventPartitions)})
		return false
	}
	s.events.topicID = started.TopicID
	w.msg = frame.AppendStarted(w.msg[:0], sb.id, topic, started)
	var id []byte
	if !s.events.resumed {
		at := frame.EventID{TopicID: started.TopicID, Positions: make([]hub.Position, len(started.Partitions))}
		for i, p := range started.Partitions {
			at.Positions[i] = hub.Position{Partition: p.Partition, Offset: p.Start, Epoch: -1}
		}
		id = frame.AppendEventID(nil, &at)
	}
	w.event(s, "started", id)
	return true
}

// over ends a stream whose subscription has ended with err, io.EOF where it has reached what it was to reach.
func (w *worker) over(sb *subscription, err error) {
	s := sb.s
	if errors.Is(err, io.EOF) {
		w.msg = frame.AppendUnsubscribed(w.msg[:0], sb.id, "until")
		w.event(s, "unsubscribed", nil)
		w.end(s, &endSubscription, "until")
		return
	}
	e := w.errorOf(sb, err)
	r := endOfEvents(e, err)
	w.msg = frame.AppendError(w.msg[:0], e)
	if !s.events.headed && !r.comeBack() {
		w.refuseEvents(s, e)
	} else {
		w.event(s, "error", nil)
	}
	cause := err.Error()
	if e.Code == "unavailable" {
		cause = e.Message
	}
	w.end(s, r, cause)
}

// endOfEvents is why a stream ends whose subscription has ended with an error.
func endOfEvents(e *frame.Error, err error) *reason {
	_, lagged := errors.AsType[*hub.LaggedError](err)
	switch {
	case errors.Is(err, hub.ErrDraining):
		return &endDraining
	case lagged:
		return &endLagged
	case errors.Is(err, hub.ErrUnknownTopic):
		return &endUnknownTopic
	case e.Code == "permission_denied":
		return &endForbidden
	case e.Code == "internal":
		return &endInternal
	case e.Code == "resource_exhausted" && e.Retryable:
		return &endOverLimit
	case e.Retryable:
		return &endUpstreamGone
	}
	return &endSubscription
}

// refuseEvents answers with a status, in the place of a stream.
func (w *worker) refuseEvents(s *session, e *frame.Error) {
	s.events.headed, s.events.refused = true, true
	no := refusedBy(e, s.events.origin)
	var answer appender
	_ = no.write(&answer) // it is memory
	s.ctl = append(s.ctl, answer...)
	w.touch(s)
}

// appender is a slice to write to.
type appender []byte

func (a *appender) Write(p []byte) (int, error) {
	*a = append(*a, p...)
	return len(p), nil
}

// endEvents says goodbye, with an id that says so where the client is to stay away: EventSource comes back to each stream that ends, and is
// told then.
func (w *worker) endEvents(s *session, r *reason) {
	if r.comeBack() {
		w.head(s)
		s.ctl = appendRetry(s.ctl, 0, comeBackSpread)
		w.msg = frame.AppendGoodbye(w.msg[:0], int(r.Code), r.Text, 0, comeBackSpread)
		w.event(s, "goodbye", nil)
		return
	}
	if w.touch(s); s.events.refused {
		return
	}
	w.msg = frame.AppendGoodbye(w.msg[:0], int(r.Code), r.Text, 0, -1)
	w.event(s, "goodbye", frame.AppendEventID(nil, &frame.EventID{Done: true}))
}

// beatEvents tells a stream what a heartbeat has to tell, or at least that it is alive.
func (w *worker) beatEvents(s *session, told bool) {
	if !s.events.headed {
		return
	}
	if !told {
		s.ctl = frame.AppendEventComment(s.ctl)
		w.touch(s)
		return
	}
	var id []byte
	if b := w.beat.Subscriptions; len(b) == 1 && len(b[0].Positions) > 0 {
		w.stand(&w.place, s.subs[0])
		id = w.place.appendID(nil)
	}
	w.msg = frame.AppendHeartbeat(w.msg[:0], &w.beat)
	w.event(s, "heartbeat", id)
}
