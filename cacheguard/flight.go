package cacheguard

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// flight is one rebuild of one key in this process. There is one at a time per
// key; callers of the key join it.
//
// A flight claims the lease. If it is granted, the flight leads: it loads and
// fills. If another process holds it, the flight follows until there is a value
// or it is its turn. A background flight (a refresh that nobody waits for) never
// follows: what it was to bring, another is bringing.
type flight[V any] struct {
	g    *Guard[V]
	sh   *shard[V]
	key  string
	load Reloader[V]
	ctx  context.Context // of whoever began it: only its values are used

	background bool
	early      bool        // begun while the entry was fresh
	missing    bool        // begun because there was nothing to serve
	alone      bool        // the store is out of reach: load without a lease
	prev       Entry[V]    // the entry that is to be replaced, if it could be read
	seen       store.Token // of what was there, readable or not
	cost       time.Duration

	holder  store.Holder
	batch   *batch[V] // of a GetMany, or nil
	claimed bool      // it has taken part in the batch's claims

	// crowd are those who came while a read was under way, which has found stale;
	// nil: nobody. Only the flight's goroutine has it.
	crowd *reading[V]
	stale *look[V]

	// wake gets an event that concerns the key. It holds one: any event makes
	// the flight look again.
	wake chan store.Event

	// unsure: a write of this process to the key could not reach the store
	// while this flight was under way, so an accepted fill proves nothing (S31).
	unsure atomic.Bool

	held bool // the key was held off when the load began

	// overtaken: the key was written or invalidated while this flight was under
	// way. It does not end it: callers go on joining, so that there is one load
	// per key and process however fast writes come (S33). The fence decides.
	// Guarded by sh.mu.
	overtaken bool

	// newest is the last caller that came while the flight was under way.
	// Guarded by sh.mu.
	newest uint64

	under context.Context // what the hooks have made of the load's context; nil: nothing
}

// outcome is what a flight brought, and for whom.
type outcome[V any] struct {
	answers bool // false: nothing for anybody, all go round
	led     bool // by a load of this process
	entry   Entry[V]
	asOf    time.Duration // when entry was as it says; on the guard's clock
	err     error         // why there is no entry; *PassError: each is to load for itself
	upTo    uint64        // the last caller that it is for
	began   uint64        // the last caller that was there before the load began; 0: unknown
	by      *flight[V]

	// handOver: it is only for those who waited when it was written.
	handOver bool
	written  time.Duration // when; on the guard's clock
}

// spanEnd tells a caller's span how its wait has ended.
func (w *waiter[V]) spanEnd(err error) SpanEnd {
	if err != nil {
		return SpanEnd{Err: err}
	}
	o := w.out
	end := SpanEnd{Err: o.err, State: o.entry.State, Token: o.entry.Token, Coalesced: !w.flew()}
	if o.led && o.by != nil {
		end.Load = o.by.under
	}
	return end
}

// everybody is an upTo for what is true whenever it was asked, such as a
// failure.
const everybody = math.MaxUint64

func failed[V any](err error) outcome[V] {
	return outcome[V]{answers: true, err: err, upTo: everybody}
}

// isFor tells whether the outcome is an answer to a caller of that number who
// has waited since an instant on the guard's clock; anew: to one that accepts
// only what was loaded since it came.
func (o *outcome[V]) isFor(arrival uint64, since time.Duration, anew bool) bool {
	if o.handOver && since > o.written {
		return false
	}
	if anew && o.err == nil {
		return o.answers && o.began >= arrival
	}
	return o.answers && o.upTo >= arrival
}

// join lets a caller wait for the flight of key, which it begins if there is
// none, until it is told what that has brought. The error is ctx's or ErrCycle.
func (g *Guard[V]) join(ctx context.Context, sh *shard[V], key string, q *question[V], w *waiter[V]) error {
	if w.out = sh.cooling(key); w.out != nil {
		return nil
	}
	done, err := g.waitsFor(ctx, key)
	if err != nil {
		return err
	}
	defer done()
	g.board(ctx, sh, key, q, w)
	_, spanned := g.tells.begin(ctx, SpanInfo{Span: SpanWait, Key: key})
	err = sh.await(ctx, w)
	if spanned != nil {
		spanned(w.spanEnd(err))
	}
	return err
}

// board lets a caller join the flight of key, or begin it. Who asks has its
// loader prepared in any case.
func (g *Guard[V]) board(ctx context.Context, sh *shard[V], key string, q *question[V], w *waiter[V]) {
	now := g.now()
	if !q.asks {
		if _, ok := sh.joins(key, w, nil, now); ok {
			return
		}
	}
	f := g.newFlight(ctx, sh, key, q.reloader(key), w.look)
	if begin, _ := sh.joins(key, w, f, now); begin {
		f.begin()
	}
}

