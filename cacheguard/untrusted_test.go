package cacheguard_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// liar is a store that says of its entries, leases and events what it is told
// to.
type liar struct {
	store.Store
	hear func(store.Event)

	mu      sync.Mutex
	entry   store.Entry   // guarded by mu
	verdict store.Verdict // of the first claim, if it has an outcome; guarded by mu
}

func (l *liar) Load(context.Context, store.Key) (store.Entry, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entry, nil
}

func (l *liar) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if v := l.verdict; v.Outcome != 0 {
		l.verdict, l.entry = store.Verdict{}, store.Entry{}
		return v, nil
	}
	c.Seen = 0
	return l.Store.Claim(ctx, c)
}

func (l *liar) Listen(space string, fn func(store.Event)) (stop func()) {
	l.hear = fn
	return l.Store.Listen(space, fn)
}

// Whatever a store says, a guard answers with a value that the codec or the
// loader has made, in bounded time, and does not panic.
func FuzzWhatAStoreSays(f *testing.F) {
	f.Add(byte(1), false, int64(7), []byte(`"v"`), int64(time.Second), int64(time.Second), int64(time.Minute), int64(time.Second), int64(time.Millisecond), byte(0), int64(0), "")
	f.Add(byte(1), false, int64(7), []byte(`"v"`), int64(time.Second), int64(-time.Second), int64(time.Minute), int64(0), int64(-1), byte(2), int64(0), "")
	f.Add(byte(1), true, int64(7), []byte(`{`), int64(0), int64(1), int64(1), int64(1), int64(1), byte(3), int64(time.Millisecond), "p/1")
	f.Add(byte(2), false, int64(-7), []byte(nil), int64(-1), int64(1)<<62, int64(1)<<62, int64(-1), int64(1)<<62, byte(4), int64(-1), "no")
	f.Add(byte(3), false, int64(0), []byte(nil), int64(0), int64(0), int64(1), int64(0), int64(0), byte(9), int64(1)<<62, "\xff\x00")
	f.Add(byte(200), true, int64(1)<<62, []byte("x"), int64(0), int64(0), int64(0), int64(0), int64(0), byte(1), int64(0), "")
	f.Fuzz(func(t *testing.T, kind byte, handOver bool, token int64, payload []byte, age, fresh, left, ttl, cost int64, outcome byte, wait int64, text string) {
		s := &liar{Store: memstore.New(memstore.Options{})}
		s.entry = store.Entry{Kind: store.Kind(kind), HandOver: handOver, Token: store.Token(token), Payload: payload,
			Age: time.Duration(age), Fresh: time.Duration(fresh), Left: time.Duration(left), TTL: time.Duration(ttl), Cost: time.Duration(cost)}
		if o := store.Outcome(outcome); o != store.Granted { // a grant that is none is fenced
			s.verdict = store.Verdict{Outcome: o, Left: min(time.Duration(wait), time.Millisecond), Holder: store.Holder(text), Reason: text, Token: store.Token(token)}
		}
		g := newGuard(t, s, options{LoadLimit: time.Second, Near: nearSecond})
		for range 2 {
			e, err := g.GetEntry(t.Context(), "k", func(context.Context, string) (string, error) { return "loaded", nil })
			switch {
			case err == nil && (e.Age < 0 || e.Left < 0):
				t.Errorf("an answer of age %v that is fresh for another %v", e.Age, e.Left)
			case err == nil, errors.Is(err, cacheguard.ErrNotFound), errors.Is(err, cacheguard.ErrCooldown), errors.Is(err, cacheguard.ErrWaitLimit):
			default:
				t.Errorf("Get = %v", err)
			}
			s.hear(store.Event{Kind: store.EventKind(kind), ID: text, Token: store.Token(token)})
			s.hear(store.Event{Kind: store.EventKind(outcome), ID: "k", Token: store.Token(token)})
		}
	})
}
