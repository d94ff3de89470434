package frame

import "net/url"

// Parse reads one text message. Exactly one of its results is not nil. An Error with Close set ends the connection; any other is answered
// and the connection goes on.
func Parse(msg []byte) (Op, *Error) { panic("in the making") }

// ParseURL reads the URL form: /ws/{topic}?start=latest&key=…
func ParseURL(topic string, q url.Values) (*Subscribe, *Error) { panic("in the making") }
