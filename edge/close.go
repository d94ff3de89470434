package edge

import (
	"encoding/binary"
	"time"
	"unicode/utf8"

	"github.com/gobwas/ws"
)

// Who ended a session, as a metric label.
const (
	byClient  = "client"
	byServer  = "server"
	byNetwork = "network"
)

// reason is why a session ended. All of them stand in the table below.
type reason struct {
	Name      string        // label of the metric and the log, and the reason in goodbye
	Code      ws.StatusCode // what the peer sees: in our close frame, or 1006 (RFC 6455, section 7.1.5) where there is none
	Initiator string
	Text      string // reason in our close frame; the cause is for the log
	silent    bool   // no close frame of ours is due
}

// comeBack says whether the client is to come back by itself: by the range of the code alone, so that a new code needs no new client.
func (r *reason) comeBack() bool {
	c := r.Code
	return c == 1001 || c == 1005 || c == 1006 || c >= 1011 && c <= 1015 || c >= 4000 && c <= 4499
}

// lost says that the client did not leave, nor was sent away for a reason of ours: it vanished, hangs, or talks nonsense. What it was working on may
// be why.
func (r *reason) lost() bool {
	switch r {
	case &endClientEOF, &endNetwork, &endNoLife, &endStalled, &endSlowMessage,
		&endProtocol, &endBinary, &endText, &endInvalidUTF8, &endMessageTooBig, &endBadFrame, &endBadBinary:
		return true
	}
	return false
}

// The one table of reasons and close codes. The client's own code stands in the log's cause where the client closed.
var (
	endClientClose = reason{Name: "client_close", Code: ws.StatusNormalClosure, Initiator: byClient}
	endClientEOF   = reason{Name: "client_eof", Code: ws.StatusAbnormalClosure, Initiator: byClient, silent: true}
	endNetwork     = reason{Name: "network_error", Code: ws.StatusAbnormalClosure, Initiator: byNetwork, silent: true}

	endSubscription  = reason{Name: "subscription_ended", Code: ws.StatusNormalClosure, Initiator: byServer, Text: "subscription ended"} // of a stream of events
	endStopped       = reason{Name: "stopped", Code: ws.StatusGoingAway, Initiator: byServer, Text: "server stopped"}
	endProtocol      = reason{Name: "protocol_error", Code: ws.StatusProtocolError, Initiator: byServer, Text: "protocol error"}
	endBinary        = reason{Name: "binary_frame", Code: ws.StatusUnsupportedData, Initiator: byServer, Text: "tailrace.v1.json takes text frames, not binary ones"}
	endText          = reason{Name: "text_frame", Code: ws.StatusUnsupportedData, Initiator: byServer, Text: "tailrace.v1.proto takes binary frames, not text ones"}
	endInvalidUTF8   = reason{Name: "invalid_utf8", Code: ws.StatusInvalidFramePayloadData, Initiator: byServer, Text: "text is not UTF-8"}
	endMessageTooBig = reason{Name: "message_too_big", Code: ws.StatusMessageTooBig, Initiator: byServer, Text: "message is larger than maxMessageBytes"}
	endInternal      = reason{Name: "internal_error", Code: ws.StatusInternalServerError, Initiator: byServer, Text: "internal error"}

	endDraining     = reason{Name: "draining", Code: 4000, Initiator: byServer, Text: "draining"}
	endLagged       = reason{Name: "lagged", Code: 4001, Initiator: byServer, Text: "too slow for the policy fail"}
	endUpstreamGone = reason{Name: "upstream_gone", Code: 4003, Initiator: byServer, Text: "the service, or Kafka behind it, is away"}
	endNoLife       = reason{Name: "no_sign_of_life", Code: 4004, Initiator: byServer, Text: "no sign of life"}
	endStalled      = reason{Name: "stalled", Code: 4004, Initiator: byServer, Text: "stalled"}
	endTokenExpired = reason{Name: "token_expired", Code: 4006, Initiator: byServer, Text: "token expired"}
	endAge          = reason{Name: "connection_age", Code: 4008, Initiator: byServer, Text: "connection is old enough"}
	endOverLimit    = reason{Name: "over_limit", Code: 4029, Initiator: byServer, Text: "no memory for more of your input; come back later"}
	endSlowMessage  = reason{Name: "slow_message", Code: 4029, Initiator: byServer, Text: "message was not finished in time"}

	endBadFrame        = reason{Name: "bad_frame", Code: 4500, Initiator: byServer, Text: "message is not a JSON object"}
	endBadBinary       = reason{Name: "bad_binary_frame", Code: 4500, Initiator: byServer, Text: "message is not a ClientFrame"}
	endUnauthenticated = reason{Name: "unauthenticated", Code: 4501, Initiator: byServer, Text: "unauthenticated"}
	endForbidden       = reason{Name: "forbidden", Code: 4503, Initiator: byServer, Text: "forbidden"}
	endUnknownTopic    = reason{Name: "unknown_topic", Code: 4504, Initiator: byServer, Text: "unknown topic"}
)

// reasons lists the table.
func reasons() []*reason {
	return []*reason{
		&endClientClose, &endClientEOF, &endNetwork,
		&endSubscription, &endStopped, &endProtocol, &endBinary, &endText, &endInvalidUTF8, &endMessageTooBig, &endInternal,
		&endDraining, &endLagged, &endUpstreamGone, &endNoLife, &endStalled, &endTokenExpired, &endAge, &endOverLimit, &endSlowMessage,
		&endBadFrame, &endBadBinary, &endUnauthenticated, &endForbidden, &endUnknownTopic,
	}
}

// Clients that are sent away to come back do so after a random time up to this, so that they don't come all at once.
const comeBackSpread = 5 * time.Second

// maxCloseReason is what a close frame has room for beside its code (RFC 6455, section 5.5).
const maxCloseReason = ws.MaxControlFramePayloadSize - 2

// appendClosePayload appends the payload of a close frame, the text cut at a character's border.
func appendClosePayload(dst []byte, code ws.StatusCode, text string) []byte {
	if len(text) > maxCloseReason {
		cut := maxCloseReason
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		text = text[:cut]
	}
	return append(binary.BigEndian.AppendUint16(dst, uint16(code)), text...)
}

// parseClosePayload reads the payload of a client's close frame; 1005 where it is empty. Codes 1012 to 1014 are registered since RFC 6455.
func parseClosePayload(p []byte) (code ws.StatusCode, text string, bad *reason, cause string) {
	switch len(p) {
	case 0:
		return ws.StatusNoStatusRcvd, "", nil, ""
	case 1:
		return 0, "", &endProtocol, "close frame with half a code"
	}
	code = ws.StatusCode(binary.BigEndian.Uint16(p))
	switch {
	case code >= 1000 && code <= 1003, code >= 1007 && code <= 1014, code >= 3000 && code <= 4999:
	default:
		return 0, "", &endProtocol, "close frame with an illegal code"
	}
	if !utf8.Valid(p[2:]) {
		return 0, "", &endInvalidUTF8, "close frame whose reason is not UTF-8"
	}
	return code, string(p[2:]), nil, ""
}
