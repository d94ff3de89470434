package hub

import (
	"sync"
	"sync/atomic"
)

// FormID names a form, such as a JSON rendering.
type FormID uint8

const maxForms = 8

// Form is an entry rendered otherwise: Body, and where each record's piece ends in it.
type Form struct {
	Body []byte
	Ends []int32
}

// formSet is what an entry knows of its forms.
type formSet struct {
	home  atomic.Pointer[formAccount] // of the segment or chunk that holds the entry
	forms atomic.Pointer[forms]
}

type forms struct {
	mu   sync.Mutex // held while a form is made
	made [maxForms]atomic.Pointer[Form]
}

// formAccount sums the bytes of forms in one segment or chunk, so that they leave the budget with it.
type formAccount struct {
	total *atomic.Int64 // of the hub
	bytes atomic.Int64
	gone  atomic.Bool
}

func (a *formAccount) charge(n int64) {
	a.total.Add(n)
	a.bytes.Add(n)
	if a.gone.Load() {
		a.total.Add(-a.bytes.Swap(0))
	}
}

// close takes what was charged back. A charge that comes later takes itself back.
func (a *formAccount) close() {
	a.gone.Store(true)
	a.total.Add(-a.bytes.Swap(0))
}

// Form returns the entry in another form: made by enc when first asked for, at most once per FormID, charged to the budget, and dropped
// with the entry. At most eight FormIDs (0 to 7). It may be called concurrently; callers that come while enc is at work wait for it.
func (e *Entry) Form(id FormID, enc func(*Entry) *Form) *Form {
	fs := e.forms.forms.Load()
	if fs == nil {
		e.forms.forms.CompareAndSwap(nil, new(forms))
		fs = e.forms.forms.Load()
	}
	if f := fs.made[id].Load(); f != nil {
		return f
	}
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f := fs.made[id].Load(); f != nil {
		return f
	}
	f := enc(e)
	fs.made[id].Store(f)
	if home := e.forms.home.Load(); home != nil {
		home.charge(int64(cap(f.Body) + 4*cap(f.Ends)))
	}
	return f
}
