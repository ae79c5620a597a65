package cacheguard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/internal/processid"
	"github.com/cacheguard-go/cacheguard/internal/tuning"
	"github.com/cacheguard-go/cacheguard/internal/watchdog"
)

// Loader asks the origin for the value of a key. It returns ErrNotFound (or an
// error that wraps it) if the origin has no such thing.
//
// Its context has the values of the context of the caller that started it, but
// not that caller's deadline or cancellation: the load is everybody's. It ends
// with Options.LoadLimit, with Close, and when a newer value from another
// process makes the load needless (cause store.ErrLost).
// lease.TokenFromContext gives the load's fencing token, to fence what the
// loader writes elsewhere.
//
// A loader that panics or calls runtime.Goexit fails with a *PanicError.
type Loader[V any] func(ctx context.Context, key string) (V, error)

// Guard keeps the values of one namespace and sees to it that a missing or
// expired one is loaded once in the whole fleet. It is safe for concurrent use.
//
// Guards of the same namespace on the same store, in any number of processes,
// are one fleet. They should be given the same options; what differs during a
// deploy is tolerated.
type Guard[V any] struct {
	store   store.Store // the breaker, with the user's store behind it
	breaker *breaker
	tells   *reporter  // the hooks
	opts    Options[V] // complete: no zeros left to interpret
	process string     // this guard's id in lease records
	epoch   time.Time  // when it was made; see now

	shards   *shards[V]
	attempts atomic.Uint64 // numbers the flights, for holder ids
	hearing  atomic.Bool   // the listener is up: messages arrive

	near    *near[V]            // nil: off
	outages *semaphore.Weighted // loads without a lease
	pending pending             // writes that the store has not been told of
	longest atomic.Int64        // life of an entry, in nanoseconds; see lived

	tuner    *tuning.Tuner
	watchdog *watchdog.Watchdog
	unlisten func()
	closed   func()    // of Hooks.Opened
	closing  sync.Once // calls it

	// ctx ends with Close; everything that the guard does on its own account
	// runs under it.
	ctx   context.Context
	end   context.CancelFunc
	tasks tasks // the goroutines of this guard
}

// maxKey bounds the length of a key in bytes: what is longer is a mistake, such
// as a whole document passed as a key.
const maxKey = 64 << 10

func checkKey(key string) error {
	if len(key) > maxKey {
		return fmt.Errorf("cacheguard: key of %d bytes; use at most %d", len(key), maxKey)
	}
	return nil
}

// New returns a guard over s. It fails if an option is out of range, and says
// what to write instead; it does not ask whether the store can be reached.
//
// Close the guard when it is no longer used. It does not close s.
func New[V any](s store.Store, opts Options[V]) (*Guard[V], error) {
	if s == nil {
		return nil, errors.New("cacheguard: the store is nil; use redisstore.New or memstore.New")
	}
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	near, err := newNear[V](opts.Near)
	if err != nil {
		return nil, err
	}
	g := &Guard[V]{
		opts:    opts,
		process: processid.New(),
		epoch:   time.Now(),
		shards:  newShards[V](),
		near:    near,
		tells:   newReporter(opts.Hooks),
		outages: semaphore.NewWeighted(int64(opts.OutageLoads)),
		tuner: tuning.New(tuning.Config{
			Initial:  opts.Lease.Initial,
			Min:      opts.Lease.Min,
			Max:      opts.Lease.Max,
			Quantile: opts.Lease.Quantile,
			Headroom: opts.Lease.Headroom,
		}),
	}
	g.breaker = newBreaker(s, g.probeStore, g.tells)
	g.store = g.breaker
	g.lived(opts.Lifetime)
	g.lived(Lifetime{TTL: opts.NegativeTTL})
	g.tasks.idle = make(chan struct{})
	g.ctx, g.end = context.WithCancel(context.Background())
	// Renewals go past the breaker: nobody waits for them, and while it is open
	// most leases would lapse although the store is back already.
	g.watchdog = watchdog.New(s, watchdog.Hooks{Renewed: g.renewed, Woken: g.woken})
	g.unlisten = s.Listen(opts.Namespace, g.hear)
	g.closed = g.tells.opened(opts.Hooks.Opened, GuardInfo{Namespace: opts.Namespace, Settings: opts.settings(), Stats: g.stats})
	return g, nil
}

// Close ends the guard: running loads are cancelled (cause ErrClosed), their
// callers get ErrClosed, their leases are released. It waits for all of it, for
// loaders that do not heed their context at most LoadLimit; if one is still
// running then, it says so in its error. Closing twice is fine. The store and
// its client are not closed.
func (g *Guard[V]) Close() error {
	g.tasks.close()
	g.end()
	err := g.tasks.wait(g.opts.LoadLimit)
	g.watchdog.Close()
	g.unlisten()
	g.closing.Do(g.closed)
	return err
}