// rebuild starts the flight of key for a caller who has joined it already, and
// returns it; nil: it is not needed any more.
func (g *Guard[V]) rebuild(sh *shard[V], key string, lead *waiter[V]) *flight[V] {
	if out := sh.cooling(key); out != nil {
		sh.spare(key, lead.leads, out)
		return nil
	}
	f := g.newFlight(lead.ctx, sh, key, lead.stays.reloader(key), lead.look)
	if !sh.begins(key, lead, f) {
		return nil
	}
	return f
}

// refresh starts a flight that nobody waits for, of what l has found, and returns
// it; nil: one is running, or the key is to be left alone.
func (g *Guard[V]) refresh(ctx context.Context, sh *shard[V], key string, reloader func(key string) Reloader[V], l *look[V]) *flight[V] {
	if _, _, resting := sh.resting(key); resting || sh.flight(key) != nil || g.heldOff(sh, key) {
		return nil
	}
	f := g.newFlight(ctx, sh, key, reloader(key), l)
	f.inBackground(l.entry.State == Fresh)
	if !sh.starts(f) {
		return nil
	}
	return f
}

// refreshFor starts the refresh of a stale value for one of those who share it,
// none of whom has been told yet.
func (g *Guard[V]) refreshFor(sh *shard[V], key string, lead *waiter[V]) *flight[V] {
	l := lead.look
	l.refreshed = 1
	f := g.refresh(lead.ctx, sh, key, lead.stays.reloader, l)
	if f != nil {
		stale := *l
		f.stale = &stale
	}
	return f
}

// rebuildInBackground begins a flight that nobody waits for, unless one is
// running or the key is to be left alone.
func (g *Guard[V]) rebuildInBackground(ctx context.Context, sh *shard[V], key string, q *question[V], l *look[V]) {
	if !q.loads() || !l.refreshes() {
		return
	}
	if f := g.refresh(ctx, sh, key, q.reloader, l); f != nil {
		f.begin()
	}
}

// newFlight makes a flight that replaces what l has found; nil: nothing.
func (g *Guard[V]) newFlight(ctx context.Context, sh *shard[V], key string, load Reloader[V], l *look[V]) *flight[V] {
	if l == nil {
		l = &look[V]{}
	}
	return &flight[V]{
		g: g, sh: sh, key: key, load: load, ctx: ctx,
		prev: l.replaceable(), seen: l.token, cost: l.cost,
		missing: l.found != hit,
		alone:   l.found == outage,
	}
}

// inBackground makes it a flight that nobody waits for.
func (f *flight[V]) inBackground(early bool) {
	f.background, f.early = true, early
	f.ctx = withLink(f.ctx, nil) // it is nobody's part: the chain of loads that asked ends here
}

// begin runs a flight that the shard has started, on a goroutine of its own.
func (f *flight[V]) begin() { f.sh.rebuilds.DoChan(f.key, f.fly) }

// here runs it on this goroutine, which has made a read and would make the next
// one: the flight sees to that, as far as it is not returned.
func (f *flight[V]) here(next *reading[V]) *reading[V] {
	f.crowd = next
	f.sh.rebuilds.Do(f.key, f.fly)
	return f.crowd
}

// fly is what singleflight runs.
func (f *flight[V]) fly() (any, error) {
	out := failed[V](ErrClosed)
	if f.g.tasks.enter() {
		defer f.g.tasks.leave()
		out = failed[V](errAbandoned) // should it not return
		defer f.sh.landed(f, &out)
		defer f.abandonCrowd()
		out = f.run()
		out.by = f
	} else {
		f.sh.landed(f, &out)
	}
	return nil, nil
}

// run is a flight's life.
func (f *flight[V]) run() outcome[V] {
	f.holder = f.g.newHolder()
	var out outcome[V]
	if f.alone {
		out = f.loadAlone()
	} else {
		out = f.claimOrFollow()
	}
	f.ended(out)
	return out
}

// claimOrFollow goes on until there is an answer, a grant, or no more time.
func (f *flight[V]) claimOrFollow() outcome[V] {
	var w wait
	unseen := 0 // claims in a row that met an entry which a look did not find
	for {
		f.closeCrowd()
		asked := f.asks()
		v, err := f.claim(asked)
		if err != nil {
			f.followed(&w, false, err)
			return f.withoutLease(err)
		}
		switch v.Outcome {
		case store.Granted:
			f.followed(&w, true, nil)
			return f.lead(v.Grant, asked.at)
		case store.Cooling:
			return f.cool(&w, v)
		case store.Held:
			unseen = 0
			if f.background {
				// The holder may fail at once, and nobody is told of that who does
				// not wait: the lease's end is not what to go by.
				f.sh.rest(f.key, min(v.Left, backgroundRest), nil)
				return outcome[V]{}
			}
			w.begin(f.g.opts.WaitLimit, asked.before, v.Token)
			again, told, err := f.await(&w, v.Left)
			if err != nil {
				f.followed(&w, false, err)
				return outcome[V]{answers: true, err: err, upTo: w.upTo(err)}
			}
			if again == claimAgain {
				continue
			}
			if l, ok := f.told(told, v.Token, asked); ok {
				if out, ok := f.take(l, &w); ok {
					f.followed(&w, false, out.err)
					return out
				}
			}
		case store.Changed:
			if f.background {
				return outcome[V]{} // somebody else has done it
			}
			if unseen++; unseen > maxUnseen {
				err := &store.Fault{Op: "claim", Class: store.ClassData, Err: errUnseen}
				f.g.fault(f.key, err)
				f.followed(&w, false, err)
				return f.withoutLease(err)
			}
		}
		if out, ok := f.lookAgain(&w); ok {
			f.followed(&w, false, out.err)
			return out
		}
	}
}

