package stream

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/access"
)

// Bounds of the HTTP server.
const (
	headerTimeout        = 10 * time.Second
	idleTimeout          = 3 * time.Minute
	maxStreams           = 10_000 // on one connection: an edge has one for each partition it follows
	streamReceiveBuffer  = 256 << 10
	maxHeaderBytes       = 64 << 10
	compressMinBytes     = 1 << 10
	plumbingDrainTimeout = 500 * time.Millisecond
)

// Server serves StreamService, TopicService, GroupService, health and reflection.
type Server struct {
	cfg      Config
	metrics  *metrics
	observer *observer
	buffers  buffers
	input    input
	health   *grpchealth.StaticChecker
	handler  http.Handler

	// drained ends health watches and reflection streams, which know of no drain. Closed once, by Run.
	drained chan struct{}
	once    sync.Once
	// draining ends streams of publishes, behind their last results. Closed once, by Run.
	draining chan struct{}
	streams  atomic.Uint64 // of publishes, so far
}

// New returns an idle Server; its Handler works at once, Run listens.
func New(cfg Config) *Server {
	s := &Server{cfg: cfg.withDefaults(), drained: make(chan struct{}), draining: make(chan struct{})}
	s.input.max = s.cfg.MaxInputBytes
	s.metrics = newMetrics(cfg.Registerer, &s.input)
	s.observer = &observer{logger: cfg.Logger, metrics: s.metrics}
	services := []string{
		tailracev1connect.StreamServiceName, tailracev1connect.TopicServiceName, tailracev1connect.GroupServiceName,
	}
	s.health = grpchealth.NewStaticChecker(services...)
	s.handler = access.RefusePages(withCall(s.mux(services), &s.cfg, &s.input))
	return s
}

func (s *Server) mux(services []string) http.Handler {
	options := connect.WithHandlerOptions(
		withJSON(),
		connect.WithRequestGate(gate),
		connect.WithInterceptors(s.observer),
		connect.WithRecover(func(ctx context.Context, spec connect.Spec, _ http.Header, problem any) error {
			return s.observer.recovered(ctx, spec, problem)
		}),
		connect.WithReadMaxBytes(maxRequestBytes),
		connect.WithCompressMinBytes(compressMinBytes),
	)
	mux := http.NewServeMux()
	mux.Handle(tailracev1connect.NewStreamServiceHandler(&streamService{server: s}, options))
	mux.Handle(tailracev1connect.NewTopicServiceHandler(&topicService{server: s}, options))
	mux.Handle(tailracev1connect.NewGroupServiceHandler(&groupService{server: s}, options))

	// More specific than the service's pattern, so that they go before the generated ones.
	mux.Handle(tailracev1connect.StreamServiceSubscribeProcedure, connect.NewServerStreamHandlerSimple(
		tailracev1connect.StreamServiceSubscribeProcedure,
		s.subscribe,
		connect.WithSchema(tailracev1.File_tailrace_v1_stream_service_proto.Services().ByName("StreamService").Methods().ByName("Subscribe")),
		options,
	))

	mux.Handle(tailracev1connect.StreamServiceConsumeProcedure, connect.NewBidiStreamHandler(
		tailracev1connect.StreamServiceConsumeProcedure,
		s.consume,
		connect.WithSchema(tailracev1.File_tailrace_v1_stream_service_proto.Services().ByName("StreamService").Methods().ByName("Consume")),
		options,
	))

	plumbing := http.NewServeMux()
	plumbing.Handle(grpchealth.NewHandler(s.health, options))
	reflector := grpcreflect.NewStaticReflector(append(services, grpchealth.HealthV1ServiceName)...)
	plumbing.Handle(grpcreflect.NewHandlerV1(reflector, options))
	plumbing.Handle(grpcreflect.NewHandlerV1Alpha(reflector, options))
	for _, prefix := range []string{"/" + grpchealth.HealthV1ServiceName + "/", "/" + grpcreflect.ReflectV1ServiceName + "/", "/" + grpcreflect.ReflectV1AlphaServiceName + "/"} {
		mux.Handle(prefix, s.whileServing(plumbing))
	}
	return mux
}

// whileServing cancels what is under way when the server drains.
func (s *Server) whileServing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithCancel(r.Context())
		var watch sync.WaitGroup
		watch.Go(func() {
			select {
			case <-s.drained:
				cancel()
			case <-ctx.Done():
			}
		})
		defer watch.Wait()
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (s *Server) endPlumbing() { s.once.Do(func() { close(s.drained) }) }

// Handler returns what is served, for servers of other makings. Run's bounds are its server's, not the handler's.
func (s *Server) Handler() http.Handler { return s.handler }

// Run serves on ln, which it closes, until ctx ends. Then it drains: health says NOT_SERVING, nobody is accepted, the hub ends all
// subscriptions (their streams end with DRAINING), calls under way finish. What has not ended after grace is cut off. The error is nil if
// ctx was the cause.
func (s *Server) Run(ctx context.Context, ln net.Listener, grace time.Duration) error {
	defer s.endPlumbing()
	server := s.httpServer()
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	s.drain(context.WithoutCancel(ctx), server, grace)
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *Server) httpServer() *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           s.handler,
		Protocols:         protocols,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.cfg.Logger.Handler(), slog.LevelDebug),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:      maxStreams,
			MaxReceiveBufferPerStream: streamReceiveBuffer,
			SendPingTimeout:           s.cfg.PingTimeout,
			PingTimeout:               s.cfg.PingTimeout,
		},
	}
}

func (s *Server) drain(ctx context.Context, server *http.Server, grace time.Duration) {
	bounded, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	for _, service := range []string{"", tailracev1connect.StreamServiceName, tailracev1connect.TopicServiceName, tailracev1connect.GroupServiceName} {
		s.health.SetStatus(service, grpchealth.StatusNotServing)
	}
	// Shutdown closes the listener, then calls this: no subscription is ended while new ones are still accepted.
	ended := make(chan struct{})
	server.RegisterOnShutdown(func() {
		defer close(ended)
		close(s.draining)
		s.cfg.Hub.Drain()
		if s.cfg.Groups != nil {
			s.cfg.Groups.Drain()
		}
	})
	// Watchers of health are told first.
	timer := time.AfterFunc(plumbingDrainTimeout, s.endPlumbing)
	defer timer.Stop()
	if err := server.Shutdown(bounded); errors.Is(err, context.DeadlineExceeded) {
		s.cfg.Logger.WarnContext(ctx, "drain: streams were cut off", slog.Duration("grace", grace))
		_ = server.Close() // it closes what is left; there is nobody to tell of an error
	}
	<-ended
}
