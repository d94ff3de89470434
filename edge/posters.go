package edge

import (
	"net/netip"
	"sync"
	"time"

	"tailrace.dev/tailrace/services/hub"
)

// maxPosters is how many addresses that publish by request are told apart. What they have spent is forgotten once it is paid for, so in a moment; more at
// once share what one has.
const maxPosters = 4096

// posters are the addresses that publish by request, each with what is left of its rate: that of a socket.
type posters struct {
	mu sync.Mutex
	of map[netip.Addr]*allowance
}

// admit says whether the peer at remote, as host:port, may publish one more at the time now, of Server.now.
func (p *posters) admit(remote string, now int64, rate int) error {
	if rate == 0 {
		return nil
	}
	at := addressOf(remote)
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.of[at]
	if a == nil && len(p.of) >= maxPosters {
		for at, a := range p.of {
			if int64(*a) <= now {
				delete(p.of, at)
			}
		}
		if len(p.of) >= maxPosters {
			at = netip.Addr{}
			a = p.of[at]
		}
	}
	if a == nil {
		a = new(allowance)
		p.of[at] = a
	}
	if wait := a.spend(now, rate, publishBurst); wait > 0 {
		return &hub.LimitError{Limit: "publishes of an address in a second", Value: int64(rate), Retry: wait.Round(time.Millisecond) + time.Millisecond}
	}
	return nil
}
