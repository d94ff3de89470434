package e2e_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
)

// line is a connection over which one consume after another may run.
type line interface {
	begin(group, topic string, ordered bool, timeout time.Duration) error
	hear() (heard, error)
	ack(tags []int64) error
	nack(tag int64, delay time.Duration) error
	// end ends the connection in one of the ways of its kind; silence comes from outside. A hear that is under way returns.
	end(kind string)
	close()
}

// heard is one message of a consume.
type heard struct {
	records []*dealt
	refused []int64
	over    error // the consume is; the connection is not
}

const (
	inFlight = 20
	// manyAttempts: a worker that ends counts against what it held, and none of it may become a dead letter, which would settle what nobody has acknowledged.
	manyAttempts = 1000
)

// textLine is a WebSocket, of either form.
type textLine struct {
	s *session
	n int
}

func (w *textLine) id() string { return fmt.Sprintf("q%d", w.n) }

func (w *textLine) begin(group, topic string, ordered bool, timeout time.Duration) error {
	w.n++
	return w.s.sendJSON(map[string]any{
		"op": "consume", "id": w.id(), "group": group, "topics": []string{topic}, "maxInFlight": inFlight, "maxAttempts": manyAttempts,
		"ackTimeoutMs": timeout.Milliseconds(), "ordering": map[bool]string{true: "key", false: "none"}[ordered],
	})
}

type consumedFrame struct {
	Op, ID, Re, Reason, Message string
	Final, Retryable            bool
	Tags                        []int64
	Records                     []struct {
		Partition int32
		Offset    int64
		Key       *string
		KeyBase64 *string
		Tag       int64
		Attempt   int
	}
}

func (w *textLine) hear() (h heard, err error) {
	text, err := w.s.hear()
	if err != nil {
		return h, err
	}
	var f consumedFrame
	if err := json.Unmarshal(text, &f); err != nil {
		return h, &sessionError{fmt.Errorf("%.200s: %w", text, err)}
	}
	switch {
	case f.Op == "heartbeat" || f.Op == "started" && f.ID == w.id() || f.Op == "goodbye":
	case f.Op == "records" && f.ID == w.id():
		for _, r := range f.Records {
			d := &dealt{at: placeOf{r.Partition, r.Offset}, tag: r.Tag, attempt: r.Attempt}
			switch {
			case r.Key != nil:
				d.key = "k" + *r.Key
			case r.KeyBase64 != nil:
				key, err := base64.StdEncoding.DecodeString(*r.KeyBase64)
				if err != nil {
					return h, &sessionError{err}
				}
				d.key = "k" + string(key)
			}
			h.records = append(h.records, d)
		}
	case f.Op == "error" && f.Reason == "NOT_HELD" && f.Re == "ack" && !f.Final:
		if f.ID == w.id() { // else of a consume before, which was over when the ack came
			h.refused = f.Tags
		}
	case f.Op == "error" && f.Re == "consume" && f.Final && f.Retryable && f.ID == w.id():
		h.over = fmt.Errorf("%s: %s", f.Reason, f.Message)
	default:
		return h, &sessionError{fmt.Errorf("got %.300s", text)}
	}
	return h, nil
}

func (w *textLine) ack(tags []int64) error {
	return w.s.sendJSON(map[string]any{"op": "ack", "id": w.id(), "tags": tags})
}

func (w *textLine) nack(tag int64, delay time.Duration) error {
	return w.s.sendJSON(map[string]any{"op": "nack", "id": w.id(), "tags": []int64{tag}, "delayMs": delay.Milliseconds(), "reason": "at random"})
}

func (w *textLine) end(kind string) {
	switch kind {
	case "close frame":
		_ = w.s.hangUp()
		w.s.within(10 * time.Second)
	case "FIN":
		if tcp, ok := w.s.conn.(*net.TCPConn); ok {
			_ = tcp.CloseWrite()
		}
		w.s.within(10 * time.Second)
	case "RST":
		w.s.abort(true)
	default: // it is silent: nobody reads any more
		w.s.within(0)
	}
}

func (w *textLine) close() { w.s.abort(false) }

