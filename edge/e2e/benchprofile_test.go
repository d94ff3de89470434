package e2e_test

import (
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

var profiles = flag.String("e2e.profiles", "", "folder for CPU profiles of service and edge, of three seconds in the middle of what benchmarks measure (which is disturbed a little by them); empty: none")

// profiled does what is measured, and takes profiles meanwhile if they are wanted.
func (p *pair) profiled(b *testing.B, name string, do func()) {
	b.Helper()
	if *profiles == "" {
		do()
		return
	}
	var taking sync.WaitGroup
	for who, ops := range map[string]string{"service": p.rpcOps, "edge": p.wsOps} {
		if who == "edge" && p.edge == nil {
			continue
		}
		taking.Go(func() {
			code, body, err := get(b.Context(), "http://"+ops+"/debug/pprof/profile?seconds=3")
			if err != nil || code != http.StatusOK {
				b.Errorf("profile of the %s: %d, %v", who, code, err)
				return
			}
			file := filepath.Join(*profiles, strings.ReplaceAll(b.Name(), "/", "-")+"-"+name+"-"+who+".pprof")
			if err := os.WriteFile(file, []byte(body), 0o644); err != nil {
				b.Error(err)
			}
		})
	}
	do()
	taking.Wait()
}
