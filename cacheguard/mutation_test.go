package cacheguard_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// The protocol, broken on purpose in one place each. TestSimulationCatches shows
// that the simulation would notice. (What a wrong backend does to the contract
// of the store is tried in memstore: TestSuiteCatchesWrongStores.)
var mutations = map[string]func(*memstore.Store) store.Store{
	"a fill below the fence lands":                                func(s *memstore.Store) store.Store { return fillsAnyway{s} },
	"a begun set below the fence lands":                           func(s *memstore.Store) store.Store { return setsAnyway{s} },
	"an invalidation does not move the fence":                     func(s *memstore.Store) store.Store { return forgetsFence{s} },
	"an invalidation reports success and does nothing":            func(s *memstore.Store) store.Store { return forgetsKeys{s} },
	"reads lag behind":                                            func(s *memstore.Store) store.Store { return &lags{Store: s} },
	"an entry of one key is returned for another":                 func(s *memstore.Store) store.Store { return mixesUp{s} },
	"a claim says of what is gone that it is there":               func(s *memstore.Store) store.Store { return keepsSaying{s} },
	"a message brings what an earlier one has brought":            func(s *memstore.Store) store.Store { return &repeats{Store: s} },
	"an invalidation lengthens the life of what it was to delete": func(s *memstore.Store) store.Store { return refreshes{s} },
	"a lease is granted while another one runs":                   func(s *memstore.Store) store.Store { return grantsAll{s} },
	"failures are not counted":                                    func(s *memstore.Store) store.Store { return forgivesAll{s} },
	"a failure binds the fleet at once":                           func(s *memstore.Store) store.Store { return blamesAll{s} },
	"a release does not end the lease":                            func(s *memstore.Store) store.Store { return keepsLeases{s} },
	"a lease does not run out":                                    func(s *memstore.Store) store.Store { return longLeases{s} },
	"a LoadMany mixes up its keys":                                func(s *memstore.Store) store.Store { return mixesMany{s} },
}

func TestSimulationCatchesABrokenProtocol(t *testing.T) {
	for name, broken := range mutations {
		t.Run(name, func(t *testing.T) {
			const seeds = 400
			var mu sync.Mutex
			found := 0
			for seed := uint64(1); seed <= seeds; seed++ {
				simulate(t, seed, broken, func(string, ...any) {
					mu.Lock()
					defer mu.Unlock()
					found++
				})
				if found > 0 {
					t.Logf("caught by seed %d", seed)
					return
				}
			}
			t.Errorf("%d seeds found nothing wrong with it", seeds)
		})
	}
}

// fillsAnyway writes what the fence refuses.
type fillsAnyway struct{ *memstore.Store }

func (s fillsAnyway) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	err := s.Store.Fill(ctx, g, c)
	if errors.Is(err, store.ErrFenced) {
		return s.Store.Set(ctx, store.Write{Key: g.Key, Content: c})
	}
	return err
}

// setsAnyway does not compare what Begin has given.
type setsAnyway struct{ *memstore.Store }

func (s setsAnyway) Set(ctx context.Context, w store.Write) error {
	w.Begun = nil
	return s.Store.Set(ctx, w)
}

// forgetsFence deletes entries and nothing else.
type forgetsFence struct{ *memstore.Store }

func (s forgetsFence) Invalidate(_ context.Context, keys []store.Key) []error {
	for _, key := range keys {
		s.DropEntry(key)
	}
	return nil
}

// forgetsKeys does nothing.
type forgetsKeys struct{ *memstore.Store }

func (forgetsKeys) Invalidate(context.Context, []store.Key) []error { return nil }

// keepsSaying says of whatever a claimer has seen that it is still there.
type keepsSaying struct{ *memstore.Store }

func (s keepsSaying) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	v, err := s.Store.Claim(ctx, c)
	v.Same = c.Seen != 0 && (v.Outcome == store.Granted || v.Outcome == store.Held)
	return v, err
}

// lags answers every other read with what was there at the one before.
type lags struct {
	*memstore.Store
	mu   sync.Mutex
	last map[store.Key]store.Entry
}

func (s *lags) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	e, err := s.Store.Load(ctx, key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last == nil {
		s.last = make(map[store.Key]store.Entry)
	}
	old, known := s.last[key]
	s.last[key] = e
	if known && old.Kind == store.Value {
		delete(s.last, key)
		return old, err
	}
	return e, err
}

// mixesUp gives key 1 the entry of key 0.
type mixesUp struct{ *memstore.Store }

func (s mixesUp) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	if key.ID == "1" {
		key.ID = "0"
	}
	return s.Store.Load(ctx, key)
}

// refreshes writes what it was to delete anew, under a new token.
type refreshes struct{ *memstore.Store }

func (s refreshes) Invalidate(ctx context.Context, keys []store.Key) []error {
	for _, key := range keys {
		e, err := s.Store.Load(ctx, key)
		if err != nil || e.Kind != store.Value {
			continue
		}
		_ = s.Store.Set(ctx, store.Write{Key: key, Content: store.Content{Kind: store.Value, Payload: e.Payload, TTL: e.TTL}})
	}
	return nil
}

// repeats brings along with a fill what the fill before it has left.
type repeats struct{ *memstore.Store }

func (s *repeats) Listen(space string, fn func(store.Event)) (stop func()) {
	var mu sync.Mutex
	last := make(map[string]store.Entry)
	return s.Store.Listen(space, func(ev store.Event) {
		if ev.Entry != nil {
			mu.Lock()
			old, known := last[ev.ID]
			last[ev.ID] = *ev.Entry
			mu.Unlock()
			if known {
				e := *ev.Entry
				e.Payload = old.Payload
				ev.Entry = &e
			}
		}
		fn(ev)
	})
}

// grantsAll ends another's lease for whoever asks.
type grantsAll struct{ *memstore.Store }

func (s grantsAll) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	v, err := s.Store.Claim(ctx, c)
	if err == nil && v.Outcome == store.Held {
		_ = s.Store.Release(ctx, store.Grant{Key: c.Key, Holder: v.Holder}, nil)
		return s.Store.Claim(ctx, c)
	}
	return v, err
}

// forgivesAll releases without the failure.
type forgivesAll struct{ *memstore.Store }

func (s forgivesAll) Release(ctx context.Context, g store.Grant, _ *store.Failure) error {
	return s.Store.Release(ctx, g, nil)
}

// blamesAll lets one process's failure bind all: it counts it for another one,
// too.
type blamesAll struct{ *memstore.Store }

func (s blamesAll) Release(ctx context.Context, g store.Grant, f *store.Failure) error {
	err := s.Store.Release(ctx, g, f)
	if f != nil {
		g.Holder = store.NewHolder("another", string(g.Holder))
		_ = s.Store.Release(ctx, g, f)
	}
	return err
}

// keepsLeases lets a lease go on that is given back.
type keepsLeases struct{ *memstore.Store }

func (s keepsLeases) Release(context.Context, store.Grant, *store.Failure) error { return nil }

// longLeases grants what nobody asked for.
type longLeases struct{ *memstore.Store }

func (s longLeases) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	c.Length, c.Keep = 5*time.Second, 5*time.Second
	return s.Store.Claim(ctx, c)
}

// mixesMany gives the first key of a LoadMany the entry of the last.
type mixesMany struct{ *memstore.Store }

func (s mixesMany) LoadMany(ctx context.Context, keys []store.Key) ([]store.Entry, []error) {
	entries, errs := s.Store.LoadMany(ctx, keys)
	if len(entries) > 1 {
		entries[0] = entries[len(entries)-1]
	}
	return entries, errs
}
