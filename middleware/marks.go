package middleware

import (
	"context"
	"crypto/rand"
	"errors"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// marks keep a random generation for each name: of a URL, or of a tag. What is
// kept in the cache remembers the generations that it was made under; once one
// is forgotten, by an invalidation or because the store lost it, the next has
// another value, and what was made under the old one is no longer found. So
// one deletion reaches any number of entries, in every process, and those that
// are being made.
//
// While the store is out of reach nobody knows them. What is made then is for
// those of this process who waited for it; see ruleHere.
type marks struct {
	guard  *cacheguard.Guard[string]
	epochs *cacheguard.Guard[string] // never from a near copy; see epochMark
	away   string                    // stands for every generation that is not known
}

// newMarks returns the marks of a cache, or nil if it needs none.
func newMarks(s store.Store, o *Options, needed bool) (*marks, error) {
	if !needed {
		return nil, nil
	}
	near := o.Near
	if near.MaxBytes > 0 {
		near = cacheguard.Near{MaxEntries: maxNearMarks, TTL: near.TTL}
	}
	opts := cacheguard.Options[string]{
		Namespace: o.Namespace + "-marks",
		// No longer than this can what was made under a mark be of use. Losing
		// a mark earlier costs a miss.
		Lifetime:     cacheguard.Lifetime{TTL: markLife},
		EarlyRefresh: -1,
		Jitter:       -1,
		LoadLimit:    5 * time.Second,
		Hooks:        cacheguard.Hooks{Fault: o.Hooks.Fault, Panic: o.Hooks.Panic},
	}
	epochs, err := cacheguard.New(s, opts)
	if err != nil {
		return nil, err
	}
	opts.Near = near
	guard, err := cacheguard.New(s, opts)
	if err != nil {
		return nil, errors.Join(err, epochs.Close())
	}
	return &marks{guard: guard, epochs: epochs, away: rand.Text()}, nil
}

const (
	markLife     = 30 * 24 * time.Hour
	maxNearMarks = 10_000
)

// current returns the present generation of a name. If it is not known, since
// the store is out of reach, one is returned that only this process uses, and
// that is always the same: what many want then, they still want together.
func (m *marks) current(ctx context.Context, name string) (mark string, known bool, err error) {
	e, err := m.guard.GetEntry(ctx, name, newMark)
	if err == nil && e.Token == 0 { // made up here
		return m.away, false, nil
	}
	return e.Value, true, err
}

func newMark(context.Context, string) (string, error) { return rand.Text(), nil }

func (m *marks) forget(ctx context.Context, names ...string) error {
	return m.guard.Invalidate(ctx, names...)
}

func (m *marks) close() error {
	if m == nil {
		return nil
	}
	return errors.Join(m.guard.Close(), m.epochs.Close())
}

func urlMark(key string) string { return "u" + key }