// Get returns the value of key: from the store if it is there, else by load,
// which one process in the fleet runs while the others wait for its result. A
// stale value is returned at once, and rebuilt in the background.
//
// Nobody gets a value whose question was sent before its own Get began, if it
// may have been invalidated since (see Invalidate).
//
// Errors: ErrNotFound; ctx's error as soon as it ends (the load goes on for the
// others); the loader's own error if the load was one of this process;
// ErrCooldown, ErrWaitLimit, ErrCycle, ErrClosed, *PanicError.
func (g *Guard[V]) Get(ctx context.Context, key string, load Loader[V]) (V, error) {
	e, err := g.GetEntry(ctx, key, load)
	return e.Value, err
}

// GetEntry is Get, with the circumstances of the answer.
func (g *Guard[V]) GetEntry(ctx context.Context, key string, load Loader[V]) (Entry[V], error) {
	q := question[V]{load: load}
	e, err := g.get(ctx, key, &q)
	q.left = err != nil && err == ctx.Err()
	return g.answered(key, q.how, e, err)
}

// Refresh loads key anew even if it is fresh, stores the value for the fleet,
// and returns it. The load begins after the call does; callers of Refresh that
// come while it runs share the next. Errors are those of Get.
func (g *Guard[V]) Refresh(ctx context.Context, key string, load Loader[V]) (V, error) {
	q := question[V]{load: load, anew: true}
	e, err := g.get(ctx, key, &q)
	if err != nil {
		q.left = err == ctx.Err()
		e = Entry[V]{State: e.State} // not the value that was to be replaced
	}
	e, err = g.answered(key, q.how, e, err)
	return e.Value, err
}

// Do is Get for a caller with a mind of its own about what is good enough and
// how to load: see [Ask]. Its errors are those of Get, and *PassError,
// ErrNotCached and context.Cause(ctx) instead of ctx's error. With an error it
// returns the entry that it would have had if Accept had taken it, so that the
// caller can still fall back on it; with a *PassError that is its own, the
// value that its loader returned along with it.
func (g *Guard[V]) Do(ctx context.Context, key string, ask Ask[V]) (Entry[V], error) {
	q := question[V]{ask: ask, asks: true}
	e, err := g.get(ctx, key, &q)
	if q.left = err != nil && err == ctx.Err(); q.left {
		err = context.Cause(ctx)
	}
	return g.answered(key, q.how, e, err)
}

// get is the read path. The order of its questions is the order of their
// price: the store's entry, this process's flight, the fleet's lease. Each
// round ends with an answer unless the answer was not for this caller.
func (g *Guard[V]) get(ctx context.Context, key string, q *question[V]) (Entry[V], error) {
	if err := g.admit(ctx, key, q); err != nil {
		return Entry[V]{}, err
	}
	if g.near != nil && !q.anew {
		if e, ok := g.near.served(key, g.now); ok && q.use(e) == Take {
			q.via = ViaNear
			return e, e.absent()
		}
	}
	sh := g.shards.of(key)
	q.arrival = sh.arrive()
	for range maxRounds {
		if e, err, again := g.round(ctx, sh, key, q); !again {
			return e, err
		}
	}
	return q.turnedDown, fmt.Errorf("%w: %d answers in a row were not for this caller", ErrWaitLimit, maxRounds)
}

// round is one round of get. again: what came was not for this caller.
func (g *Guard[V]) round(ctx context.Context, sh *shard[V], key string, q *question[V]) (e Entry[V], err error, again bool) {
	w, err := g.look(ctx, sh, key, q)
	if w == nil {
		w = new(waiter[V]) // the key is known to be missing
	}
	defer func() {
		if w.joined {
			q.waited += g.now() - w.since
		}
	}()
	if err != nil {
		return q.turnedDown, err, false
	}
	if w.leads != nil {
		defer sh.passOn(key, w.leads)
	}
	if w.out == nil {
		if w.look != nil {
			if e, err, ok := g.found(ctx, sh, key, q, w); ok {
				return e, err, false
			}
		}
		if !q.loads() {
			return q.turnedDown, ErrNotCached, false
		}
		if err = g.join(ctx, sh, key, q, w); err != nil {
			return q.turnedDown, err, false
		}
	}
	return g.brought(ctx, sh, key, q, w)
}

