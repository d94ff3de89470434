package frame

import (
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// ParsePublishURL reads /publish/{topic}?…, whose body is the value: the record without it, and whether it is to have none. Parameters are
// key or keyBase64, partition, tombstone=true, and any number of header=name=value. Unknown ones are refused by name.
func ParsePublishURL(topic, rawQuery string) (_ *Publish, tombstone bool, _ *Error) {
	q, bad := parseQuery("publish", "", rawQuery)
	if bad != nil {
		return nil, false, bad
	}
	var fail fault
	r := &tailracev1.PublishRecord{}
	if topic == "" || !utf8.ValidString(topic) {
		fail.set("topic", "is required")
	}
	for _, name := range slices.Sorted(maps.Keys(q)) {
		values := q[name]
		if name == "header" {
			r.Headers = headersOf(values, &fail)
			continue
		}
		if len(values) > 1 {
			fail.set(clip(name), "is given twice")
		}
		switch v := values[0]; name {
		case "key":
			r.Key = []byte(v)
		case "keyBase64":
			key, err := decodeBase64(strings.ReplaceAll(v, " ", "+")) // a plus that was not escaped
			switch {
			case err != nil:
				fail.set(name, err.Error())
			case r.Key != nil:
				fail.set(name, "excludes key")
			}
			r.Key = key
		case "partition":
			p, ok := parsePartition(v)
			if !ok {
				fail.set(name, "must be a partition")
			}
			r.Partition = &p
		case "tombstone":
			if tombstone = true; v != "true" {
				fail.set(name, "must be true")
			}
		default:
			fail.set(clip(name), "unknown parameter")
		}
	}
	if fail.problem != "" {
		return nil, false, Invalid("publish", "", strings.ToValidUTF8(fail.field, "\uFFFD"), fail.problem)
	}
	return &Publish{Topic: topic, Record: r}, tombstone, nil
}

func headersOf(values []string, fail *fault) (hs []*tailracev1.Header) {
	for _, v := range values {
		name, value, found := strings.Cut(v, "=")
		switch {
		case !found:
			fail.set("header", "must be name=value")
		case !utf8.ValidString(name) || strings.ContainsRune(name, 0):
			fail.set("header", "a name must be UTF-8 without NUL")
		}
		hs = append(hs, &tailracev1.Header{Name: name, Value: []byte(value)})
	}
	return hs // a request's head has no room for too many
}
