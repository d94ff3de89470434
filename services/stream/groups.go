package stream

import (
	"context"
	"encoding/base64"
	"slices"
	"strings"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
)

// groupService is GroupService.
type groupService struct{ server *Server }

// may refuses what is not for this caller, or this service.
func (h *groupService) may(ctx context.Context, r access.Request) error {
	if !h.server.cfg.Groups.Allows(r.Group) {
		return group.ErrNotAllowed
	}
	if err := access.Allow(ctx, r); err != nil {
		return &deniedError{err}
	}
	return nil
}

// admin returns who is asked, if this build has it.
func (h *groupService) admin() (GroupAdmin, error) {
	if h.server.cfg.Groups == nil || h.server.cfg.GroupAdmin == nil {
		return nil, hub.ErrUnimplemented
	}
	return h.server.cfg.GroupAdmin, nil
}

// ListGroups lists the groups that the caller may see. Pages are as those of ListTopics.
func (h *groupService) ListGroups(ctx context.Context, m *tailracev1.ListGroupsRequest) (*tailracev1.ListGroupsResponse, error) {
	admin, err := h.admin()
	if err != nil {
		return nil, err
	}
	c := &checker{}
	c.require(m.GetPageSize() >= 0, "page_size", "is negative")
	after, err := base64.RawURLEncoding.DecodeString(m.GetPageToken())
	c.require(err == nil, "page_token", "is not a token of this service")
	if err := c.found.or(nil); err != nil {
		return nil, err
	}
	size := min(int(m.GetPageSize()), maxPageSize)
	if size == 0 {
		size = defaultPageSize
	}
	all, err := admin.ListGroups(ctx)
	if err != nil {
		return nil, err
	}
	from, found := slices.BinarySearchFunc(all, string(after), func(g *tailracev1.GroupSummary, name string) int {
		return strings.Compare(g.GetGroup(), name)
	})
	if found {
		from++
	}
	page := &tailracev1.ListGroupsResponse{}
	for _, g := range all[from:] {
		if h.may(ctx, access.Request{Action: access.ActionDescribe, Group: g.GetGroup()}) != nil {
			continue
		}
		if len(page.Groups) == size {
			page.NextPageToken = base64.RawURLEncoding.EncodeToString([]byte(page.Groups[size-1].GetGroup()))
			break
		}
		page.Groups = append(page.Groups, g)
	}
	return page, nil
}

// GetGroup describes one group. Topics that the caller may not see are left out.
func (h *groupService) GetGroup(ctx context.Context, m *tailracev1.GetGroupRequest) (*tailracev1.GetGroupResponse, error) {
	admin, err := h.admin()
	if err != nil {
		return nil, err
	}
	c := &checker{}
	c.name("group", m.GetGroup())
	if err := c.found.or(nil); err != nil {
		return nil, err
	}
	if err := h.may(ctx, access.Request{Action: access.ActionDescribe, Group: m.GetGroup()}); err != nil {
		return nil, err
	}
	g, err := admin.GetGroup(ctx, m.GetGroup())
	if err != nil {
		return nil, err
	}
	hidden := map[string]bool{}
	for _, p := range g.GetPartitions() {
		if _, known := hidden[p.GetTopic()]; !known {
			hidden[p.GetTopic()] = h.may(ctx, access.Request{Action: access.ActionDescribe, Group: m.GetGroup(), Topic: p.GetTopic()}) != nil
		}
	}
	load := h.server.cfg.Groups.Load(m.GetGroup())
	g.Partitions = slices.DeleteFunc(g.Partitions, func(p *tailracev1.GroupPartition) bool { return hidden[p.GetTopic()] })
	for _, p := range g.GetPartitions() {
		p.InFlight = int32(load.InFlight[group.Partition{Topic: p.GetTopic(), Partition: p.GetPartition()}]) //nolint:gosec // far below 2^31
	}
	for _, member := range g.GetMembers() {
		member.Partitions = slices.DeleteFunc(member.Partitions, func(p *tailracev1.TopicPartition) bool { return hidden[p.GetTopic()] })
		if member.GetProcess() == admin.GroupMember() {
			member.Workers = int32(load.Workers) //nolint:gosec // at most MaxWorkers
		}
	}
	return &tailracev1.GetGroupResponse{Group: g}, nil
}

// ResetOffsets moves a group's committed offsets.
func (h *groupService) ResetOffsets(ctx context.Context, m *tailracev1.ResetOffsetsRequest) (*tailracev1.ResetOffsetsResponse, error) {
	admin, err := h.admin()
	if err != nil {
		return nil, err
	}
	callFrom(ctx).topic = m.GetTopic()
	if err := parseReset(m); err != nil {
		return nil, err
	}
	if err := h.may(ctx, access.Request{Action: access.ActionAdmin, Group: m.GetGroup(), Topic: m.GetTopic()}); err != nil {
		return nil, err
	}
	partitions, err := admin.ResetOffsets(ctx, m)
	if err != nil {
		return nil, err
	}
	return &tailracev1.ResetOffsetsResponse{Partitions: partitions}, nil
}

// RedriveDeadLetters publishes dead letters to where they came from: with the caller's right to publish there.
func (h *groupService) RedriveDeadLetters(ctx context.Context, m *tailracev1.RedriveDeadLettersRequest) (*tailracev1.RedriveDeadLettersResponse, error) {
	admin, err := h.admin()
	if err != nil {
		return nil, err
	}
	callFrom(ctx).topic = m.GetDeadLetterTopic()
	c := &checker{}
	c.require(m.GetDeadLetterTopic() != "", "dead_letter_topic", "is required")
	c.name("group", m.GetGroup())
	c.positions("positions", m.GetPositions())
	c.require(m.GetMaxRecords() >= 0, "max_records", "is negative")
	if err := c.found.or(nil); err != nil {
		return nil, err
	}
	if err := h.may(ctx, access.Request{Action: access.ActionAdmin, Group: m.GetGroup(), Topic: m.GetDeadLetterTopic()}); err != nil {
		return nil, err
	}
	return admin.RedriveDeadLetters(ctx, m, func(topic string) error {
		return h.may(ctx, access.Request{Action: access.ActionPublish, Group: m.GetGroup(), Topic: topic})
	})
}

// name requires the name of a group.
func (c *checker) name(field, name string) {
	problem := hub.GroupProblem(name)
	c.require(problem == "", field, "%s", problem)
}

func parseReset(m *tailracev1.ResetOffsetsRequest) error {
	c := &checker{}
	c.name("group", m.GetGroup())
	c.require(m.GetTopic() != "", "topic", "is required")
	c.partitions("partitions", m.GetPartitions())
	switch to := m.GetTo().(type) {
	case *tailracev1.ResetOffsetsRequest_Earliest:
		c.require(to.Earliest, "earliest", "must be true")
	case *tailracev1.ResetOffsetsRequest_Latest:
		c.require(to.Latest, "latest", "must be true")
	case *tailracev1.ResetOffsetsRequest_Time:
		c.require(to.Time.IsValid(), "time", "is not a valid time")
	case *tailracev1.ResetOffsetsRequest_Positions:
		c.require(len(to.Positions.GetPositions()) > 0, "positions.positions", "is empty")
		c.positions("positions.positions", to.Positions.GetPositions())
		c.require(len(m.GetPartitions()) == 0, "partitions", "are those of positions")
	default:
		c.require(false, "to", "is required: earliest, latest, time or positions")
	}
	return c.found.or(nil)
}
