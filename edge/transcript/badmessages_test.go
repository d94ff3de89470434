package transcript_test

import (
	"fmt"
	"strings"
)

// badMessages are JSON texts. Those that are no object end the connection; all others are answered, and it goes on.
func badMessages() []misdeed {
	var deeds []misdeed
	add := func(name, want string, messages ...string) {
		var data [][]byte
		for _, m := range messages {
			data = append(data, masked(fin|opText, []byte(m)))
		}
		deeds = append(deeds, misdeed{"message: " + name, func(w *world) (string, error) {
			return converse(w, "/ws", protocolJSON, want, append(data, lastPing())...)
		}, want})
	}
	for name, text := range map[string]string{
		"empty": "", "white space": " \r\n\t ", "an array": "[]", "a string": `"x"`, "a number": "1", "null": "null", "true": "true", "a word": "hello",
		"a torso": `{"op":"ping"`, "a comma too many": `{"op":"ping","id":"x",}`, "two objects": `{"op":"ping","id":"x"}{"op":"ping","id":"x"}`,
		"a byte order mark": "\ufeff" + `{"op":"ping","id":"x"}`, "NUL behind it": `{"op":"ping","id":"x"}` + "\x00", "NUL within a string": "{\"op\":\"ping\",\"id\":\"\x00\"}",
		"single quotes": `{'op':'ping'}`, "a comment": `{"op":"ping",/**/"id":"x"}`, "not a number": `{"op":"ping","id":NaN}`,
		"a number with a leading zero": `{"op":"ping","id":01}`, "an unknown escape": `{"op":"ping","id":"\x41"}`, "a line break in a string": "{\"op\":\"ping\",\"id\":\"\n\"}",
		"an escape cut short": `{"op":"ping","id":"\u00"}`, "a name without quotes": `{op:"ping"}`,
		"100,000 arrays deep":  strings.Repeat("[", 100_000) + strings.Repeat("]", 100_000),
		"100,000 objects deep": strings.Repeat(`{"a":`, 100_000) + "1" + strings.Repeat("}", 100_000),
		"deep and not closed":  `{"op":"ping","id":` + strings.Repeat("[", 1_000_000),
	} {
		add(name, "goodbye close 4500", text)
	}
	for name, text := range map[string]string{
		"op is missing": `{}`, "op is a number": `{"op":1}`, "op is null": `{"op":null}`, "op in capitals": `{"OP":"ping","id":"x"}`, "op twice": `{"op":"ping","op":"ping","id":"x"}`,
	} {
		add(name, "frame: INVALID_ARGUMENT: op", text)
	}
	add("unknown op", "frame: UNKNOWN_OP", `{"op":"fly"}`)
	add("an op of a megabyte", "frame: UNKNOWN_OP", `{"op":"`+strings.Repeat("x", 1<<20)+`"}`)
	add("an op with half a surrogate pair", "frame: INVALID_ARGUMENT: op", `{"op":"\ud800"}`)
	add("a name with half a surrogate pair", "INVALID_ARGUMENT: ", `{"op":"ping","id":"x","\udc00":1}`)
	add("unknown field", "frame: INVALID_ARGUMENT: x: unknown field", `{"op":"ping","id":"x","x":1}`)
	add("a prototype", "frame: INVALID_ARGUMENT: __proto__: unknown field", `{"op":"ping","id":"x","__proto__":{}}`)
	many := make([]string, 20_000)
	for i := range many {
		many[i] = fmt.Sprintf(`"f%d":%d`, i, i)
	}
	add("20,000 unknown fields", "frame: INVALID_ARGUMENT: f0: unknown field", `{"op":"ping","id":"x",`+strings.Join(many, ",")+`}`)
	for name, id := range map[string]string{
		"missing": "", "null": `"id":null`, "a number": `"id":7`, "an array": `"id":["x"]`, "an object": `"id":{}`, "empty": `"id":""`,
		"33 characters": `"id":"` + strings.Repeat("é", 33) + `"`, "half a surrogate pair": `"id":"\ud800x"`,
	} {
		add("id: "+name, "frame: INVALID_ARGUMENT: id", strings.Replace(`{"op":"ping",`+id+`}`, ",}", "}", 1))
	}
	add("id with NUL", "pong lives", `{"op":"ping","id":"\u0000"}`)

	subscribe := func(name, want, rest string) {
		add("subscribe: "+name, want, `{"op":"subscribe","id":"a","topic":"orders",`+rest+`}`)
	}
	bad := func(field string, values map[string]string) {
		for name, v := range values {
			subscribe(field+" "+name, "subscribe: INVALID_ARGUMENT: "+strings.SplitN(field, ".", 2)[0], v)
		}
	}
	for name, topic := range map[string]string{"missing": "", "empty": `,"topic":""`, "a number": `,"topic":1`, "null": `,"topic":null`, "half a surrogate pair": `,"topic":"\ud83d"`} {
		add("subscribe: topic "+name, "subscribe: INVALID_ARGUMENT: topic", `{"op":"subscribe","id":"a"`+topic+`}`)
	}
	for name, topic := range map[string]string{"with NUL": `or\u0000ders`, "of a megabyte": strings.Repeat("x", 1<<20), "that climbs": "../../etc/passwd", "a dot": ".", "of Kafka's own": "__nothing"} {
		add("subscribe: topic "+name, "subscribe: ", `{"op":"subscribe","id":"a","topic":"`+topic+`"}`)
	}
	bad("topicId", map[string]string{"is a number": `"topicId":1`, "is null": `"topicId":null`})
	bad("keys", map[string]string{
		"is a string": `"keys":"k"`, "is empty": `"keys":[]`, "has a number": `"keys":[1]`, "has null": `"keys":[null]`, "has bad base64": `"keys":[{"base64":"%%%"}]`,
		"has base64 with a line break": `"keys":[{"base64":"YQ\n=="}]`, "has an object without base64": `"keys":[{}]`, "has an unknown field": `"keys":[{"base64":"YQ==","x":1}]`,
		"are 1,001": `"keys":["k"` + strings.Repeat(`,"k"`, 1000) + `]`, "have more than 64 KiB": `"keys":["` + strings.Repeat("k", 64<<10+1) + `"]`,
		"has half a surrogate pair": `"keys":["\ud800"]`, "is an object": `"keys":{"0":"k"}`, "are 100,000": `"keys":["k"` + strings.Repeat(`,1`, 100_000) + `]`,
	})
	bad("partitions", map[string]string{
		"is empty": `"partitions":[]`, "is negative": `"partitions":[-1]`, "is a fraction": `"partitions":[0.5]`, "is in exponents": `"partitions":[1e0]`, "is 2^31": `"partitions":[2147483648]`,
		"is 1e999": `"partitions":[1e999]`, "is a string": `"partitions":["0"]`, "is a number": `"partitions":0`, "are 10,001": `"partitions":[0` + strings.Repeat(",0", 10_000) + `]`,
	})
	subscribe("a partition that is not there", "subscribe: UNKNOWN_PARTITION", `"partitions":[2147483647]`)
	bad("start", map[string]string{
		"is unknown": `"start":"newest"`, "is null": `"start":null`, "is a number": `"start":5`, "is empty": `"start":{}`, "has two kinds": `"start":{"last":1,"time":"2026-11-30T12:00:00Z"}`,
		"has an unknown kind": `"start":{"offset":1}`, "last is 0": `"start":{"last":0}`, "last is negative": `"start":{"last":-5}`, "last is too large": `"start":{"last":100001}`,
		"last is 1e999": `"start":{"last":1e999}`, "last is a string": `"start":{"last":"10"}`, "last is a fraction": `"start":{"last":1.5}`,
		"time is a number": `"start":{"time":1764518400}`, "time is no time": `"start":{"time":"yesterday"}`, "time has no zone": `"start":{"time":"2026-11-30T12:00:00"}`,
		"time is the 13th month": `"start":{"time":"2026-13-01T12:00:00Z"}`, "time is of five digits": `"start":{"time":"99999-01-01T00:00:00Z"}`, "time is empty": `"start":{"time":""}`,
		"positions is an array": `"start":{"positions":[0]}`, "positions is empty": `"start":{"positions":{}}`, "position of a negative partition": `"start":{"positions":{"-1":0}}`,
		"position of 01": `"start":{"positions":{"01":0}}`, "position of x": `"start":{"positions":{"x":0}}`, "position of 2^31": `"start":{"positions":{"2147483648":0}}`,
		"position twice": `"start":{"positions":{"0":1,"0":2}}`, "position twice, escaped": `"start":{"positions":{"0":1,"\u0030":2}}`, "position is negative": `"start":{"positions":{"0":-1}}`,
		"position is a fraction": `"start":{"positions":{"0":1.5}}`, "position in exponents": `"start":{"positions":{"0":1e3}}`, "position is 1e999": `"start":{"positions":{"0":1e999}}`,
		"position is 2^53": `"start":{"positions":{"0":9007199254740992}}`, "position of 400 digits": `"start":{"positions":{"0":` + strings.Repeat("9", 400) + `}}`,
		"position is a string": `"start":{"positions":{"0":"12"}}`, "position is null": `"start":{"positions":{"0":null}}`, "position of one": `"start":{"positions":{"0":[1]}}`,
		"position of three": `"start":{"positions":{"0":[1,2,3]}}`, "epoch is negative": `"start":{"positions":{"0":[1,-1]}}`, "epoch is 2^31": `"start":{"positions":{"0":[1,2147483648]}}`,
		"missing is unknown": `"start":{"positions":{"0":0},"missing":"none"}`, "missing without positions": `"start":{"last":1,"missing":"skip"}`,
	})
	bad("until", map[string]string{
		"is unknown": `"until":"never"`, "is null": `"until":null`, "is empty": `"until":{}`, "records is 0": `"until":{"records":0}`, "records is negative": `"until":{"records":-1}`,
		"has two kinds": `"until":{"records":1,"positions":{"0":1}}`, "records is 1e999": `"until":{"records":1e999}`,
	})
	bad("onOutOfRange", map[string]string{"is unknown": `"onOutOfRange":"ignore"`, "is a bool": `"onOutOfRange":true`})
	bad("slow", map[string]string{"is unknown": `"slow":"drop"`, "is null": `"slow":null`})
	bad("as", map[string]string{"is unknown": `"as":"xml"`, "is in capitals": `"as":"JSON"`})
	bad("maxRecordBytes", map[string]string{
		"is negative": `"maxRecordBytes":-1`, "is 2^31": `"maxRecordBytes":2147483648`, "is 1e999": `"maxRecordBytes":1e999`, "is a string": `"maxRecordBytes":"1"`, "is -0": `"maxRecordBytes":-0.0`,
	})

	publish := func(name, want, rest string) {
		add("publish: "+name, "publish: "+want, `{"op":"publish","id":"p","topic":"orders",`+rest+`}`)
	}
	for name, rest := range map[string]string{
		"no payload": `"key":"k"`, "two payloads": `"value":1,"text":"x"`, "all payloads": `"value":1,"text":"x","base64":"","tombstone":true`, "tombstone is false": `"tombstone":false`,
		"tombstone is a string": `"tombstone":"true"`, "text is a number": `"text":1`, "text is null": `"text":null`, "text with half a surrogate pair": `"text":"\ud800"`,
		"base64 is bad": `"base64":"a"`, "base64 with bits left": `"base64":"YR=="`, "base64 is a number": `"base64":1`, "key and keyBase64": `"text":"x","key":"k","keyBase64":"aw=="`,
		"key is a number": `"text":"x","key":1`, "keyBase64 is bad": `"text":"x","keyBase64":"*"`, "headers is an object": `"text":"x","headers":{"h":"v"}`,
		"a header of one": `"text":"x","headers":[["h"]]`, "a header of three": `"text":"x","headers":[["h","v","w"]]`, "a header's name is a number": `"text":"x","headers":[[1,"v"]]`,
		"a header's name has NUL": `"text":"x","headers":[["h\u0000","v"]]`, "a header's value is a number": `"text":"x","headers":[["h",1]]`,
		"1,001 headers":         `"text":"x","headers":[["h","v"]` + strings.Repeat(`,["h","v"]`, 1000) + `]`,
		"partition is negative": `"text":"x","partition":-1`, "partition is 2^31": `"text":"x","partition":2147483648`, "partition is a string": `"text":"x","partition":"0"`,
		"partition is 1e999": `"text":"x","partition":1e999`,
	} {
		publish(name, "INVALID_ARGUMENT", rest)
	}
	publish("a partition that is not there", "UNKNOWN_PARTITION", `"text":"x","partition":77`)
	publish("larger than the broker takes", "RECORD_TOO_LARGE", `"text":"`+strings.Repeat("x", 1_500_000)+`"`)
	add("publish: topic that is not there", "publish: UNKNOWN_TOPIC", `{"op":"publish","id":"p","topic":"nosuch","text":"x"}`)
	add("publish: topic with NUL", "publish: ", `{"op":"publish","id":"p","topic":"or\u0000ders","text":"x"}`)
	add("unsubscribe of nothing", "unsubscribe: INVALID_ARGUMENT: id", `{"op":"unsubscribe","id":"a"}`)
	add("auth with anything in it", "auth: UNIMPLEMENTED", `{"op":"auth","id":"q","what":[{}],"ever":1e999}`)
	for op, rests := range map[string][]string{
		"consume": {
			``, `"group":"g"`, `"topics":["orders"]`, `"group":"","topics":["orders"]`, `"group":"g","topics":[]`, `"group":"g","topics":"orders"`, `"group":"g","topics":[""]`,
			`"group":" ","topics":["orders"]`, `"group":"g\u0000-ro","topics":["orders"]`, `"group":"g\n","topics":["orders"]`, `"group":"` + strings.Repeat("x", 250) + `","topics":["orders"]`,
			`"group":"g","topics":[1]`, `"group":"g","topics":["orders"],"what":[{}]`,
			`"group":"g","topics":["orders"],"maxInFlight":0`, `"group":"g","topics":["orders"],"maxInFlight":10001`, `"group":"g","topics":["orders"],"ackTimeoutMs":999`,
			`"group":"g","topics":["orders"],"ackTimeoutMs":1e999`, `"group":"g","topics":["orders"],"maxAttempts":-1`, `"group":"g","topics":["orders"],"initial":"now"`,
			`"group":"g","topics":["orders"],"ordering":"topic"`, `"group":"g","topics":["orders"],"autoAck":"true"`, `"group":"g","topics":["orders"],"deadLetter":null`,
			`"group":"g","topics":["orders"],"deadLetter":"a/b"`, `"group":"g","topics":["orders"],"deadLetter":".."`, `"group":"g","topics":["orders"],"deadLetter":"orders"`,
			`"group":"g","topics":["orders"],"deadLetter":"` + strings.Repeat("x", 250) + `"`, `"group":"g","topics":["orders","orders.dlq"]`,
			`"group":"g","topics":["` + strings.Repeat("x", 246) + `"]`,
		},
		"ack":  {``, `"tags":[]`, `"tags":7`, `"tags":["7"]`, `"tags":[-1]`, `"tags":[9007199254740992]`, `"upTo":1.5`, `"upTo":1,"more":1`},
		"nack": {``, `"tags":[]`, `"upTo":1`, `"tags":[1],"delayMs":-1`, `"tags":[1],"delayMs":3600001`, `"tags":[1],"reason":"` + strings.Repeat("x", 1025) + `"`},
	} {
		for _, rest := range rests {
			add(op+" with {"+rest[:min(len(rest), 80)]+"}", op+": INVALID_ARGUMENT", strings.Replace(`{"op":"`+op+`","id":"q",`+rest+`}`, ",}", "}", 1))
		}
	}
	for _, op := range []string{"welcome", "records", "error", "goodbye", "deliveries"} {
		add("an op of the server: "+op, "frame: UNKNOWN_OP", `{"op":"`+op+`","id":"q"}`)
	}
	thousands := make([]string, 2000)
	for i := range thousands {
		thousands[i] = fmt.Sprintf(`{"op":"subscribe","id":"%d","topic":"orders"}`, i)
	}
	add("2,000 subscriptions", "subscribe: LIMIT: at the limit of 500", thousands...)
	for i := range thousands {
		thousands[i] = `{"op":"subscribe","id":"a","topic":"orders"}`
	}
	add("2,000 subscriptions with one id", "subscribe: ID_IN_USE", thousands...)
	for i := range thousands {
		thousands[i] = fmt.Sprintf(`{"op":"publish","id":"%d","topic":"nosuch","text":"x"}`, i)
	}
	add("2,000 publishes at once", "publish: LIMIT", thousands...)
	return deeds
}
