package transcript_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// later are the rows of the tables that no transcript can show, and why. An entry that a transcript does show is an error.
func later() map[string]string {
	return map[string]string{
		"4006 token_expired":   "there is no authentication yet",
		"4501 unauthenticated": "there is no authentication yet",
		"4503 forbidden":       "access.Allow allows everything yet",
		"FORBIDDEN":            "access.Allow allows everything yet",
		"1011 internal_error":  "a fault of ours",
		"INTERNAL":             "a fault of ours",
		"CANCELED":             "only of requests whose caller has left",
		"DEADLINE_EXCEEDED":    "a request that ran out of time is told as UNAVAILABLE or OUTCOME_UNKNOWN",
		"BAD_FRAME":            "it ends the connection, 4500, so that nobody is told it",
	}
}

// end is a row of the table of session ends.
type end struct {
	name   string
	code   int
	silent bool // no close frame
}

// tableOfEnds reads the table out of the source of package edge: so no row can be forgotten.
func tableOfEnds(t testing.TB) (ends []end) {
	t.Helper()
	codes := map[string]int{
		"StatusNormalClosure": 1000, "StatusGoingAway": 1001, "StatusProtocolError": 1002, "StatusUnsupportedData": 1003,
		"StatusAbnormalClosure": 1006, "StatusInvalidFramePayloadData": 1007, "StatusMessageTooBig": 1009, "StatusInternalServerError": 1011,
	}
	inspect(t, "../close.go", func(n ast.Node) {
		lit, ok := n.(*ast.CompositeLit)
		if !ok {
			return
		}
		if name, ok := lit.Type.(*ast.Ident); !ok || name.Name != "reason" {
			return
		}
		var e end
		for _, el := range lit.Elts {
			kv, ok := el.(*ast.KeyValueExpr)
			if !ok {
				t.Fatalf("close.go: a row without names")
			}
			switch fmt.Sprint(kv.Key) {
			case "Name":
				e.name = literal(t, kv.Value)
			case "silent":
				e.silent = true
			case "Code":
				if sel, ok := kv.Value.(*ast.SelectorExpr); ok {
					e.code = codes[sel.Sel.Name]
				} else if lit, ok := kv.Value.(*ast.BasicLit); ok {
					e.code, _ = strconv.Atoi(lit.Value)
				}
			}
		}
		if e.name == "" || e.code == 0 {
			t.Fatalf("close.go: cannot read the row of %+v", e)
		}
		ends = append(ends, e)
	})
	if len(ends) < 20 {
		t.Fatalf("close.go: only %d rows", len(ends))
	}
	return ends
}

var reasonForm = regexp.MustCompile(`^[A-Z]{2,}(_[A-Z]+)+$|^(LAGGED|LIMIT|DRAINING|UNAVAILABLE|CANCELED|INTERNAL|FORBIDDEN|UNIMPLEMENTED)$`)

// tableOfReasons are the reasons of errors that an edge can tell: those in the source of its packages, and those of publishes, which it passes on.
func tableOfReasons(t testing.TB) []string {
	t.Helper()
	found := map[string]bool{}
	files, err := filepath.Glob("../*.go")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../frame/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(append(files, more...), "../../services/kafka/reasons.go") {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		inspect(t, path, func(n ast.Node) {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if s := literal(t, lit); reasonForm.MatchString(s) {
					found[s] = true
				}
			}
		})
	}
	if len(found) < 20 {
		t.Fatalf("only %d reasons", len(found))
	}
	return slices.Sorted(maps.Keys(found))
}

func inspect(t testing.TB, path string, see func(ast.Node)) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		see(n)
		return true
	})
}

func literal(t testing.TB, e ast.Expr) string {
	t.Helper()
	lit, ok := e.(*ast.BasicLit)
	if !ok {
		t.Fatalf("%T is not a literal", e)
	}
	s, err := strconv.Unquote(lit.Value)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var reasonInFrame = regexp.MustCompile(`^\{"op":"error".*"reason":"([A-Z_]+)"`)

// TestTablesAreProved: every row of the tables of close codes and of error reasons is in a transcript, or in later with a cause.
func TestTablesAreProved(t *testing.T) {
	codes, endings, reasons := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, s := range scripts(t) {
		for _, d := range s.dialogues {
			for _, st := range d.steps {
				switch {
				case strings.HasPrefix(st.kind, "<") && strings.HasPrefix(st.text, "close "):
					codes[strings.Fields(st.text)[1]] = true
				case st.kind == "@" && strings.HasPrefix(st.text, "ended "):
					endings[strings.Fields(st.text)[1]] = true
				case strings.HasPrefix(st.kind, "<"):
					if m := reasonInFrame.FindStringSubmatch(st.text); m != nil {
						reasons[m[1]] = true
					}
				}
			}
		}
	}
	excused := later()
	check := func(row string, shown bool) {
		cause, isLater := excused[row]
		delete(excused, row)
		switch {
		case shown && isLater:
			t.Errorf("%s is shown by a transcript: strike it from later (%s)", row, cause)
		case !shown && !isLater:
			t.Errorf("no transcript shows %s", row)
		}
	}
	for _, e := range tableOfEnds(t) {
		check(fmt.Sprintf("%d %s", e.code, e.name), endings[e.name] && (e.silent || codes[strconv.Itoa(e.code)]))
	}
	for _, r := range tableOfReasons(t) {
		check(r, reasons[r])
	}
	for row := range excused {
		t.Errorf("%s is in no table: strike it from later", row)
	}
}

// TestRulesAreProved: every rule of rules.txt has a dialogue, and every dialogue a rule.
func TestRulesAreProved(t *testing.T) {
	text, err := os.ReadFile("testdata/rules.txt")
	if err != nil {
		t.Fatal(err)
	}
	proofs := map[string][]string{}
	var rules []string
	for line := range strings.Lines(string(text)) {
		if _, elsewhere, ok := strings.Cut(strings.TrimSpace(line), " => "); ok && line[0] == 'R' {
			pkg, test, _ := strings.Cut(elsewhere, " ")
			if !hasTest(t, pkg, test) {
				t.Errorf("there is no %s in %s", test, pkg)
			}
			name, _, _ := strings.Cut(line, " ")
			proofs[name] = append(proofs[name], elsewhere)
		}
		if name, _, ok := strings.Cut(line, " "); ok && strings.HasPrefix(name, "R") {
			if slices.Contains(rules, name) {
				t.Errorf("rule %s comes twice", name)
			}
			rules = append(rules, name)
		}
	}
	titles := map[string]bool{}
	for _, s := range scripts(t) {
		for _, d := range s.dialogues {
			if titles[s.name+d.title] {
				t.Errorf("%s.txt: %q comes twice", s.name, d.title)
			}
			titles[s.name+d.title] = true
			for _, r := range d.rules {
				if !slices.Contains(rules, r) {
					t.Errorf("%s.txt:%d: unknown rule %s", s.name, d.line, r)
				}
				proofs[r] = append(proofs[r], s.name+": "+d.title)
			}
		}
	}
	for _, r := range rules {
		if len(proofs[r]) == 0 {
			t.Errorf("no transcript proves rule %s", r)
		}
	}
	proof(t, "%d rules are proved by %d dialogues", len(rules), len(titles))
}

// hasTest says whether a package of this module has a test of that name.
func hasTest(t *testing.T, pkg, test string) bool {
	t.Helper()
	files, err := filepath.Glob("../../" + pkg + "/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, path := range files {
		inspect(t, path, func(n ast.Node) {
			f, ok := n.(*ast.FuncDecl)
			found = found || ok && f.Name.Name == test
		})
	}
	return found
}
