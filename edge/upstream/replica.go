package upstream

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"tailrace.dev/tailrace/edge/wire"
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
)

const (
	// receiveBuffer bounds what one unread stream holds. The connection has no bound of its own: a few unread streams would stall all others.
	receiveBuffer = 512 << 10
	probeTimeout  = 2 * time.Second
	// probeFaster is how much more often a service that does not answer is asked.
	probeFaster = 8
	// serving is HealthCheckResponse.status SERVING (gRPC Health Checking Protocol).
	serving = 1
)

// replica is one service.
type replica struct {
	address string
	http    *http.Client

	// subscribe receives the wire-identical shadow: records come as bytes.
	subscribe *connect.Client[tailracev1.SubscribeRequest, wirev1.SubscribeResponse]
	publish   *connect.Client[tailracev1.PublishRequest, tailracev1.PublishResponse]
	consume   *connect.Client[tailracev1.ConsumeRequest, wirev1.ConsumeResponse]
	pipeline  *connect.Client[tailracev1.PublishStreamRequest, tailracev1.PublishStreamResponse]
	topics    *connect.Client[tailracev1.ListTopicsRequest, tailracev1.ListTopicsResponse]
	topic     *connect.Client[tailracev1.GetTopicRequest, tailracev1.GetTopicResponse]
	groups    *connect.Client[tailracev1.ListGroupsRequest, tailracev1.ListGroupsResponse]
	group     *connect.Client[tailracev1.GetGroupRequest, tailracev1.GetGroupResponse]
	// health asks grpc.health.v1.Health for the whole process. An empty message is a request for that; of the answer, only the number of
	// its one field is needed.
	health *connect.Client[emptypb.Empty, emptypb.Empty]

	up      atomic.Bool   // written by watch alone, once that runs
	suspect chan struct{} // one slot: a call failed, look at once; never closed
}

func newReplica(address string, cfg *Config) *replica {
	protocols := new(http.Protocols)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{
		DialContext:         (&net.Dialer{Timeout: cfg.DialTimeout}).DialContext,
		TLSHandshakeTimeout: cfg.DialTimeout,
		Protocols:           protocols,
		HTTP2: &http.HTTP2Config{
			MaxReceiveBufferPerStream: receiveBuffer,
			SendPingTimeout:           cfg.PingTimeout,
			PingTimeout:               cfg.PingTimeout,
		},
	}}
	// No gzip between service and edge: it costs ten times the send.
	options := connect.WithClientOptions(connect.WithGRPC(), connect.WithAcceptCompression("gzip", nil, nil))
	r := &replica{
		address:   address,
		http:      client,
		subscribe: connect.NewClient[tailracev1.SubscribeRequest, wirev1.SubscribeResponse](client, address+tailracev1connect.StreamServiceSubscribeProcedure, options),
		publish:   connect.NewClient[tailracev1.PublishRequest, tailracev1.PublishResponse](client, address+tailracev1connect.StreamServicePublishProcedure, options),
		consume:   connect.NewClient[tailracev1.ConsumeRequest, wirev1.ConsumeResponse](client, address+tailracev1connect.StreamServiceConsumeProcedure, options),
		pipeline:  connect.NewClient[tailracev1.PublishStreamRequest, tailracev1.PublishStreamResponse](client, address+tailracev1connect.StreamServicePublishStreamProcedure, options),
		topics:    connect.NewClient[tailracev1.ListTopicsRequest, tailracev1.ListTopicsResponse](client, address+tailracev1connect.TopicServiceListTopicsProcedure, options),
		topic:     connect.NewClient[tailracev1.GetTopicRequest, tailracev1.GetTopicResponse](client, address+tailracev1connect.TopicServiceGetTopicProcedure, options),
		groups:    connect.NewClient[tailracev1.ListGroupsRequest, tailracev1.ListGroupsResponse](client, address+tailracev1connect.GroupServiceListGroupsProcedure, options),
		group:     connect.NewClient[tailracev1.GetGroupRequest, tailracev1.GetGroupResponse](client, address+tailracev1connect.GroupServiceGetGroupProcedure, options),
		health:    connect.NewClient[emptypb.Empty, emptypb.Empty](client, address+"/grpc.health.v1.Health/Check", options),
		suspect:   make(chan struct{}, 1),
	}
	return r
}

// failed says that a call failed without an answer of the service.
func (r *replica) failed() {
	select {
	case r.suspect <- struct{}{}:
	default:
	}
}

// watch asks for the replica's health until ctx ends.
func (s *Source) watch(ctx context.Context, r *replica) {
	up := s.metrics.up.WithLabelValues(r.address)
	for first := true; ; first = false {
		err := r.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		was := r.up.Swap(err == nil)
		wait := s.cfg.ProbeEvery
		if err != nil {
			up.Set(0)
			wait /= probeFaster
			if was || first {
				s.cfg.Logger.WarnContext(ctx, "service does not answer", slog.String("upstream", r.address), slog.Any("error", err),
					slog.String("advice", "clients wait, or use another service; see that it runs and that -upstream has its address"))
			}
		} else {
			up.Set(1)
			s.reachedOnce.Do(func() { close(s.reached) })
			if !was {
				s.cfg.Logger.InfoContext(ctx, "service answers", slog.String("upstream", r.address))
			}
		}
		timer := time.NewTimer(wait + rand.N(wait/4+1)) //nolint:gosec // spreads load, guards nothing
		select {
		case <-timer.C:
		case <-r.suspect:
			timer.Stop()
			if s.pause(ctx, 1) != nil { // many calls fail at once
				return
			}
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// probe returns nil if the service says that it is serving.
func (r *replica) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	answer, err := r.health.CallUnary(ctx, connect.NewRequest(&emptypb.Empty{}))
	if err != nil {
		return err
	}
	var status wire.Field
	if status.Next(answer.Msg.ProtoReflect().GetUnknown()) < 0 || status.Type != protowire.VarintType || status.N != serving {
		return errNotServing
	}
	return nil
}
