package edge

import (
	"github.com/gobwas/ws"

	"tailrace.dev/tailrace/edge/frame"
)

// subprotocol is a form of the protocol: all that is not the same on every socket. A session keeps the one that its handshake has chosen.
type subprotocol struct {
	frame.Codec
	name   string
	opcode ws.OpCode // of messages, both ways
	other  *reason   // a message with another opcode came
	bad    *reason   // a message came that is none of the codec's
}

// subprotocols lists them. A client that offers none speaks the first.
func subprotocols() []*subprotocol { return []*subprotocol{&protocolJSON, &protocolProto} }

var (
	protocolJSON  = subprotocol{frame.JSON{}, "tailrace.v1.json", ws.OpText, &endBinary, &endBadFrame}
	protocolProto = subprotocol{frame.Proto{}, "tailrace.v1.proto", ws.OpBinary, &endText, &endBadBinary}
)

// subprotocolOf returns the subprotocol of a name; nil if there is none.
func subprotocolOf(name string) *subprotocol {
	for _, p := range subprotocols() {
		if p.name == name {
			return p
		}
	}
	return nil
}

func knownSubprotocols() (names string) {
	for i, p := range subprotocols() {
		if i > 0 {
			names += ", "
		}
		names += p.name
	}
	return names
}
