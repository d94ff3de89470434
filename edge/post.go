package edge

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// isPublish says whether a request is for a publish: /publish/ and a topic.
func isPublish(r *http.Request) bool {
	return len(r.URL.Path) > len("/publish/") && strings.HasPrefix(r.URL.Path, "/publish/")
}

// post answers POST /publish/{topic}?…, whose body is the record's value as it is. It is called by the HTTP server.
func (s *Server) post(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	answer := func(no *refused) {
		s.postEnded(r, began, no)
		no.serve(w)
	}
	refuse := func(no *refused) { // it was not tried
		s.metrics.measures.publishes[outcomeRefused].observe(0)
		answer(no)
	}
	if no := s.judgePage(r, http.MethodPost); no != nil {
		answer(no)
		return
	}
	origin := r.Header.Get("Origin")
	op, tombstone, bad := frame.ParsePublishURL(r.URL.Path[len("/publish/"):], r.URL.RawQuery)
	switch {
	case bad != nil:
	case len(r.Header["Content-Encoding"]) > 0:
		bad = frame.Invalid("publish", "", "body", "the value is taken as it is, so it can't have a Content-Encoding")
	case !s.enterPost():
		bad = frame.ErrorOf("publish", "", hub.ErrDraining)
	}
	if bad != nil {
		refuse(refusedBy(bad, origin))
		return
	}
	defer s.exitPost()
	if err := s.posters.admit(r.RemoteAddr, s.now(), s.cfg.PublishRate); err != nil {
		refuse(refusedBy(s.refusalOf("", "", err), origin))
		return
	}
	body, no := s.readBody(w, r)
	defer s.input.swap(cap(body), 0)
	switch {
	case no != nil:
		refuse(no)
		return
	case tombstone && len(body) > 0:
		refuse(refusedBy(frame.Invalid("publish", "", "body", "a tombstone has none"), origin))
		return
	case !tombstone:
		op.Record.Value = body
	}
	// The HTTP server has set one when the request began to come.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(s.cfg.PublishTimeout + answerTimeout))
	published, e := s.tracedPost(r, op)
	if e != nil {
		answer(refusedBy(e, origin))
		return
	}
	h := crossOriginHeader(origin)
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	answer(&refused{http.StatusOK, string(frame.AppendPublished(nil, "", published)), h})
}

// readBody reads a body up to MaxMessageBytes. It is charged for, by its capacity.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) (body []byte, _ *refused) {
	refuse := func(status int, e *frame.Error) *refused {
		w.Header().Set("Connection", "close") // the rest of the body is not read
		no := refusedBy(e, r.Header.Get("Origin"))
		no.status = status
		return no
	}
	tooLarge := frame.ErrorOf("publish", "", &hub.LimitError{Limit: "bytes of a body", Value: s.cfg.MaxMessageBytes})
	if r.ContentLength > s.cfg.MaxMessageBytes {
		return nil, refuse(http.StatusRequestEntityTooLarge, tooLarge)
	}
	body = []byte{}
	for {
		if len(body) == cap(body) {
			size := max(2*cap(body), freeInput)
			if n := r.ContentLength; n >= 0 {
				size = int(min(n+1, int64(size))) // a read more finds the end; what was announced need not come
			}
			size = int(min(int64(size), s.cfg.MaxMessageBytes+1))
			if !s.input.swap(cap(body), size) {
				return body, refuse(http.StatusTooManyRequests, frame.ErrorOf("publish", "", &hub.LimitError{Limit: "bytes held of requests", Value: s.cfg.MaxInputBytes, Retry: time.Second}))
			}
			body = append(make([]byte, 0, size), body...)
		}
		n, err := r.Body.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case int64(len(body)) > s.cfg.MaxMessageBytes:
			return body, refuse(http.StatusRequestEntityTooLarge, tooLarge)
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			e := frame.Invalid("publish", "", "body", "ended early")
			status := http.StatusBadRequest
			if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
				e, status = frame.ErrorOf("publish", "", context.DeadlineExceeded), http.StatusRequestTimeout
			}
			return body, refuse(status, e)
		}
	}
}

// posted is what became of a record.
type posted struct {
	results []*tailracev1.PublishResult
	err     error
}

// postRecord publishes one record in its turn. ctx is the server's, perhaps with a span. It returns where the record is, or why it is not, or may not be, in the log.
func (s *Server) postRecord(ctx context.Context, op *frame.Publish) (*tailracev1.Published, *frame.Error) {
	began := time.Now()
	by := began.Add(s.cfg.PublishTimeout)
	done := make(chan posted, 1)
	s.publishes.run(op.Topic, by, func() {
		ctx, cancel := context.WithDeadline(ctx, by)
		defer cancel()
		var p posted
		if err := s.allow(ctx, access.Request{Action: access.ActionPublish, Topic: op.Topic}); err != nil {
			p.err = denied{err}
		} else {
			p.results, p.err = s.publisher.Publish(ctx, op.Topic, []*tailracev1.PublishRecord{op.Record})
		}
		done <- p
	}, func() { done <- posted{err: hub.ErrUnavailable} })
	p := <-done
	s.metrics.measures.publishes[outcomeOf(firstOf(p.results), p.err)].observe(time.Since(began).Seconds())
	if p.err != nil {
		return nil, s.refusalOf("", "", p.err)
	}
	result := firstOf(p.results)
	if at := result.GetPublished(); at != nil {
		return at, nil
	}
	return nil, frame.ErrorOfFailure("", result.GetFailure())
}

// firstOf is the result of the one record that was published.
func firstOf(results []*tailracev1.PublishResult) *tailracev1.PublishResult {
	if len(results) > 0 {
		return results[0]
	}
	return missingResult()
}

// enterPost counts in a publish by request, so that a drain waits for its answer; false if none is welcome. exitPost must follow.
func (s *Server) enterPost() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped || s.draining.Load() {
		return false
	}
	s.posts++
	return true
}

func (s *Server) exitPost() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.posts--
	s.settled.Broadcast()
	s.tellEmpty()
}

// awaitPosts waits for the last publish by request; none follows.
func (s *Server) awaitPosts() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.posts > 0 {
		s.settled.Wait()
	}
}
