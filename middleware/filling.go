package middleware

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// fillPatience is how long the client whose run it was waits for its answer to be
// written to the store: longer than a store needs that is well and has little to
// do. So, as a rule, what the client asks for next is stored, and it is told so.
// A client that is let go before that has its whole answer, whatever becomes of
// the fill; whoever asks for it meanwhile joins the load.
const fillPatience = 2 * time.Millisecond

// seatPatience is how long it waits before that, while a seat is found for a
// variant. No longer: many new variants at once are just what keeps a store busy,
// and to find their seats is most of the work.
const seatPatience = 2 * time.Millisecond

// settlePatience is how long it waits before that, while it is found out how the
// answer may be kept (its tags). It is longer, since a client that is let go
// before its answer is on its way may not find it stored.
const settlePatience = 50 * time.Millisecond

// fillings is the store as the cache uses it: it lets the client of a run go when
// what is kept of its answer takes long to be written. The client's answer is
// whole by then, whatever becomes of the fill.
type fillings struct {
	store.Store

	mu      sync.Mutex
	waiting map[filling]*storing // protected by mu
}

// filling names the fill of one load.
type filling struct {
	key   string
	token store.Token
}

// storing is a fill, and who waits for it.
type storing struct {
	shown  response   // what is to be kept, as its client is given it
	wait   *waitState // of that client
	stored atomic.Bool
}

func newFillings(s store.Store) *fillings {
	return &fillings{Store: s, waiting: make(map[filling]*storing)}
}

// Parallel implements [store.Parallel]: it is that of the store underneath.
func (fs *fillings) Parallel() (calls, reads int) { return store.ParallelOf(fs.Store) }

// expect says that a fill will come that the leader of f waits for, if that is
// still there.
func (fs *fillings) expect(f *fill, token store.Token, s *storing) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.leader.Load() != nil {
		f.filling = filling{f.key, token}
		fs.waiting[f.filling] = s
	}
}

// forget says that nobody waits any more: the leader of f has been taken away.
func (fs *fillings) forget(f *fill) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	delete(fs.waiting, f.filling)
}

func (fs *fillings) of(g store.Grant) *storing {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return fs.waiting[filling{g.Key.ID, g.Token}]
}

// Fill implements [store.Store].
func (fs *fillings) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	s := fs.of(g)
	if s == nil {
		return fs.Store.Fill(ctx, g, c)
	}
	patience := time.AfterFunc(fillPatience, func() { s.wait.end(errFilling) })
	defer patience.Stop()
	err := fs.Store.Fill(ctx, g, c)
	s.stored.Store(err == nil)
	return err
}
