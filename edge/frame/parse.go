package frame

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
)

// Parse reads one text message. Exactly one of its results is not nil. An Error with Close set ends the connection; any other is answered
// and the connection goes on. Unknown ops and fields are refused by name, names are case-sensitive and must not come twice.
func Parse(msg []byte) (Op, *Error) {
	var fail fault
	o, ok := readObject(msg, "", &fail)
	if !ok {
		return nil, &Error{
			Re: "frame", Code: "invalid_argument", Reason: "BAD_FRAME", Message: "the message is not a JSON object", Close: CloseBadFrame,
		}
	}
	name := o.required("op")
	var op Op
	var id string
	switch name {
	case "subscribe":
		s := parseSubscribe(o)
		op, id = s, s.ID
	case "unsubscribe":
		id = o.id()
		op = &Unsubscribe{ID: id}
	case "publish":
		p := parsePublish(o)
		op, id = p, p.ID
	case "ping":
		id = o.id()
		op = &Ping{ID: id}
	case "consume":
		c := parseConsume(o)
		op, id = c, c.ID
	case "ack":
		a := parseAck(o)
		op, id = a, a.ID
	case "nack":
		n := parseNack(o)
		op, id = n, n.ID
	case "auth":
		if raw := o.take("id"); raw != nil {
			o.members = append(o.members, member{name: "id", raw: raw})
			id = o.id()
		}
		return &Unbuilt{Op: name, ID: id}, nil
	default:
		return nil, o.unknownOp(name)
	}
	o.refuseRest()
	if fail.problem != "" {
		re := name
		if re == "ping" {
			re = "frame"
		}
		return nil, Invalid(re, id, fail.field, fail.problem)
	}
	return op, nil
}

// unknownOp is the answer to an op that the protocol does not have, or to a message without one.
func (o *object) unknownOp(name string) *Error {
	e := Invalid("frame", "", o.fail.field, o.fail.problem)
	if name != "" {
		e.Reason, e.Message = "UNKNOWN_OP", fmt.Sprintf("unknown op %q", clip(name))
	}
	e.ID = o.id()
	return e
}

func parsePublish(o *object) *Publish {
	p := &Publish{ID: o.id(), Topic: o.required("topic"), Record: &tailracev1.PublishRecord{}}
	r := p.Record
	key, keyed := o.text("key")
	if keyed {
		r.Key = []byte(key)
	}
	if encoded, ok := o.text("keyBase64"); ok {
		if keyed {
			o.wrong("keyBase64", "excludes key")
		}
		r.Key, _ = o.decodeBase64("keyBase64", encoded)
	}
	o.payload(r)
	if headers, ok := o.array("headers"); ok && (len(headers) == 0 || o.count("headers", len(headers), maxHeaders)) {
		r.Headers = make([]*tailracev1.Header, len(headers))
		for i, h := range headers {
			r.Headers[i] = o.header(fmt.Sprintf("headers.%d", i), h)
		}
	}
	if n, ok := o.number("partition", 0, math.MaxInt32); ok {
		partition := int32(n)
		r.Partition = &partition
	}
	return p
}

// payload takes exactly one of value, text, base64 and tombstone.
func (o *object) payload(r *tailracev1.PublishRecord) {
	given := 0
	if raw := o.take("value"); raw != nil {
		given++
		r.Value = bytes.Clone(raw)
	}
	if raw := o.take("text"); raw != nil {
		given++
		text, _ := o.textOf("text", raw)
		r.Value = []byte(text)
	}
	if raw := o.take("base64"); raw != nil {
		given++
		if encoded, ok := o.textOf("base64", raw); ok {
			r.Value, _ = o.decodeBase64("base64", encoded)
		}
	}
	if raw := o.take("tombstone"); raw != nil {
		given++
		if string(raw) != "true" {
			o.wrong("tombstone", "must be true")
		}
		r.Value = nil
	}
	if given != 1 {
		o.wrong("", fmt.Sprintf("exactly one of value, text, base64 and tombstone is required, not %d", given))
	}
}

// header reads [name, value]: value is a string, null, or {"base64":…}.
func (o *object) header(at string, raw []byte) *tailracev1.Header {
	pair, ok := o.arrayOf(at, raw)
	if !ok || len(pair) != 2 {
		o.wrong(at, "must be [name, value]")
		return nil
	}
	h := &tailracev1.Header{}
	h.Name, _ = o.textOf(at, pair[0])
	if strings.ContainsRune(h.Name, 0) {
		o.wrong(at, "a name must not contain NUL")
	}
	if string(pair[1]) != "null" {
		h.Value, _ = o.bytesOf(at, pair[1])
	}
	return h
}
