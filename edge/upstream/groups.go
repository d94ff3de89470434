package upstream

import (
	"context"
	"errors"
	"sync"
	"time"

	"connectrpc.com/connect"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// Bounds of what is asked about groups.
const (
	groupsPage   = 1000
	maxGroups    = 10_000          // the rest of the list is left out
	groupTimeout = 2 * time.Second // for one group: its coordinator may be away, others' are not
)

// errNoGroup: there is no such group (any more), or services do not tell of it.
var errNoGroup = errors.New("no such group")

// listGroups returns the names of the groups that the services tell of, in order; of more than 10,000 the first.
func (s *Source) listGroups(ctx context.Context) ([]string, error) {
	var all []string
	m := &tailracev1.ListGroupsRequest{PageSize: groupsPage}
	for {
		r := s.next()
		page, err := r.groups.CallUnary(ctx, connect.NewRequest(m))
		if err != nil {
			return nil, s.callError(ctx, r, "", err)
		}
		for _, g := range page.Msg.GetGroups() {
			all = append(all, g.GetGroup())
		}
		m.PageToken = page.Msg.GetNextPageToken()
		if m.GetPageToken() == "" || len(all) >= maxGroups {
			return all, nil
		}
	}
}

// getGroup describes a group. All services that answer are asked, since each knows only what its own workers do; of one that fails, that is missing.
// Errors: errNoGroup, hub.ErrUnavailable, hub.ErrUnimplemented.
func (s *Source) getGroup(ctx context.Context, name string) (*tailracev1.Group, error) {
	ctx, cancel := context.WithTimeout(ctx, groupTimeout)
	defer cancel()
	first := s.next()
	ask := []*replica{first}
	for _, r := range s.replicas {
		if r != first && r.up.Load() {
			ask = append(ask, r)
		}
	}
	answers, errs := make([]*tailracev1.Group, len(ask)), make([]error, len(ask))
	var all sync.WaitGroup
	for i, r := range ask {
		all.Go(func() { answers[i], errs[i] = s.groupOf(ctx, r, name) })
	}
	all.Wait()
	var whole *tailracev1.Group
	for _, g := range answers {
		switch {
		case g == nil:
		case whole == nil:
			whole = g
		default:
			addLoad(whole, g)
		}
	}
	if whole == nil {
		return nil, errs[0]
	}
	return whole, nil
}

func (s *Source) groupOf(ctx context.Context, r *replica, name string) (*tailracev1.Group, error) {
	response, err := r.group.CallUnary(ctx, connect.NewRequest(&tailracev1.GetGroupRequest{Group: name}))
	if err == nil {
		return response.Msg.GetGroup(), nil
	}
	if a := answerOf(err); a.reason == reasonUnknownGroup || a.reason == reasonForbidden {
		return nil, errNoGroup
	}
	return nil, s.callError(ctx, r, "", err)
}

// addLoad adds what another service's workers do.
func addLoad(to, from *tailracev1.Group) {
	type place struct {
		topic     string
		partition int32
	}
	workers, inFlight := map[string]int32{}, map[place]int32{}
	for _, m := range from.GetMembers() {
		workers[m.GetProcess()] += m.GetWorkers()
	}
	for _, p := range from.GetPartitions() {
		inFlight[place{p.GetTopic(), p.GetPartition()}] = p.GetInFlight()
	}
	for _, m := range to.GetMembers() {
		if m.GetWorkers() == 0 {
			m.Workers = workers[m.GetProcess()]
		}
	}
	for _, p := range to.GetPartitions() {
		p.InFlight += inFlight[place{p.GetTopic(), p.GetPartition()}]
	}
}
