package cacheguard

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/internal/watchdog"
)

// lead loads under a grant, offers what came to the store, and ends the lease.
// sent is from before the claim was sent.
func (f *flight[V]) lead(grant store.Grant, sent time.Time) outcome[V] {
	lost := make(chan struct{}, 1)
	held := f.g.watchdog.Hold(watchdog.Lease{
		Grant:  grant,
		Sent:   sent,
		Length: func() time.Duration { return f.g.tuner.Length(f.cost) },
		Cap:    sent.Add(f.g.opts.LoadLimit),
	}, func(why watchdog.Reason) {
		switch why {
		case watchdog.Lost:
			lost <- struct{}{}
		case watchdog.Lapsed:
			f.g.lapsed(grant)
		}
	})
	defer held.Drop()

	f.held = f.g.heldOff(f.sh, f.key)
	began := f.sh.sofar()
	run := f.startLoad(sent, grant.Token)
	defer run.end()
	for {
		select {
		case r := <-run.loaded:
			return f.conclude(held, grant, sent, began, run.finished(r))
		case <-run.ctx.Done():
			return f.conclude(held, grant, sent, began, run.cut())
		case <-lost:
			// Another may have brought a value in the meantime. If not, the load
			// goes on: to cancel it would let a paused holder, or frequent
			// invalidations, starve everybody (S7, S8, S32).
			if out, ok := f.overtakenBy(grant); ok {
				run.cancel(store.ErrLost)
				return out
			}
		}
	}
}

// overtakenBy looks for a fresh entry that makes a load needless whose lease
// is lost: another one than the load is to replace (S35), by a greater token.
func (f *flight[V]) overtakenBy(grant store.Grant) (outcome[V], bool) {
	l := f.g.lookNow(f.sh, f.key)
	if l.found != hit || l.entry.State == Stale || l.token == f.seen {
		return outcome[V]{}, false
	}
	f.g.loaded(f, LoadInfo{Err: store.ErrLost, Length: grant.Length})
	if l.entry.State == Fresh {
		l.entry.State = Followed
	}
	return outcome[V]{answers: true, entry: l.entry, asOf: l.asOf, upTo: l.upTo}, true
}

// conclude deals with a load that has ended.
func (f *flight[V]) conclude(held *watchdog.Held, grant store.Grant, sent time.Time, began uint64, r result[V]) outcome[V] {
	f.g.loaded(f, LoadInfo{Took: r.took, Err: r.err, Length: grant.Length})
	var p *PassError
	out := outcome[V]{answers: true, led: true, began: began, upTo: began, asOf: f.g.now()}
	age := out.asOf - f.g.instant(sent)
	out.entry = Entry[V]{Value: r.value, State: Rebuilt, Age: age, Token: grant.Token}
	content := store.Content{Kind: store.Value, HandOver: handOverLife, Cost: r.took}
	// A process that was stopped in its load has measured its own sleep. A lease
	// after that measure would be longer, and with it the next stop that
	// somebody waits for, and so the next measure.
	slept := held.Starved()
	if slept {
		content.Cost = f.cost
	}
	switch {
	case r.err == nil:
		c, err := f.g.content(f.key, r.value)
		if err != nil {
			return f.fail(grant, err)
		}
		content.Payload, content.TTL, content.Grace = c.Payload, c.TTL, c.Grace
	case errors.Is(r.err, ErrNotFound):
		out.entry = Entry[V]{State: Absent, Age: age, Token: grant.Token}
		content.Kind, content.TTL = store.Absent, f.g.opts.NegativeTTL
	case errors.As(r.err, &p):
		content.Kind, content.TTL = store.Pass, min(max(p.For, time.Millisecond), maxLife)
		out.err = p
	default:
		return f.fail(grant, r.err)
	}
	if p == nil && f.heldOff() {
		if f.keepsWhatIsThere() {
			return f.leaveUnstored(grant, out)
		}
		content.TTL, content.Grace = 0, 0 // a hand-over: for those who wait, and nobody after them
	}
	if p == nil {
		if !slept {
			f.g.tuner.Observe(r.took, f.cost)
		}
		out.entry.TTL = content.TTL
		out.entry.Left = max(content.TTL-age, 0)
	}

	// From here on the flight takes no more callers: once the fill is sent it
	// may land, and be followed by an invalidation that returns, all before
	// its reply is here (S4). An accepted fill proves that nothing was
	// invalidated since the claim; without that proof the value is for those
	// who were there before the load began.
	before := f.sh.sofar()
	if f.fill(grant, content) && !f.unsure.Load() {
		out.upTo = before
		f.copyNear(out.entry, sent, content)
	}
	if p != nil {
		out.upTo = everybody // nobody gets the value but its own caller
	}
	return out
}

