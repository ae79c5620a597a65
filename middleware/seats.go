package middleware

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// seats bound how many variants of one URL the fleet keeps. Each URL has a fixed
// number of them, and a variant is kept only if it has one. A seat is a small
// entry of a guard of its own that names who sits there, so that two processes
// cannot give the same one away:
//
//	A: claims seat 3, fills it: "de"
//	B:                    claims seat 3 at the same time, follows, reads "de", tries the next
//
// A count would have to be read, raised and written back, and would lose what
// others count meanwhile; seats need no count. The first variant of a URL is its
// entry, and needs none.
type seats struct {
	guard  *cacheguard.Guard[seat]
	number int // of each URL
}

// seat says who sits there.
type seat struct {
	Variant string        // digest of what tells it from others
	Life    time.Duration // of the seat
}

const (
	// seatTries is how many seats a variant looks at, each time the same ones.
	// While fewer than four fifths are taken, it finds a free one five times in
	// six or more often; if none is free, that is known after so many looks, or,
	// for a while, after none.
	seatTries = 8

	// maxNearSeats and nearSeats are the size and the life of what a process
	// remembers of seats: once those of a URL are taken, a flood of variants
	// costs no look at the store.
	maxNearSeats = 10_000
	nearSeats    = 5 * time.Second
)

func newSeats(s store.Store, o *Options) (*seats, error) {
	guard, err := cacheguard.New(s, cacheguard.Options[seat]{
		Namespace:    o.Namespace + "-seats",
		LifetimeFunc: func(_ string, s seat) cacheguard.Lifetime { return cacheguard.Lifetime{TTL: s.Life} },
		EarlyRefresh: -1,
		Jitter:       -1,
		LoadLimit:    5 * time.Second,
		Near:         cacheguard.Near{MaxEntries: maxNearSeats, TTL: nearSeats},
		Hooks:        cacheguard.Hooks{Fault: o.Hooks.Fault, Panic: o.Hooks.Panic},
	})
	return &seats{guard: guard, number: o.MaxVariants - 1}, err
}

// take gives a variant of a URL a seat for at least life, or tells that there is
// none for it. The one that it has already is kept. Without a store there are
// none, but then nothing is kept anyway.
func (s *seats) take(ctx context.Context, url, variant string, life time.Duration) bool {
	home, sum := sha256.Sum256([]byte(url)), sha256.Sum256([]byte(variant))
	// For longer than the variant lives, so that its refreshes need not write
	// each time.
	own := seat{Variant: base64.RawURLEncoding.EncodeToString(sum[:16]), Life: 2 * life}
	place := base64.RawURLEncoding.EncodeToString(home[:16]) + ":"
	for _, i := range s.order(sum) {
		key := place + strconv.Itoa(i)
		sit := func(context.Context, string) (seat, error) { return own, nil }
		e, err := s.guard.GetEntry(ctx, key, sit)
		if err == nil && e.State == cacheguard.Rebuilt {
			// That this variant wants the seat does not say that it was written. If
			// it was, there is a near copy with its token; else the store says who has
			// it.
			e, err = s.guard.GetEntry(ctx, key, sit)
		}
		switch {
		case err != nil, e.State == cacheguard.Rebuilt, e.Token == 0:
			return false
		case e.Value.Variant != own.Variant:
			continue
		case e.Left < life:
			return s.guard.Set(ctx, key, own) == nil
		}
		return true
	}
	return false
}

// order returns the seats that a variant looks at, in its order.
func (s *seats) order(sum [32]byte) []int {
	draw := rand.New(rand.NewPCG(binary.BigEndian.Uint64(sum[16:]), binary.BigEndian.Uint64(sum[24:])))
	seats := draw.Perm(s.number)
	return seats[:min(seatTries, len(seats))]
}

func (s *seats) close() error { return s.guard.Close() }

// seat takes a seat for what is kept of a variant. If there is none, the answer
// is for those who wait for it, and for nobody after them. Its own client does
// not wait long for that.
func (f *fill) seat(ctx context.Context, p *response) {
	if f.above == nil || p.handOver() {
		return
	}
	f.letGoAfter(seatPatience)
	if f.c.seats.take(ctx, f.url, f.trail, p.ttl()+p.grace) {
		return
	}
	p.lifetime, p.grace = 0, 0
	p.unkept = "max-variants"
}
