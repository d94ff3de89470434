package stream

import (
	"context"
	"net/http"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
)

// Judged is an error as a caller gets it, and what the table says of it.
type Judged struct {
	Err    *connect.Error
	Reason string
	Client bool
}

func Judge(err error, topic string) Judged {
	v := judge(err)
	return Judged{Err: toConnect(v, topic), Reason: v.reason, Client: v.client}
}

// OwnErrors are the errors that this package adds to the hub's.
func OwnErrors(inner error) []error {
	return []error{errStalled, errGone, &deniedError{inner}, violations{{Field: "topic", Problem: "is required"}}}
}

// SetAllow replaces access.Allow where a Consume asks.
func SetAllow(c *Config, allow func(context.Context, access.Request) error) { c.allow = allow }

func Shadow(m proto.Message) (*wirev1.SubscribeResponse, error) {
	response := &wirev1.SubscribeResponse{}
	return response, shadow(response, &tailracev1.SubscribeResponse{}, m)
}

func JSONCodec() connect.Codec { return &jsonCodec{name: "json"} }

// ParseSubscribe returns what a valid request becomes.
func ParseSubscribe(m *tailracev1.SubscribeRequest) (r hub.Request, heartbeatMillis int64, batchBytes int, err error) {
	s, err := parseSubscribe(m)
	return s.request, s.heartbeat.Milliseconds(), s.batchBytes, err
}

func ParsePublish(m *tailracev1.PublishRequest, bytes int) error { return parsePublish(m, bytes) }

// ServeBench returns the HTTP server with two more procedures beside the service's: /bench/shadow sends what ready makes the way Subscribe
// does, /bench/structs sends generated messages.
func (s *Server) ServeBench(messages func() int, ready []hub.Part, structs *tailracev1.SubscribeResponse) *http.Server {
	options := connect.WithHandlerOptions(connect.WithRequestGate(gate), connect.WithInterceptors(s.observer))
	mux := http.NewServeMux()
	mux.Handle("/bench/shadow", connect.NewServerStreamHandlerSimple("/bench/shadow",
		func(ctx context.Context, _ *tailracev1.SubscribeRequest, out *connect.ServerStream[wirev1.SubscribeResponse]) error {
			c := callFrom(ctx)
			c.quiet = defaultHeartbeat
			r := &reader{
				server: s, call: c, out: out,
				records: s.metrics.records.WithLabelValues("bench"), bytes: s.metrics.bytes.WithLabelValues("bench"),
			}
			for range messages() {
				if err := r.batch(&hub.Batch{Parts: ready}); err != nil {
					return err
				}
			}
			return nil
		}, options))
	mux.Handle("/bench/structs", connect.NewServerStreamHandlerSimple("/bench/structs",
		func(ctx context.Context, _ *tailracev1.SubscribeRequest, out *connect.ServerStream[tailracev1.SubscribeResponse]) error {
			callFrom(ctx).quiet = defaultHeartbeat
			for range messages() {
				if err := out.Send(structs); err != nil {
					return err
				}
			}
			return nil
		}, options))
	server := s.httpServer()
	server.Handler = withCall(mux, &s.cfg, &s.input)
	return server
}