// leaveUnstored ends the lease of a load that is not to be stored: out is for those
// who were there before it began.
func (f *flight[V]) leaveUnstored(grant store.Grant, out outcome[V]) outcome[V] {
	if f.batch != nil {
		f.batch.fills.without()
	}
	f.g.release(f.key, grant, nil)
	return out
}

// copyNear puts what has landed in the near cache, if it has a life there.
func (f *flight[V]) copyNear(e Entry[V], sent time.Time, c store.Content) {
	if f.g.near == nil || c.Kind == store.Pass || c.TTL <= 0 {
		return
	}
	e.Age, e.Left = 0, c.TTL
	f.sh.copyNear(f.g, f.key, func() bool { return !f.overtaken }, e, sent.Sub(f.g.epoch), c.TTL+c.Grace, len(c.Payload))
}

// fill offers the content, and tells whether it has certainly landed.
func (f *flight[V]) fill(grant store.Grant, c store.Content) bool {
	spanned := f.spanFill(grant)
	err := f.offer(grant, c)
	if err != nil && retryable(err) {
		f.g.fault(f.key, err)
		err = f.g.store.Fill(context.Background(), grant, c) // the same token: success if it had landed
	}
	if err != nil && !errors.Is(err, store.ErrFenced) {
		f.g.fault(f.key, err)
		f.g.unstored(grant, err) // or the others would wait for a lease without a load
	}
	spanned(SpanEnd{Err: err})
	f.g.filled(f, len(c.Payload), err)
	return err == nil
}

// offer sends a fill, that of a GetMany's flight with the others'. A closed
// guard still stores what it has loaded: the store bounds the call.
func (f *flight[V]) offer(grant store.Grant, c store.Content) error {
	if f.batch != nil {
		_, err := f.batch.fills.with(store.Filling{Grant: grant, Content: c})
		return err
	}
	return f.g.store.Fill(context.Background(), grant, c)
}

// fail ends the lease of a load that brought nothing, and starts the cooldown.
func (f *flight[V]) fail(grant store.Grant, err error) outcome[V] {
	if errors.Is(err, ErrClosed) && f.g.ctx.Err() != nil {
		f.g.release(f.key, grant, nil) // not the origin's fault
		return failed[V](ErrClosed)
	}
	cooldown := f.g.cooldownOf(err)
	f.g.release(f.key, grant, &store.Failure{Reason: reason(err), Cooldown: cooldown})
	if f.background {
		f.sh.rest(f.key, cooldown, nil)
	}
	out := failed[V](err)
	out.led = true
	return out
}

func (g *Guard[V]) cooldownOf(err error) time.Duration {
	var c Cooler
	if errors.As(err, &c) {
		return min(max(c.Cooldown(), 0), maxLimit)
	}
	return g.opts.Cooldown
}

// reason is an error's text in the length and form that a lease record is to
// hold.
func reason(err error) string {
	const limit = 200
	text := strings.ToValidUTF8(err.Error(), "?")
	if _, ours := err.(unstoredError); !ours && strings.HasPrefix(text, unstoredMark) {
		text = "failed: " + text // what an origin says is no word of ours
	}
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "")
	}
	return text
}

// content is what is stored for a value: its bytes and its lifetime.
func (g *Guard[V]) content(key string, v V) (c store.Content, err error) {
	c.Kind = store.Value
	life := g.opts.Lifetime
	if choose := g.opts.LifetimeFunc; choose != nil {
		if p := g.protect("LifetimeFunc", func() { life = choose(key, v) }); p != nil {
			return c, p
		}
	}
	life = life.bounded()
	g.lived(life)
	c.TTL, c.Grace = jittered(life.TTL, g.opts.Jitter, rand.Float64()), life.Grace
	if p := g.protect("Codec.Encode", func() { c.Payload, err = g.opts.Codec.Encode(v) }); p != nil {
		err = p
	}
	if err != nil {
		return c, fmt.Errorf("cacheguard: encode the value: %w", err)
	}
	return c, nil
}
