package main

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/sys/unix"

	"tailrace.dev/tailrace/edge"
)

// Descriptors that are no client's: listeners, epolls, the log, those who look at metrics, and connections to each service.
const (
	ownDescriptors     = 64
	serviceDescriptors = 8
	leastDescriptors   = 32 // for clients
)

// fitDescriptors lowers what the edge lets in to what the process may have open (RLIMIT_NOFILE, which Go has raised to its hard limit). A connection
// beyond would wait in the kernel's queue for somebody else's end, without an answer. Where somebody asked for more, not the default, it warns.
func fitDescriptors(ctx context.Context, cfg *edge.Config, asked bool, services int, logger *slog.Logger) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("open files: %w", err)
	}
	own := uint64(ownDescriptors + serviceDescriptors*services)
	if limit.Cur < own+leastDescriptors {
		return fmt.Errorf("open files: ulimit -n %d: want at least %d, and one for each socket", limit.Cur, own+leastDescriptors)
	}
	room := int(min(limit.Cur-own, 1<<30))
	if cfg.MaxSessions+cfg.MaxHandshakes+cfg.MaxRequests <= room {
		return nil
	}
	wanted := cfg.MaxSessions
	cfg.MaxHandshakes = min(cfg.MaxHandshakes, room/8)
	cfg.MaxRequests = min(cfg.MaxRequests, room/8)
	cfg.MaxSessions = min(cfg.MaxSessions, room-cfg.MaxHandshakes-cfg.MaxRequests)
	switch level := slog.LevelInfo; {
	case cfg.MaxSessions == wanted:
	case asked:
		level = slog.LevelWarn
		fallthrough
	default:
		logger.LogAttrs(ctx, level, "-max-sessions cannot be reached: each socket is an open file; raise ulimit -n, or lower it",
			slog.Int("max_sessions", wanted), slog.Int("reachable", cfg.MaxSessions), slog.Uint64("open_files", limit.Cur))
	}
	return nil
}
