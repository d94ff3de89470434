// Package frame is the WebSocket protocol in its two forms: JSON (subprotocol tailrace.v1.json) and Proto (tailrace.v1.proto), each a Codec
// that reads what a client sent and writes what the edge sends. The functions Parse and Append… are those of JSON. edge/README.md is the
// reference of the protocol.
//
// The package has no state and starts no goroutines; all of it may be called concurrently. It never yields invalid UTF-8 or
// invalid JSON, whatever a record holds. What Parse returns shares no memory with the message it was given.
package frame

import (
	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	"tailrace.dev/tailrace/services/hub"
)

// Protocol is the version that welcome tells.
const Protocol = 1

// MaxID is the longest id of a subscription, publish or ping, in characters; the shortest has one.
const MaxID = 32

// URLID is the id of the subscription that the URL form makes.
const URLID = "0"

// CloseBadFrame is the close code for a message that is not a JSON object, or not a ClientFrame.
const CloseBadFrame = 4500

// As says how a payload is put into JSON.
type As uint8

// The choices of As; those of JSON are also the hub.FormIDs under which entries keep it.
const (
	AsAuto   As = iota // value where it is JSON, else text where it is UTF-8, else base64
	AsJSON             // value or base64
	AsText             // text or base64
	AsBase64           // base64
	AsBytes            // as it is: all that Proto has
)

// Op is what a client asked for: *Subscribe, *Unsubscribe, *Consume, *Settle, *Publish, *Ping or *Unbuilt.
type Op interface{ isOp() }

// Subscribe starts a subscription.
type Subscribe struct {
	ID      string
	Request hub.Request
	As      As
}

// Unsubscribe ends a subscription.
type Unsubscribe struct {
	ID string
}

// Publish appends a record.
type Publish struct {
	ID     string
	Topic  string
	Record *tailracev1.PublishRecord
}

// Ping asks for a pong.
type Ping struct {
	ID string
}

// Unbuilt is an op of the protocol that this build does not have: auth. Answer it with Refusal.
type Unbuilt struct {
	Op string
	ID string // empty where there is none
}

// Refusal is the answer to an op that this build does not have.
func (u *Unbuilt) Refusal() *Error {
	return &Error{
		Re: u.Op, ID: u.ID, Final: true,
		Code: "unimplemented", Reason: "UNIMPLEMENTED", Message: "this build does not have the op " + u.Op,
	}
}

func (*Subscribe) isOp()   {}
func (*Unsubscribe) isOp() {}
func (*Publish) isOp()     {}
func (*Ping) isOp()        {}
func (*Unbuilt) isOp()     {}

// Error is the answer to a request that failed, or says why a subscription ended. A refused subscribe or consume is Final; where its id
// is in use by another one, answer IDInUse instead, since a final error would end that one for the client.
type Error struct {
	Re           string // the request answered: subscribe, unsubscribe, publish, consume, ack, nack, auth, frame
	ID           string
	Final        bool   // the subscription or consume of that id is over
	Code         string // Connect code name
	Reason       string // stable
	Message      string
	Retryable    bool
	Outcome      string // for a publish: "refused" or "unknown", else empty
	RetryAfterMs int64
	Tags         []int64 // for an ack or nack: the tags without effect
	Close        int     // not 0: the connection is to be closed with this code, and Message as the reason
}
