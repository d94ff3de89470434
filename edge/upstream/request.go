package upstream

import (
	"context"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"
)

// ask is a Subscribe that this edge makes: of the trace of the subscription that it serves, if that alone asked for it; else of none.
func ask(ctx context.Context, m *tailracev1.SubscribeRequest) *connect.Request[tailracev1.SubscribeRequest] {
	request := connect.NewRequest(m)
	trace.Ask(ctx, request.Header())
	return request
}

// startMessage is a start as it travels.
func startMessage(s hub.Start) *tailracev1.Start {
	switch s.Kind {
	case hub.Earliest:
		return &tailracev1.Start{At: &tailracev1.Start_Earliest{Earliest: &tailracev1.Earliest{}}}
	case hub.AtPositions:
		positions := &tailracev1.Positions{Missing: missingMessage(s.Missing)}
		for _, p := range s.Positions {
			positions.Positions = append(positions.Positions, positionMessage(p))
		}
		return &tailracev1.Start{At: &tailracev1.Start_Positions{Positions: positions}}
	case hub.AtTime:
		return &tailracev1.Start{At: &tailracev1.Start_Time{Time: timestamppb.New(s.Time)}}
	case hub.Last:
		return &tailracev1.Start{At: &tailracev1.Start_Last{Last: int32(s.Last)}}
	case hub.Latest:
	}
	return &tailracev1.Start{At: &tailracev1.Start_Latest{Latest: &tailracev1.Latest{}}}
}

func positionMessage(p hub.Position) *tailracev1.Position {
	m := &tailracev1.Position{Partition: p.Partition, Offset: p.Offset}
	if p.Epoch >= 0 {
		m.LeaderEpoch = &p.Epoch
	}
	return m
}

func missingMessage(m hub.Missing) tailracev1.MissingPosition {
	switch m {
	case hub.MissingLatest:
		return tailracev1.MissingPosition_MISSING_POSITION_LATEST
	case hub.MissingSkip:
		return tailracev1.MissingPosition_MISSING_POSITION_SKIP
	case hub.MissingEarliest:
	}
	return tailracev1.MissingPosition_MISSING_POSITION_EARLIEST
}

func keyScopeMessage(s hub.KeyScope) tailracev1.KeyScope {
	switch s {
	case hub.KeyScopeHashed:
		return tailracev1.KeyScope_KEY_SCOPE_HASHED
	case hub.KeyScopeAll:
		return tailracev1.KeyScope_KEY_SCOPE_ALL_PARTITIONS
	case hub.KeyScopeDefault:
	}
	return tailracev1.KeyScope_KEY_SCOPE_UNSPECIFIED
}

// at is a start in one partition alone.
func at(p hub.Position) hub.Start {
	return hub.Start{Kind: hub.AtPositions, Positions: []hub.Position{p}, Missing: hub.MissingSkip}
}
