package e2e_test

import (
	"fmt"
	"io"
	"sync"
	"testing"
	"text/tabwriter"
)

// table collects the figures of the benchmarks; TestMain prints it.
var table benchTable

type benchTable struct {
	mu   sync.Mutex
	rows [][5]string
}

// row adds one comparison. A target that is missed is marked, and does not fail the run: rates on a shared machine are judged by people.
func (bt *benchTable) row(b testing.TB, name, ours, reference string, ratio float64, target string, met bool) {
	b.Helper()
	if !met {
		target += " MISSED"
	}
	bt.mu.Lock()
	defer bt.mu.Unlock()
	bt.rows = append(bt.rows, [5]string{name, ours, reference, fmt.Sprintf("%.2f", ratio), target})
}

func (bt *benchTable) print(w io.Writer) {
	bt.mu.Lock()
	defer bt.mu.Unlock()
	if len(bt.rows) == 0 {
		return
	}
	tw := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(tw, "name\t| ours\t| reference\t| ratio\t| target")
	for _, r := range bt.rows {
		fmt.Fprintf(tw, "%s\t| %s\t| %s\t| %s\t| %s\n", r[0], r[1], r[2], r[3], r[4])
	}
	_ = tw.Flush()
}
