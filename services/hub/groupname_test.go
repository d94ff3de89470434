package hub_test

import (
	"strings"
	"testing"

	"tailrace.dev/tailrace/services/hub"
)

func TestGroupNames(t *testing.T) {
	for name, word := range map[string]string{
		"billing": "", "a b": "", "größe/β.1": "", strings.Repeat("g", 249): "",
		"": "required", strings.Repeat("g", 250): "249", " ": "blank", " a": "blank", "a ": "blank", "\t": "printed", "a\tb": "printed", "a\nb": "printed",
		"billing\x00-ro": "printed", "\x00": "printed", "a\u00a0b": "printed", "a\u200bb": "printed", "a\u202eb": "printed", "a\x7f": "printed", "a\xff": "UTF-8",
	} {
		if got := hub.GroupProblem(name); !strings.Contains(got, word) || (got == "") != (word == "") {
			t.Errorf("%q: got %q, want %q", name, got, word)
		}
	}
}
