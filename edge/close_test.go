package edge_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"tailrace.dev/tailrace/edge"
)

// TestReasons: the table has all codes of the protocol, and each row fits a close frame.
func TestReasons(t *testing.T) {
	t.Parallel()
	missing := []int{1001, 1002, 1003, 1007, 1009, 1011, 4000, 4001, 4003, 4004, 4006, 4008, 4029, 4500, 4501, 4503, 4504}
	names := map[string]bool{}
	for _, r := range edge.Reasons() {
		if names[r.Name] {
			t.Errorf("%s: twice", r.Name)
		}
		names[r.Name] = true
		if r.Name == "" || r.Name == "unknown" || r.Name != strings.ToLower(r.Name) || strings.Contains(r.Name, " ") {
			t.Errorf("%q is no label", r.Name)
		}
		if !slices.Contains([]string{"client", "server", "network"}, r.Initiator) {
			t.Errorf("%s: initiator %q", r.Name, r.Initiator)
		}
		if r.Silent != (r.Code == 1006) {
			t.Errorf("%s: code %d with silent %v", r.Name, r.Code, r.Silent)
		}
		if r.Initiator == "server" && (r.Text == "" || len(r.Text) > 123 || !utf8.ValidString(r.Text)) {
			t.Errorf("%s: text %q", r.Name, r.Text)
		}
		if stay := r.Code >= 4500 || r.Code == 1000 || r.Code == 1002 || r.Code == 1003 || r.Code >= 1007 && r.Code <= 1010; r.ComeBack == stay {
			t.Errorf("%s: code %d with come back %v", r.Name, r.Code, r.ComeBack)
		}
		if r.Initiator == "server" {
			missing = slices.DeleteFunc(missing, func(c int) bool { return c == r.Code })
		}
	}
	if len(missing) > 0 {
		t.Errorf("no reason has %v", missing)
	}
}

func TestClosePayload(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 80)
	p := edge.ClosePayload(4000, long)
	if len(p) > 125 || !utf8.Valid(p[2:]) || len(p) < 122 {
		t.Errorf("payload of %d bytes: %q", len(p), p)
	}
	for _, c := range []struct {
		name string
		p    []byte
		code int
		bad  int
	}{
		{"none", nil, 1005, 0},
		{"half", []byte{3}, 0, 1002},
		{"1000", edge.ClosePayload(1000, "bye"), 1000, 0},
		{"1004", edge.ClosePayload(1004, ""), 0, 1002},
		{"1005", edge.ClosePayload(1005, ""), 0, 1002},
		{"1006", edge.ClosePayload(1006, ""), 0, 1002},
		{"1012", edge.ClosePayload(1012, ""), 1012, 0},
		{"1015", edge.ClosePayload(1015, ""), 0, 1002},
		{"999", edge.ClosePayload(999, ""), 0, 1002},
		{"2999", edge.ClosePayload(2999, ""), 0, 1002},
		{"3000", edge.ClosePayload(3000, ""), 3000, 0},
		{"4999", edge.ClosePayload(4999, ""), 4999, 0},
		{"5000", edge.ClosePayload(5000, ""), 0, 1002},
		{"not UTF-8", []byte{3, 232, 0xff}, 0, 1007},
	} {
		if code, _, bad := edge.ParseClosePayload(c.p); code != c.code || bad != c.bad {
			t.Errorf("%s: got %d, %d, want %d, %d", c.name, code, bad, c.code, c.bad)
		}
	}
}
