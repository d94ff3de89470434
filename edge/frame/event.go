package frame

import "bytes"

// An event stream (text/event-stream, HTML standard, section 9.2) carries the same texts as a socket: an event has the name of its op and that
// op's object as its data. A records event has no name, and only the array of records as its data: what its positions tell is in its id.

// AppendEvent appends an event. Without a name it is a message. id may be empty: then the client keeps the one it has.
func AppendEvent(dst []byte, name string, id, data []byte) []byte {
	if name != "" {
		dst = append(append(append(dst, "event: "...), name...), '\n')
	}
	if len(id) > 0 {
		dst = append(append(append(dst, "id: "...), id...), '\n')
	}
	return append(appendData(dst, data), "\n\n"...)
}

// AppendEventPlace appends an event without data: the client takes note of its id, and its page is told nothing.
func AppendEventPlace(dst, id []byte) []byte {
	return append(append(append(dst, "id: "...), id...), "\n\n"...)
}

// AppendEventComment appends a comment, which clients ignore.
func AppendEventComment(dst []byte) []byte { return append(dst, ":\n\n"...) }

// appendData appends data: lines. A client puts an LF between them; so a line break in the data becomes one, whichever it is.
func appendData(dst, data []byte) []byte {
	dst = append(dst, "data: "...)
	for {
		i := lineBreak(data)
		if i < 0 {
			return append(dst, data...)
		}
		dst = append(append(dst, data[:i]...), "\ndata: "...)
		if data[i] == '\r' && i+1 < len(data) && data[i+1] == '\n' {
			i++
		}
		data = data[i+1:]
	}
}

func lineBreak(b []byte) int {
	i := bytes.IndexByte(b, '\n')
	if i >= 0 {
		b = b[:i]
	}
	if j := bytes.IndexByte(b, '\r'); j >= 0 {
		return j
	}
	return i
}
