package e2e_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// table collects the figures of the benchmarks; TestMain prints it.
var table benchTable

type benchTable struct {
	mu      sync.Mutex
	figures []figure
}

// figure is one comparison of Tailrace with a reference that was measured in the same run.
type figure struct {
	name            string // with the size that was measured
	ours, reference string
	ratio           float64 // of ours to the reference; 0: says nothing
	target          string  // empty: there is none
	met             bool
	cpu             string // what it cost each process
}

// add adds a figure. A missed target is marked and does not fail the run: figures of a shared machine are judged by people.
func (bt *benchTable) add(f figure) {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	bt.figures = append(bt.figures, f)
}

func (bt *benchTable) print(w io.Writer) {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	if len(bt.figures) == 0 {
		return
	}
	fmt.Fprintln(w, machine())
	tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(tw, "figure\t| ours\t| reference\t| ratio\t| target\t| met\t| CPU")
	for _, f := range bt.figures {
		ratio, met := "", ""
		if f.ratio != 0 {
			ratio = fmt.Sprintf("%.2f", f.ratio)
		}
		switch {
		case f.target == "":
		case f.met:
			met = "yes"
		default:
			met = "NO"
		}
		fmt.Fprintf(tw, "%s\t| %s\t| %s\t| %s\t| %s\t| %s\t| %s\n", f.name, f.ours, f.reference, ratio, f.target, met, f.cpu)
	}
	_ = tw.Flush()
}

// machine describes what the figures were measured on.
func machine() string {
	field := func(file, name string) string {
		text, _ := os.ReadFile(file)
		for line := range strings.Lines(string(text)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
				return strings.TrimSpace(v)
			}
		}
		return "unknown"
	}
	var uts unix.Utsname
	_ = unix.Uname(&uts)
	load, _ := os.ReadFile("/proc/loadavg")
	which := "reduced sizes"
	if *full {
		which = "full sizes"
	}
	return fmt.Sprintf("%s, %s; %d cores, %s, %s of memory, Linux %s, %s; load at the end %s", time.Now().UTC().Format(time.RFC3339), which,
		runtime.NumCPU(), field("/proc/cpuinfo", "model name"), field("/proc/meminfo", "MemTotal"), bytes.TrimRight(uts.Release[:], "\x00"),
		runtime.Version(), strings.TrimSpace(string(load)))
}
