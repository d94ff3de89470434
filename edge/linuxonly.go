//go:build !linux

package edge

// The first line of a build elsewhere says why it fails.
type _ Tailrace_runs_on_Linux_only
