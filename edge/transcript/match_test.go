package transcript_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"sort"
	"strings"
)

// decodeJSON reads one JSON value, numbers as they are written; a name that comes twice in an object is an error.
func decodeJSON(text []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	v, err := decodeValue(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one value")
	}
	return v, nil
}

func decodeValue(d *json.Decoder) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		m := map[string]any{}
		for d.More() {
			k, err := d.Token()
			if err != nil {
				return nil, err
			}
			name := fmt.Sprint(k)
			if _, twice := m[name]; twice {
				return nil, fmt.Errorf("%q comes twice", name)
			}
			if m[name], err = decodeValue(d); err != nil {
				return nil, err
			}
		}
		_, err = d.Token()
		return m, err
	case json.Delim('['):
		l := []any{}
		for d.More() {
			v, err := decodeValue(d)
			if err != nil {
				return nil, err
			}
			l = append(l, v)
		}
		_, err = d.Token()
		return l, err
	}
	return t, nil
}

// names are the placeholders of a dialogue that have a value.
type names map[string]any

// match compares a value with a pattern: "$any" is anything, "$int" an integer, "$name" what it was before. New names are bound only if all
// matches.
func (n names) match(pattern, got any) bool {
	bound := maps.Clone(n)
	if !bound.matches(pattern, got) {
		return false
	}
	maps.Copy(n, bound)
	return true
}

func (n names) matches(pattern, got any) bool {
	switch p := pattern.(type) {
	case string:
		name, placeholder := strings.CutPrefix(p, "$")
		switch {
		case !placeholder:
			return p == got
		case name == "any":
			return true
		case name == "int":
			num, ok := got.(json.Number)
			if !ok {
				return false
			}
			_, err := num.Int64()
			return err == nil
		}
		was, known := n[name]
		if !known {
			n[name] = got
			return true
		}
		return reflect.DeepEqual(was, got)
	case map[string]any:
		g, ok := got.(map[string]any)
		if ok {
			g = asValue(p, g)
		}
		if !ok || len(g) != len(p) {
			return false
		}
		for _, k := range slices.Sorted(maps.Keys(p)) {
			v, has := g[k]
			if !has || !n.matches(p[k], v) {
				return false
			}
		}
		return true
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(p) {
			return false
		}
		for i := range p {
			if !n.matches(p[i], g[i]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(pattern, got)
}

// asValue makes a record's text its value where a value is waited for: the binary form does not tell JSON from other text.
func asValue(pattern, got map[string]any) map[string]any {
	_, wanted := pattern["value"]
	text, isText := got["text"].(string)
	if !wanted || !isText {
		return got
	}
	v, err := decodeJSON([]byte(text))
	if err != nil {
		return got
	}
	got = maps.Clone(got)
	delete(got, "text")
	got["value"] = v
	return got
}

// fill replaces placeholders by what they stand for.
func (n names) fill(text string) (string, error) {
	for name, v := range n {
		b, err := json.Marshal(v)
		if err != nil {
			return "", err
		}
		text = strings.ReplaceAll(text, `"$`+name+`"`, string(b))
	}
	return text, nil
}

// want is a message that is waited for. Records may come in any number of frames: they are gathered until their number is right. The order of
// records of different partitions is nobody's promise.
type want struct {
	text    string
	pattern map[string]any
	got     map[string]any // of the records frames so far
}

func newWant(text string) (*want, error) {
	v, err := decodeJSON([]byte(text))
	if err != nil {
		return nil, err
	}
	m, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not an object")
	}
	return &want{text: text, pattern: m}, nil
}

// offer returns whether a message is wanted, and whether all of it has come then.
func (w *want) offer(n names, message map[string]any) (taken, complete bool) {
	if w.pattern["op"] != "records" || message["op"] != "records" || w.pattern["id"] != message["id"] {
		ok := n.match(any(w.pattern), any(message))
		return ok, ok
	}
	all := map[string]any{"op": "records", "id": message["id"], "records": []any{}}
	positions := map[string]any{}
	for _, part := range []map[string]any{w.got, message} {
		if part == nil {
			continue
		}
		records, _ := part["records"].([]any)
		for _, r := range records {
			all["records"] = append(all["records"].([]any), r) //nolint:errcheck // made above
		}
		if ps, ok := part["positions"].(map[string]any); ok {
			maps.Copy(positions, ps)
		}
	}
	if len(positions) > 0 {
		all["positions"] = positions
	}
	pattern := maps.Clone(w.pattern)
	pattern["records"] = byPartition(pattern["records"])
	ordered := maps.Clone(all)
	ordered["records"] = byPartition(all["records"])
	if n.match(any(pattern), any(ordered)) {
		return true, true
	}
	have, _ := all["records"].([]any)
	full, _ := w.pattern["records"].([]any)
	wanted, _ := w.pattern["positions"].(map[string]any)
	if len(have) > len(full) || len(have) == len(full) && len(wanted) == 0 {
		return false, false
	}
	w.got = all
	return true, false
}

func byPartition(v any) any {
	records, ok := v.([]any)
	if !ok {
		return v
	}
	records = slices.Clone(records)
	partition := func(i int) string {
		r, _ := records[i].(map[string]any)
		return fmt.Sprint(r["partition"])
	}
	sort.SliceStable(records, func(i, j int) bool { return partition(i) < partition(j) })
	return records
}
