package e2e_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// panel is what is read of a Grafana panel.
type panel struct {
	ID         int
	Type       string
	Title      string
	GridPos    struct{ X, Y, W, H int }
	Datasource *struct{ Type, UID string }
	Targets    []struct{ Expr, RefID string }
	Panels     []panel
}

// expressions returns the queries of a dashboard, after a look at what Grafana needs.
func expressions(t *testing.T, path string, known map[string]documentedMetric) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		UID, Title    string
		SchemaVersion int
		Templating    struct {
			List []struct {
				Name, Type string
				Query      any
			}
		}
		Panels []panel
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatal(err)
	}
	if dashboard.UID == "" || dashboard.Title == "" || dashboard.SchemaVersion < 39 {
		t.Errorf("uid %q, title %q, schema %d: want both, and at least 39", dashboard.UID, dashboard.Title, dashboard.SchemaVersion)
	}
	if l := dashboard.Templating.List; len(l) == 0 || l[0].Name != "datasource" || l[0].Type != "datasource" || l[0].Query != "prometheus" {
		t.Errorf("variables %v: want the data source first", l)
	}
	var all strings.Builder
	var rows []string
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("panel %q has the id %d, which is taken or none", p.Title, p.ID)
		}
		ids[p.ID] = true
		if g := p.GridPos; g.X < 0 || g.Y < 0 || g.W < 1 || g.H < 1 || g.X+g.W > 24 {
			t.Errorf("panel %q does not lie within Grafana's 24 columns: %+v", p.Title, g)
		}
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other, ok := taken[[2]int{x, y}]; ok {
					t.Fatalf("panels %q and %q lie over each other", other, p.Title)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Datasource == nil || p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("panel %q: want the data source of the variable, and a query", p.Title)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if refs[target.RefID] || target.RefID == "" {
				t.Errorf("panel %q: the query %q is there twice, or has no name", p.Title, target.RefID)
			}
			refs[target.RefID] = true
			if why := unsound(target.Expr, known); why != "" {
				t.Errorf("panel %q: %s: %s", p.Title, target.Expr, why)
			}
			fmt.Fprintln(&all, target.Expr)
		}
	}
	if want := []string{"Overview", "Delivery", "Hub", "Kafka", "Edge", "Publish", "Queue"}; !slices.Equal(rows, want) {
		t.Errorf("rows %v, want %v", rows, want)
	}
	return all.String()
}

var (
	selected  = regexp.MustCompile(`(\w*\(?)\b(tailrace_[a-z_]+)\{([^}]*)\}(\[\$__rate_interval\])?`)
	matcher   = regexp.MustCompile(`^(\w+)=~?"[^"]*"$`)
	grouped   = regexp.MustCompile(`\bby \(([^)]*)\)`)
	ofBuckets = regexp.MustCompile(`histogram_quantile\(0\.\d+, sum by \(le\) \(rate\(\w+_bucket\{`)
)

// unsound says what is wrong with a query: of the few forms of PromQL that the dashboard has, in which rates are of what only grows, and labels are
// those that the metrics have.
func unsound(expr string, known map[string]documentedMetric) string {
	if !balanced(expr) {
		return "brackets without another"
	}
	labels := map[string]bool{"instance": true}
	all := selected.FindAllStringSubmatch(expr, -1)
	if len(all) == 0 || len(all) != len(metricName.FindAllString(expr, -1)) {
		return "a metric without a selector, or none"
	}
	for _, m := range all {
		name, series := m[2], ""
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && known[base].kind == "histogram" {
				name, series = base, suffix
			}
		}
		if grows := known[name].kind == "counter" || series != ""; grows != (m[4] != "") || grows != (m[1] == "rate(") {
			return fmt.Sprintf("%s is a %s%s: want a rate of what grows, and of nothing else", m[2], known[name].kind, series)
		}
		if series == "_bucket" {
			labels["le"] = true
			if !ofBuckets.MatchString(expr) {
				return "buckets are for quantiles, by le"
			}
		}
		for _, l := range known[name].labels {
			labels[l] = true
		}
		if !strings.Contains(m[3], `instance=~"$instance"`) {
			return m[2] + " is of all instances"
		}
		for one := range strings.SplitSeq(m[3], ", ") {
			l := matcher.FindStringSubmatch(one)
			if l == nil || l[1] != "instance" && !slices.Contains(known[name].labels, l[1]) {
				return fmt.Sprintf("%s has no label that %s asks for", name, one)
			}
		}
	}
	for _, by := range grouped.FindAllStringSubmatch(expr, -1) {
		for l := range strings.SplitSeq(by[1], ", ") {
			if !labels[l] {
				return fmt.Sprintf("by %q, which is no label of these metrics", l)
			}
		}
	}
	return ""
}

// TestQueriesAreUnsound: the judge of the dashboard's queries sees what Grafana would only show as an empty panel.
func TestQueriesAreUnsound(t *testing.T) {
	known := map[string]documentedMetric{
		"tailrace_aa_total": {kind: "counter", labels: []string{"topic"}}, "tailrace_bb": {kind: "gauge"}, "tailrace_cc": {kind: "histogram"},
	}
	for expr, sound := range map[string]bool{
		`sum by (topic) (rate(tailrace_aa_total{instance=~"$instance", topic="x"}[$__rate_interval]))`:                true,
		`sum(tailrace_bb{instance=~"$instance"}) > 0`:                                                                 true,
		`histogram_quantile(0.9, sum by (le) (rate(tailrace_cc_bucket{instance=~"$instance"}[$__rate_interval])))`:    true,
		`rate(tailrace_cc_count{instance=~"$instance"}[$__rate_interval])`:                                            true,
		`sum(tailrace_aa_total{instance=~"$instance"})`:                                                               false,
		`rate(tailrace_bb{instance=~"$instance"}[$__rate_interval])`:                                                  false,
		`sum(tailrace_bb{instance=~"$instance"}`:                                                                      false,
		`sum(tailrace_bb)`:                                                                                            false,
		`sum(tailrace_bb{topic="x"})`:                                                                                 false,
		`sum(tailrace_bb{instance=~"$instance", topic="x"})`:                                                          false,
		`sum by (reason) (rate(tailrace_aa_total{instance=~"$instance"}[$__rate_interval]))`:                          false,
		`sum by (le) (rate(tailrace_cc_bucket{instance=~"$instance"}[$__rate_interval]))`:                             false,
		`histogram_quantile(0.9, sum by (topic) (rate(tailrace_cc_bucket{instance=~"$instance"}[$__rate_interval])))`: false,
		`sum(tailrace_bb{instance=~"$instance"}) + tailrace_bb`:                                                       false,
		`sum(increase(tailrace_aa_total{instance=~"$instance"}[$__rate_interval]))`:                                   false,
	} {
		if why := unsound(expr, known); (why == "") != sound {
			t.Errorf("%s: got %q", expr, why)
		}
	}
}

// balanced says whether the brackets of an expression match.
func balanced(expr string) bool {
	var open []rune
	for _, r := range expr {
		switch r {
		case '(', '[', '{':
			open = append(open, r)
		case ')', ']', '}':
			if len(open) == 0 || strings.IndexRune("([{", open[len(open)-1]) != strings.IndexRune(")]}", r) {
				return false
			}
			open = open[:len(open)-1]
		}
	}
	return len(open) == 0
}
