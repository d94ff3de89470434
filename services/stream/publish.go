package stream

import (
	"context"

	"google.golang.org/protobuf/proto"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/gen/tailrace/v1/tailracev1connect"
	"tailrace.dev/tailrace/services/access"
)

// streamService answers what is mounted through the generated handler: Publish and PublishStream. Subscribe and
// Consume are mounted beside it.
type streamService struct {
	tailracev1connect.UnimplementedStreamServiceHandler
	server *Server
}

// Publish appends records and tells what became of each.
func (h *streamService) Publish(ctx context.Context, m *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error) {
	if h.server.cfg.Tracer != nil {
		return h.tracedPublish(ctx, m)
	}
	return h.publish(ctx, m)
}

func (h *streamService) publish(ctx context.Context, m *tailracev1.PublishRequest) (*tailracev1.PublishResponse, error) {
	c := callFrom(ctx)
	c.topic = m.GetTopic()
	bytes := proto.Size(m)
	if err := parsePublish(m, bytes); err != nil {
		return nil, err
	}
	err := access.Allow(ctx, access.Request{Action: access.ActionPublish, Topic: m.GetTopic()})
	if err != nil {
		return nil, &deniedError{err}
	}
	results, err := h.server.cfg.Publisher.PublishAs(ctx, "peer "+c.peer, m.GetTopic(), m.GetRecords())
	if err != nil {
		return nil, err
	}
	c.records, c.bytes = int64(len(m.GetRecords())), int64(bytes)
	return &tailracev1.PublishResponse{Results: results}, nil
}
