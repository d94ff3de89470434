package e2e_test

import (
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"tailrace.dev/tailrace/edge"
	"tailrace.dev/tailrace/edge/upstream"
	"tailrace.dev/tailrace/services/group"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/kafka"
	"tailrace.dev/tailrace/services/ops"
	rpcface "tailrace.dev/tailrace/services/stream"
)

// ofService and ofEdge register what the processes do. Nothing of it runs.
func ofService(t *testing.T) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewRegistry()
	log := slog.New(slog.DiscardHandler)
	cfg := kafka.DefaultConfig()
	cfg.Bootstrap = "127.0.0.1:1"
	client, err := kafka.New(cfg, log, reg)
	if err != nil {
		t.Fatal(err)
	}
	h := hub.New(client, hub.Config{Registerer: reg})
	groups := group.New(group.Config{Cluster: client, DeadLetters: client, Logger: log, Registerer: reg})
	rpcface.New(rpcface.Config{Groups: groups, Hub: h, Publisher: client, Topics: client, Logger: log, Registerer: reg})
	return reg
}

func ofEdge(t *testing.T) *prometheus.Registry {
	t.Helper()
	reg := prometheus.NewRegistry()
	log := slog.New(slog.DiscardHandler)
	source, err := upstream.New(upstream.Config{Addresses: []string{"http://127.0.0.1:1"}, Logger: log, Registerer: reg})
	if err != nil {
		t.Fatal(err)
	}
	h := hub.New(source, hub.Config{Registerer: reg})
	if _, err := edge.New(edge.DefaultConfig(), h, source, http.NotFoundHandler(), log, reg); err != nil {
		t.Fatal(err)
	}
	return reg
}

var described = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// registered returns the labels of each metric of a registry.
func registered(t *testing.T, reg *prometheus.Registry) map[string][]string {
	t.Helper()
	descs := make(chan *prometheus.Desc)
	go func() {
		reg.Describe(descs)
		close(descs)
	}()
	all := map[string][]string{}
	for d := range descs {
		m := described.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("cannot read %s", d)
		}
		all[m[1]] = strings.FieldsFunc(m[2], func(r rune) bool { return r == ',' || r == ' ' })
	}
	return all
}

// documentedMetric is a row of a table of metrics in a README.
type documentedMetric struct {
	kind   string
	labels []string
	values map[string][]string // of labels, those that are listed
}

var (
	metricRow   = regexp.MustCompile("(?m)^\\| `(tailrace_[a-z_]+)` \\| (counter|gauge|histogram) \\| ([^|]*)\\| ([^|]+) \\|$")
	metricLabel = regexp.MustCompile("`([a-z]+)`(?: \\(([^)]*)\\))?")
	metricName  = regexp.MustCompile(`\btailrace_[a-z_]+[a-z]\b`)
)

func documented(t *testing.T, path string) map[string]documentedMetric {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]documentedMetric{}
	for _, row := range metricRow.FindAllStringSubmatch(string(text), -1) {
		m := documentedMetric{kind: row[2], values: map[string][]string{}}
		for _, l := range metricLabel.FindAllStringSubmatch(row[3], -1) {
			m.labels = append(m.labels, l[1])
			if l[2] != "" {
				m.values[l[1]] = strings.Split(l[2], ", ")
			}
		}
		if _, twice := all[row[1]]; twice {
			t.Errorf("%s has %s twice", path, row[1])
		}
		all[row[1]] = m
	}
	return all
}

// TestEveryMetricIsDocumented holds the tables of metrics in the READMEs against what the processes register, both ways.
func TestEveryMetricIsDocumented(t *testing.T) {
	inService, inEdge := documented(t, "../../services/README.md"), documented(t, "../README.md")
	for _, process := range []struct {
		name string
		reg  *prometheus.Registry
		rows map[string]documentedMetric
	}{
		{"services/README.md", ofService(t), inService},
		{"edge/README.md", ofEdge(t), inEdge},
	} {
		got := registered(t, process.reg)
		for name, labels := range got {
			row, ok := process.rows[name]
			if !ok && strings.HasPrefix(name, "tailrace_hub_") { // both processes have a hub
				row, ok = inService[name]
			}
			if !ok {
				t.Errorf("%s has no row of %s with the labels %v", process.name, name, labels)
				continue
			}
			if !slices.Equal(slices.Sorted(slices.Values(labels)), slices.Sorted(slices.Values(row.labels))) {
				t.Errorf("%s: labels of %s are %v, registered are %v", process.name, name, row.labels, labels)
			}
		}
		for name := range process.rows {
			if _, ok := got[name]; !ok {
				t.Errorf("%s has %s, which nobody registers", process.name, name)
			}
		}
		families, err := process.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			row, ok := process.rows[f.GetName()]
			if !ok {
				row = inService[f.GetName()]
			}
			if kind := strings.ToLower(f.GetType().String()); kind != row.kind {
				t.Errorf("%s: %s is a %s, registered is a %s", process.name, f.GetName(), row.kind, kind)
			}
			seen := map[string]map[string]bool{}
			for _, m := range f.GetMetric() {
				for _, l := range m.GetLabel() {
					if seen[l.GetName()] == nil {
						seen[l.GetName()] = map[string]bool{}
					}
					seen[l.GetName()][l.GetValue()] = true
				}
			}
			for label, values := range seen { // those of a closed set are there from the beginning
				if got, want := slices.Sorted(maps.Keys(values)), slices.Sorted(slices.Values(row.values[label])); len(want) > 0 && !slices.Equal(got, want) {
					t.Errorf("%s: values of %s{%s} are %v, there are %v", process.name, f.GetName(), label, want, got)
				}
			}
		}
	}
}

// names returns the metrics that a text speaks of, without the suffixes of histograms' series.
func names(text string, known map[string]documentedMetric) map[string]bool {
	all := map[string]bool{}
	for _, name := range metricName.FindAllString(text, -1) {
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && known[base].kind == "histogram" {
				name = base
			}
		}
		all[name] = true
	}
	return all
}

// TestDashboardAndPageShowWhatThereIs: each metric that the dashboard and the page of the ops listener ask for exists, and each that exists is on both.
func TestDashboardAndPageShowWhatThereIs(t *testing.T) {
	known := documented(t, "../../services/README.md")
	maps.Copy(known, documented(t, "../README.md"))
	exists := registered(t, ofService(t))
	maps.Copy(exists, registered(t, ofEdge(t)))
	page := httptest.NewRecorder()
	ops.New(ops.Config{Gatherer: prometheus.NewRegistry(), Logger: slog.New(slog.DiscardHandler)}).Handler().ServeHTTP(page, httptest.NewRequest(http.MethodGet, "/", nil))
	for what, text := range map[string]string{"the dashboard": expressions(t, "../../services/deploy/grafana.json", known), "the page": page.Body.String()} {
		shown := names(text, known)
		for name := range shown {
			if _, ok := exists[name]; !ok {
				t.Errorf("%s asks for %s, which nobody registers", what, name)
			}
		}
		for name := range exists {
			if !shown[name] {
				t.Errorf("%s does not show %s", what, name)
			}
		}
	}
}
