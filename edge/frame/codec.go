package frame

import (
	"time"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Codec is one form of the protocol: JSON or Proto. A session has one for its whole life. Codecs have no state.
type Codec interface {
	// Parse reads one message of a client. Exactly one of its results is not nil. An Error with Close set ends the connection; any other is
	// answered and the connection goes on. What Parse returns shares no memory with msg.
	Parse(msg []byte) (Op, *Error)
	// Append appends the payload of a frame; nothing for a Control that clients learn of otherwise.
	Append(dst []byte, f Frame) []byte
	// AppendRecordsPrefix appends what differs between subscribers of the same records, whose body has bodyBytes bytes.
	AppendRecordsPrefix(dst []byte, id string, bodyBytes int) []byte
	// AppendRecordsBody appends the rest of a records frame, the same for all subscribers at the same place with the same as, which is one
	// that Parse of this codec has given. parts are a Run.
	AppendRecordsBody(dst []byte, parts []hub.Part, as As) []byte
	// AppendDeliveries appends a records frame of a consume: deliveries is a well-formed tailrace.v1.Deliveries, see Cut.
	AppendDeliveries(dst []byte, id string, deliveries []byte) []byte
}

// Frame is what the edge says, records aside: Welcome, Started, ConsumeStarted, ConsumeGap, CaughtUp, Control, *Heartbeat, Result, Unsubscribed, Pong, *Error or Goodbye.
type Frame interface{ isFrame() }

// Welcome is the first frame of a session.
type Welcome struct {
	Session         string
	Heartbeat       time.Duration
	MaxMessageBytes int64
}

// Started tells how a subscription was resolved.
type Started struct {
	ID    string
	Topic string
	At    hub.Started
}

// CaughtUp is the seam between what was there before and what is live.
type CaughtUp struct {
	ID string
}

// Control is a part that carries no records.
type Control struct {
	ID    string
	Topic string
	Part  *hub.Part
}

// Result is the answer to a publish: published, or the error of its failure.
type Result struct {
	ID     string
	Result *tailracev1.PublishResult
}

// Unsubscribed is the end of a subscription without an error.
type Unsubscribed struct {
	ID     string
	Reason string // "client" or "until"
}

// Pong answers a Ping.
type Pong struct {
	ID string
}

// Goodbye announces a close frame. The client comes back after a random time from ComeBackMin to ComeBackMax; with a negative ComeBackMax it
// stays away.
type Goodbye struct {
	Code                     int
	Reason                   string
	ComeBackMin, ComeBackMax time.Duration
}

func (Welcome) isFrame()      {}
func (Started) isFrame()      {}
func (CaughtUp) isFrame()     {}
func (Control) isFrame()      {}
func (*Heartbeat) isFrame()   {}
func (Result) isFrame()       {}
func (Unsubscribed) isFrame() {}
func (Pong) isFrame()         {}
func (*Error) isFrame()       {}
func (Goodbye) isFrame()      {}

// JSON is the subprotocol tailrace.v1.json.
type JSON struct{}

// Parse is the function Parse.
func (JSON) Parse(msg []byte) (Op, *Error) { return Parse(msg) }

// Append appends the JSON of a frame.
func (JSON) Append(dst []byte, f Frame) []byte {
	switch f := f.(type) {
	case Welcome:
		return AppendWelcome(dst, f.Session, f.Heartbeat, f.MaxMessageBytes)
	case Started:
		return AppendStarted(dst, f.ID, f.Topic, f.At)
	case ConsumeStarted:
		return appendConsumeStarted(dst, f.ID, f.Settings)
	case ConsumeGap:
		return appendConsumeGap(dst, f)
	case CaughtUp:
		return AppendCaughtUp(dst, f.ID)
	case Control:
		return AppendControl(dst, f.ID, f.Part)
	case *Heartbeat:
		return AppendHeartbeat(dst, f)
	case Result:
		return AppendResult(dst, f.ID, f.Result)
	case Unsubscribed:
		return AppendUnsubscribed(dst, f.ID, f.Reason)
	case Pong:
		return AppendPong(dst, f.ID)
	case *Error:
		return AppendError(dst, f)
	case Goodbye:
		return AppendGoodbye(dst, f.Code, f.Reason, f.ComeBackMin, f.ComeBackMax)
	}
	return dst
}

// AppendRecordsPrefix is the function AppendRecordsPrefix.
func (JSON) AppendRecordsPrefix(dst []byte, id string, _ int) []byte {
	return AppendRecordsPrefix(dst, id)
}

// AppendRecordsBody is the function AppendRecordsBody.
func (JSON) AppendRecordsBody(dst []byte, parts []hub.Part, as As) []byte {
	return AppendRecordsBody(dst, parts, as)
}
