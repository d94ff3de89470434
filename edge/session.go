package edge

import (
	"context"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"tailrace.dev/tailrace/edge/frame"
	"tailrace.dev/tailrace/services/access"
	"tailrace.dev/tailrace/services/hub"
	"tailrace.dev/tailrace/services/trace"
)

// state of a session.
type state uint8

const (
	opening state = iota // handed over, not yet on the worker's list
	open
	closing // our close frame is queued or being written; nothing else will be
	closed  // our side is closed; the peer's input is drained
	gone    // the descriptor is closed
)

// session is one WebSocket, or one stream of events, from the handshake to the end of the connection. Nothing of it is shared with another session or used again
// after it.
type session struct {
	// Fixed before the hand-over.
	conn     *net.TCPConn
	raw      syscall.RawConn // reads and writes go through it, so that a descriptor can't be another connection's
	identity access.Identity
	name     string
	form     *subprotocol
	url      *frame.Subscribe // of the URL form
	events   *events          // nil for a socket; its fields are the worker's
	urlError *frame.Error     // of the URL form, when it is malformed
	parent   *trace.Parent    // of its spans; nil: its request named none, or there are no spans
	started  int64            // Server.now

	// Shared by poller and worker.
	slot     slot         // in the poller's table; written by the worker before the poller knows the session
	received atomic.Int64 // Server.now when bytes last came
	blocked  atomic.Bool  // a write was short: the worker waits for writability
	paused   atomic.Bool  // what is to be sent is over its bound: the poller does not read on
	starved  atomic.Bool  // the poller stopped reading because of paused
	// Bytes of the unfinished message that the session is charged for; see input.
	unfinished atomic.Int64
	begun      atomic.Int64 // Server.now when it began to come; 0: there is none

	// Owned by the poller.
	in   reader
	rest []byte // came with the request head
	fed  bool   // rest was taken
	deaf bool   // the session ends: input is only drained

	// Owned by the worker.
	state    state
	again    bool    // in worker.again
	dirty    bool    // in worker.dirty
	eof      bool    // the peer will send nothing more
	share    float32 // from 0 to 1, by chance: of times that are not to be the same for all
	beatNow  bool    // something is wrong or right again: do not wait for the interval
	pos      int32   // in worker.sessions
	running  int32   // subscribes under way
	turn     int32   // whose subscription is pulled first
	pass     uint64
	subs     []*subscription
	work     []*consume
	pend     []byte // unfinished bytes: what must be written next
	ctl      []byte // whole frames that wait for a frame border
	pong     []byte // payload of the ping to answer at the next frame border; only the newest is due (RFC 6455, section 5.5.3)
	hasPong  bool
	pub      *publishing // nil until the first publish
	kept     int         // bytes of input held in pub and subs
	keys     int         // of subs
	asks     allowance   // of messages
	puts     allowance   // of publishes; it outlives pub, or who is idle for a moment would have a new one
	spoke    bool        // a message waits in ctl
	life     life
	retiring *reason // it ends for this once its publishes are answered
	reason   *reason
	cause    string
	closeBy  int64 // Server.now at which closing gives up
	records  uint64
	bytes    uint64
	messages uint64
}

// subscription is a session's hub.Subscription, and the way to it. It is owned by the session's worker.
type subscription struct {
	s       *session
	sub     *hub.Subscription // nil until started
	request *hub.Request      // nil once started
	by      time.Time         // when the subscribe has to be answered
	keys    int               // that it asked for
	cost    int               // bytes of input that it holds
	id      string
	as      frame.As
	token   uint64
	span    *trace.Receive     // until the first record; nil: there is none
	call    *task              // the subscribe under way
	cancel  context.CancelFunc // of it
	crowd   *crowd             // nil unless the whole topic is subscribed
	seat    int32              // in crowd
	group   int32              // 1 + index into worker.groups, during a pass
	hungry  bool               // there may be something to pull
	leaving bool               // unsubscribed before it started
	waiting bool               // for one of the session's subscribes under way
	inURL   bool               // of the URL form
}

func (s *session) kind() string {
	if s.events != nil {
		return kindEvents
	}
	return kindSocket
}

// find returns the open subscription of an id. A session has few; a map would cost every idle socket more than this costs the largest.
func (s *session) find(id string) *subscription {
	for _, sb := range s.subs {
		if sb.id == id {
			return sb
		}
	}
	return nil
}

// ungroup leaves to pulling what a pass has read and the session could not be given.
func (s *session) ungroup() {
	for _, sb := range s.subs {
		if sb.group != 0 {
			sb.group, sb.hungry = 0, true
		}
	}
}