// rpcLine is a gRPC stream on a connection of its own.
type rpcLine struct {
	transport *http.Transport
	conn      net.Conn
	stream    *connect.BidiStreamForClientSimple[tailracev1.ConsumeRequest, tailracev1.ConsumeResponse]
	cancel    context.CancelFunc
	used      bool
}

func dialRPC(ctx context.Context, address string, options ...connect.ClientOption) (*rpcLine, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	r := &rpcLine{conn: conn}
	taken := false
	r.transport = &http.Transport{Protocols: new(http.Protocols), DialContext: func(context.Context, string, string) (net.Conn, error) {
		if taken {
			return nil, net.ErrClosed // it is one connection
		}
		taken = true
		return conn, nil
	}}
	r.transport.Protocols.SetUnencryptedHTTP2(true)
	ctx, r.cancel = context.WithCancel(ctx)
	client := tailracev1connect.NewStreamServiceClient(&http.Client{Transport: r.transport}, "http://"+address, append(options, connect.WithGRPC())...)
	if r.stream, err = client.Consume(ctx); err != nil {
		r.close()
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = r.stream.CloseRequest() }) // net/http does not see the end of ctx while the request may still grow
	return r, nil
}

func (r *rpcLine) begin(group, topic string, ordered bool, timeout time.Duration) error {
	if r.used {
		return io.EOF // a stream is one consume
	}
	r.used = true
	start := &tailracev1.ConsumeStart{
		Group: group, Topics: []string{topic}, MaxInFlight: inFlight, MaxAttempts: manyAttempts, AckTimeout: durationpb.New(timeout), Ordering: tailracev1.Ordering_ORDERING_NONE,
	}
	if ordered {
		start.Ordering = tailracev1.Ordering_ORDERING_KEY
	}
	return r.stream.Send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Start{Start: start}})
}

func (r *rpcLine) hear() (h heard, err error) {
	m, err := r.stream.Receive()
	if err != nil {
		return h, err
	}
	switch e := m.GetEvent().(type) {
	case *tailracev1.ConsumeResponse_Deliveries:
		for _, v := range e.Deliveries.GetDeliveries() {
			d := &dealt{at: placeOf{v.GetRecord().GetPartition(), v.GetRecord().GetOffset()}, tag: v.GetTag(), attempt: int(v.GetAttempt())}
			if v.GetRecord().Key != nil {
				d.key = "k" + string(v.GetRecord().GetKey())
			}
			h.records = append(h.records, d)
		}
	case *tailracev1.ConsumeResponse_AckRefused:
		h.refused = e.AckRefused.GetTags()
	case *tailracev1.ConsumeResponse_Started, *tailracev1.ConsumeResponse_Heartbeat:
	default:
		return h, &sessionError{fmt.Errorf("got %v", m)}
	}
	return h, nil
}

func (r *rpcLine) ack(tags []int64) error {
	return r.stream.Send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Ack{Ack: &tailracev1.Ack{Tags: tags}}})
}

func (r *rpcLine) nack(tag int64, delay time.Duration) error {
	return r.stream.Send(&tailracev1.ConsumeRequest{Event: &tailracev1.ConsumeRequest_Nack{Nack: &tailracev1.Nack{
		Tags: []int64{tag}, Delay: durationpb.New(delay), Reason: "at random",
	}}})
}

func (r *rpcLine) end(kind string) {
	switch kind {
	case "half-close":
		_ = r.stream.CloseRequest()
	case "connection reset":
		if tcp, ok := r.conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		r.conn.Close()
	default: // the stream is reset, or it is silent
		r.cancel()
	}
}

func (r *rpcLine) close() {
	r.cancel()
	r.transport.CloseIdleConnections()
	r.conn.Close()
}

// isOurs says that an error is a mistake of the product, and not the end of a connection or of a service.
func isOurs(err error) bool {
	if isBreach(err) {
		return true
	}
	switch connect.CodeOf(err) {
	case connect.CodeInvalidArgument, connect.CodeFailedPrecondition, connect.CodeNotFound, connect.CodePermissionDenied, connect.CodeUnimplemented:
		return connect.IsWireError(err)
	}
	closed, ok := errors.AsType[*closeError](err)
	return ok && closed.code != 1000 && closed.code != 4004
}