// found turns what a look has found into an answer, if it is one for this
// caller.
func (g *Guard[V]) found(ctx context.Context, sh *shard[V], key string, q *question[V], w *waiter[V]) (e Entry[V], err error, ok bool) {
	l := w.look
	switch {
	case l.found == pass:
		e, err = g.pass(ctx, sh, key, q, &PassError{For: l.entry.Left})
		return e, err, true
	case l.found == hit && !q.anew:
		e = g.forJudge(q, l.entry, l.asOf)
		if use := q.use(e); use != Reload {
			if use == TakeAndRefresh || w.first && g.drawsEarly(l) {
				g.rebuildInBackground(ctx, sh, key, q, l)
			}
			e.Coalesced, q.via = !w.first, ViaStore
			return e, e.absent(), true
		}
		q.turnedDown = e
	case l.found == outage && !l.untrusted:
		if e, ok := g.nearKnown(key); ok && !q.anew && q.use(e) != Reload {
			q.via = ViaNear
			return e, e.absent(), true
		}
		if g.opts.Outage == FailFast {
			return q.turnedDown, l.err, true
		}
	}
	return e, nil, false
}

// brought turns what a flight has brought into what a caller gets, if it is for
// this caller.
func (g *Guard[V]) brought(ctx context.Context, sh *shard[V], key string, q *question[V], w *waiter[V]) (e Entry[V], err error, again bool) {
	out, mine := w.out, w.flew()
	if !out.isFor(q.arrival, w.since, q.anew) {
		return e, nil, true
	}
	e = g.forJudge(q, out.entry, out.asOf)
	if out.err == nil && !(mine && out.led) && q.use(e) == Reload {
		q.turnedDown = e // nobody is asked about what its own load has brought
		return Entry[V]{}, nil, true
	}
	q.via = ViaFlight
	e, err = g.answer(ctx, sh, key, q, e, out, mine)
	return e, err, false
}

// forJudge is e, which was as it says at an instant on the guard's clock, as it is
// for a caller who judges answers. It may compare an answer's age with how long it
// has been here itself: for one who accepts only what was asked for since it came,
// an answer from just before, whose reply was long on its way, would pass.
func (g *Guard[V]) forJudge(q *question[V], e Entry[V], asOf time.Duration) Entry[V] {
	if !q.asks {
		return e
	}
	return e.later(g.now() - asOf)
}

// answer turns what a flight brought into what a caller gets.
func (g *Guard[V]) answer(ctx context.Context, sh *shard[V], key string, q *question[V], e Entry[V], out *outcome[V], mine bool) (Entry[V], error) {
	if out.err == nil {
		e.Coalesced = !mine
		return e, e.absent()
	}
	var p *PassError
	switch {
	case !errors.As(out.err, &p):
		return q.turnedDown, out.err
	case !mine || !out.led: // another's load, in this process or elsewhere
		return g.pass(ctx, sh, key, q, p)
	case q.asks:
		return e, p
	}
	return e, nil
}

// maxRounds bounds how often a caller goes round because an answer was not for
// it. Two or three are usual when a key is invalidated while it loads.
const maxRounds = 16

// admit refuses what cannot be answered.
func (g *Guard[V]) admit(ctx context.Context, key string, q *question[V]) error {
	switch {
	case !q.asks && q.load == nil:
		return errors.New("cacheguard: the loader is nil; pass a function that asks the origin")
	case len(key) > maxKey:
		return checkKey(key)
	case g.ctx.Err() != nil:
		return ErrClosed
	}
	return ctx.Err()
}

// now is the time since the guard was made: one read of the monotonic clock.
func (g *Guard[V]) now() time.Duration { return time.Since(g.epoch) }

// newHolder returns the id of a new attempt to load.
func (g *Guard[V]) newHolder() store.Holder {
	return store.NewHolder(g.process, strconv.FormatUint(g.attempts.Add(1), 10))
}

func (g *Guard[V]) key(id string) store.Key { return store.Key{Space: g.opts.Namespace, ID: id} }

// isAbsent tells whether the entry says that the origin has no such thing.
func (e *Entry[V]) isAbsent() bool { return e.State == Absent }

func (e *Entry[V]) absent() error {
	if e.isAbsent() {
		return ErrNotFound
	}
	return nil
}

// pollInterval is how long a follower waits before it looks again although
// nobody has told it to. Messages are hints, this is the guarantee: while they
// arrive it is long (a lost one costs that much), else it starts short and
// grows with each round. Jitter keeps processes apart.
func (g *Guard[V]) pollInterval(round int) time.Duration {
	if g.hearing.Load() {
		return around(pollHearing)
	}
	return around(min(pollDeafMin<<min(round, 10), pollDeafMax))
}

const (
	pollHearing = 2 * time.Second
	pollDeafMin = 20 * time.Millisecond
	pollDeafMax = 300 * time.Millisecond

	// handOverLife is how long what is not to be cached is kept for those who
	// wait for it: the longest poll interval and a look.
	handOverLife = pollHearing*5/4 + 500*time.Millisecond
)

// around is d, a quarter more or less.
func around(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1)
}
