package edge

import (
	"sync"

	"github.com/gobwas/ws"

	"tailrace.dev/tailrace/services/hub"

	tailracev1 "tailrace.dev/tailrace/gen/tailrace/v1"
	wirev1 "tailrace.dev/tailrace/gen/tailrace/wire/v1"
)

// maxInbox is the number of posts at which a poller waits for its worker.
const maxInbox = 4096

// post is something that happened to a session: a frame.Op or *frame.Error of the client's, or one of the types below.
type post struct {
	s       *session
	what    any
	charged int64 // bytes of input
}

type (
	// opened: the handshake is done. It and the next two come from tasks.
	opened struct{}
	// subscribed is the result of a subscribe; exactly one of sub and err is set.
	subscribed struct {
		to  *subscription
		sub *hub.Subscription
		err error
	}
	// published is the answer to a publish, by its number; 0: there was none for long.
	published struct {
		by     *publishing
		n      uint64
		result *tailracev1.PublishResult
		err    error
	}
	// consumed is a message of a worker's stream, or why that is over.
	consumed struct {
		by  *consume
		m   *wirev1.ConsumeResponse
		err error
	}
	// ping and the rest come from the poller.
	ping      struct{ payload string }
	peerClose struct {
		code ws.StatusCode
		text string
	}
	// eof: the peer will send nothing more.
	eof struct{}
	// ended: the session cannot go on.
	ended struct {
		reason *reason
		cause  string
	}
)

// inbox is what others leave for a worker. wake has room for one signal: the worker takes everything, then looks again.
type inbox struct {
	wake chan struct{}

	mu       sync.Mutex
	room     *sync.Cond // the worker has emptied posts
	posts    []post
	writable []*session
	moved    map[*hub.Topic]struct{}
	ready    map[uint64]struct{} // tokens of subscriptions
	drain    bool
	stop     bool
}

func newInbox() *inbox {
	b := &inbox{wake: make(chan struct{}, 1), moved: make(map[*hub.Topic]struct{}), ready: make(map[uint64]struct{})}
	b.room = sync.NewCond(&b.mu)
	return b
}

func (b *inbox) signal() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// Moved is called by the hub: a topic has new entries.
func (b *inbox) Moved(t *hub.Topic) {
	b.mu.Lock()
	b.moved[t] = struct{}{}
	b.mu.Unlock()
	b.signal()
}

// Ready is called by the hub: a subscription has something to pull.
func (b *inbox) Ready(token uint64) {
	b.mu.Lock()
	b.ready[token] = struct{}{}
	b.mu.Unlock()
	b.signal()
}

// deliver is called by the poller. It waits while the inbox is full.
func (b *inbox) deliver(posts []post, writable []*session) {
	b.mu.Lock()
	for len(b.posts) >= maxInbox && !b.stop {
		b.room.Wait()
	}
	b.posts = append(b.posts, posts...)
	b.writable = append(b.writable, writable...)
	b.mu.Unlock()
	b.signal()
}

// post is called by tasks, with answers to publishes, and with one message at a time of each consume; the number of all is bounded. It never waits.
func (b *inbox) post(s *session, what any) {
	b.mu.Lock()
	b.posts = append(b.posts, post{s: s, what: what})
	b.mu.Unlock()
	b.signal()
}

// order tells the worker to drain or to stop.
func (b *inbox) order(drain, stop bool) {
	b.mu.Lock()
	b.drain = b.drain || drain
	b.stop = b.stop || stop
	b.room.Broadcast()
	b.mu.Unlock()
	b.signal()
}

// taken is what a worker took out of its inbox; it is given back to be filled again.
type taken struct {
	posts    []post
	writable []*session
	moved    map[*hub.Topic]struct{} // not yet passed
	ready    map[uint64]struct{}
	drain    bool
	stop     bool
}

// take moves everything to t, whose posts and writable the worker is done with. What t still has of moved and ready stays there.
func (b *inbox) take(t *taken) {
	t.posts, t.writable = reuse(t.posts), reuse(t.writable)
	b.mu.Lock()
	t.posts, b.posts = b.posts, t.posts
	t.writable, b.writable = b.writable, t.writable
	if len(t.moved) == 0 {
		t.moved, b.moved = b.moved, t.moved
	} else {
		for topic := range b.moved {
			t.moved[topic] = struct{}{}
		}
		clear(b.moved)
	}
	if len(t.ready) == 0 {
		t.ready, b.ready = b.ready, t.ready
	} else {
		for token := range b.ready {
			t.ready[token] = struct{}{}
		}
		clear(b.ready)
	}
	t.drain, t.stop = b.drain, b.stop
	b.room.Broadcast()
	b.mu.Unlock()
}

// reuse empties a slice that is to be filled again, and gives up one that a burst has made large.
func reuse[T any](s []T) []T {
	if cap(s) > 4*maxInbox {
		return nil
	}
	clear(s)
	return s[:0]
}