// maxUnseen bounds how often in a row a flight believes that the store has an
// entry which it does not get to see. Somebody may write and remove it between
// the two; that again and again, it is a store whose reads and writes go to
// different servers.
const maxUnseen = 8

var errUnseen = errors.New("an entry is there for claims and not for reads: do reads go to a replica?")

// claim asks for the lease once, and once more if the connection broke under
// it. A claim whose outcome stays unknown is given up by its holder id.
func (f *flight[V]) claim(asked asked) (store.Verdict, error) {
	c := store.Claim{
		Key:    f.g.key(f.key),
		Seen:   f.seen,
		Holder: f.holder,
		Length: f.g.tuner.Length(f.cost),
		Keep:   f.g.opts.LoadLimit,
		Wait:   !f.background,
	}
	v, err := f.ask(c)
	f.tellCrowd(v, err, asked)
	if err == nil {
		f.g.claimed(f, c, v)
		return v, nil
	}
	f.g.fault(f.key, err)
	if retryable(err) {
		v, err = f.g.store.Claim(f.g.ctx, c)
		if err != nil {
			f.g.fault(f.key, err)
		}
	}
	if errors.Is(err, errBreakerOpen) {
		return v, err // it was not sent
	}
	if err != nil || v.Outcome != store.Granted {
		// The one whose reply was lost may have been granted: nobody must wait
		// for it (C027, S34). Whatever this flight claims next is not that.
		f.g.giveUp(store.Grant{Key: c.Key, Holder: f.holder})
		f.holder = f.g.newHolder()
	}
	if err == nil {
		f.g.claimed(f, c, v)
	}
	return v, err
}

// ask sends a claim: the first one of a GetMany's flight with the others'.
func (f *flight[V]) ask(c store.Claim) (store.Verdict, error) {
	if f.batch != nil && !f.claimed {
		f.claimed = true
		return f.batch.claims.with(c)
	}
	return f.g.store.Claim(f.g.ctx, c)
}

// lookAgain reads the store after something happened, and says whether that
// answers the flight's callers.
func (f *flight[V]) lookAgain(w *wait) (outcome[V], bool) {
	return f.take(f.g.lookNow(f.sh, f.key), w)
}

// take says whether a look answers the flight's callers.
func (f *flight[V]) take(l look[V], w *wait) (outcome[V], bool) {
	out := outcome[V]{answers: true, entry: l.entry, asOf: l.asOf, upTo: l.upTo}
	switch {
	case l.found == outage:
		return f.withoutLease(l.err), true
	case l.found == pass:
		return failed[V](&PassError{For: l.entry.Left}), true
	case l.found == handOver && l.token != f.seen:
		out.handOver, out.written = true, l.written()
	case l.found != hit || l.token == f.seen:
		// None, or not for us, or what was to be replaced. The next claim has
		// seen it, so that it does not say "changed" for ever (S36).
		f.prev, f.seen, f.cost = l.replaceable(), l.token, l.cost
		return outcome[V]{}, false
	}
	if w.begun() && out.entry.State == Fresh {
		out.entry.State = Followed
	}
	if w.begun() && l.token > w.token {
		out.began = w.cut // its claim came after the one that we first met
	}
	return out, true
}

// cool answers with the cooldown that binds the key, and remembers it; if it is
// one of what could not be stored, by a load without a lease.
func (f *flight[V]) cool(w *wait, v store.Verdict) outcome[V] {
	err := &CooldownError{Left: v.Left, Reason: v.Reason}
	f.followed(w, false, err)
	if isUnstored(v) {
		return f.withoutLease(nil)
	}
	f.sh.rest(f.key, v.Left, err)
	return failed[V](err)
}

// cooling is what a cooldown that is known here brings, without a claim to be told
// of it again; nil: none binds.
func (s *shard[V]) cooling(key string) *outcome[V] {
	p, left, ok := s.resting(key)
	if !ok || p.err == nil {
		return nil
	}
	out := failed[V](cooling(p.err, left))
	return &out
}

// cooling is a remembered cooldown's error with what is left of it now.
func cooling(err error, left time.Duration) error {
	var c *CooldownError
	if errors.As(err, &c) {
		return &CooldownError{Left: left, Reason: c.Reason}
	}
	return err
}
