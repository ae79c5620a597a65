package memstore

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/storetest"
)

// TestSuiteCatchesWrongStores runs checks of the conformance suite on stores that
// are each wrong in one way: the check that is there for it, and random
// histories. A suite that passes one of them is not worth running.
func TestSuiteCatchesWrongStores(t *testing.T) {
	checks := map[string]storetest.Check{}
	for _, c := range storetest.Checks() {
		checks[c.Name] = c
	}
	for _, m := range mistakes {
		t.Run(m.name, func(t *testing.T) {
			check, ok := checks[m.caught]
			if !ok {
				t.Fatalf("there is no check %q", m.caught)
			}
			if !caught(t, check, m) {
				t.Errorf("passed %q", m.caught)
			}
			if byChance := caught(t, storetest.Histories(1, 200), m); byChance == m.notByChance {
				t.Errorf("caught by random histories: %v", byChance)
			}
		})
	}
}

// mistake is one way to be wrong.
type mistake struct {
	name   string
	wrong  func(s *Store) *wrong
	caught string // the check that is there for it

	// notByChance: what random histories do not look at, such as several keys.
	notByChance bool
}

// caught tells whether a wrong store fails a check.
func caught(t *testing.T, c storetest.Check, m mistake) bool {
	var o *observer
	synctest.Test(t, func(t *testing.T) {
		o = &observer{T: t}
		h := newHarness()
		h.under = m.wrong(h.s)
		done := make(chan struct{})
		go func() { // which Fatalf ends
			defer close(done)
			c.Run(o, h)
		}()
		<-done
	})
	return o.failed.Load()
}

// observer lets a check fail without failing the test.
type observer struct {
	*testing.T
	failed atomic.Bool
}

func (o *observer) Logf(string, ...any)   {}
func (o *observer) Errorf(string, ...any) { o.failed.Store(true) }
func (o *observer) Skipf(string, ...any)  { runtime.Goexit() }
func (o *observer) Fatalf(string, ...any) {
	o.failed.Store(true)
	runtime.Goexit()
}

// wrong is a store that does some things its own way.
type wrong struct {
	*Store
	deaf       bool // does not look at the context
	load       func(store.Key) store.Entry
	claim      func(store.Claim) store.Verdict
	renew      func(store.Renewal) error
	release    func(store.Grant, *store.Failure)
	fill       func(store.Grant, store.Content) error
	begin      func(store.Key, time.Duration) store.Begun
	set        func(store.Write) error
	invalidate func(store.Key)
	expire     func(store.Key)
	listen     func(string, func(store.Event)) func()
}

var bg = context.Background()

func (w *wrong) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	if w.deaf {
		ctx = context.WithoutCancel(ctx)
	}
	if w.load == nil || ctx.Err() != nil {
		return w.Store.Load(ctx, key)
	}
	return w.load(key), nil
}

func (w *wrong) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	if w.claim == nil || ctx.Err() != nil {
		return w.Store.Claim(ctx, c)
	}
	return w.claim(c), nil
}

func (w *wrong) Renew(ctx context.Context, renewals []store.Renewal) []error {
	if w.renew == nil || ctx.Err() != nil {
		return w.Store.Renew(ctx, renewals)
	}
	return each(ctx, "renew", renewals, w.renew)
}

func (w *wrong) Release(ctx context.Context, g store.Grant, f *store.Failure) error {
	if w.release == nil || ctx.Err() != nil {
		return w.Store.Release(ctx, g, f)
	}
	w.release(g, f)
	return nil
}

func (w *wrong) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	if w.fill == nil || ctx.Err() != nil {
		return w.Store.Fill(ctx, g, c)
	}
	return w.fill(g, c)
}

func (w *wrong) Begin(ctx context.Context, key store.Key, keep time.Duration) (store.Begun, error) {
	if w.begin == nil || ctx.Err() != nil {
		return w.Store.Begin(ctx, key, keep)
	}
	return w.begin(key, keep), nil
}

func (w *wrong) Set(ctx context.Context, wr store.Write) error {
	if w.set == nil || ctx.Err() != nil {
		return w.Store.Set(ctx, wr)
	}
	return w.set(wr)
}

func (w *wrong) Invalidate(ctx context.Context, keys []store.Key) []error {
	if w.invalidate == nil || ctx.Err() != nil {
		return w.Store.Invalidate(ctx, keys)
	}
	return each(ctx, "invalidate", keys, func(k store.Key) error { w.invalidate(k); return nil })
}

func (w *wrong) Expire(ctx context.Context, keys []store.Key) []error {
	if w.expire == nil || ctx.Err() != nil {
		return w.Store.Expire(ctx, keys)
	}
	return each(ctx, "expire", keys, func(k store.Key) error { w.expire(k); return nil })
}

func (w *wrong) Listen(space string, fn func(store.Event)) func() {
	if w.listen == nil {
		return w.Store.Listen(space, fn)
	}
	return w.listen(space, fn)
}

// renaming is a store that keeps what belongs to a key under another name.
func renaming(s *Store, name func(store.Key) store.Key) *wrong {
	return &wrong{Store: s,
		load: func(k store.Key) store.Entry { return must(s.Load(bg, name(k))) },
		claim: func(c store.Claim) store.Verdict {
			asked := c.Key
			c.Key = name(c.Key)
			v := must(s.Claim(bg, c))
			v.Grant.Key = asked
			return v
		},
		renew: func(rn store.Renewal) error { rn.Grant.Key = name(rn.Grant.Key); return s.renewOne(rn) },
		release: func(g store.Grant, f *store.Failure) {
			g.Key = name(g.Key)
			_ = s.Release(bg, g, f)
		},
		fill:       func(g store.Grant, c store.Content) error { g.Key = name(g.Key); return s.Fill(bg, g, c) },
		begin:      func(k store.Key, keep time.Duration) store.Begun { return must(s.Begin(bg, name(k), keep)) },
		set:        func(w store.Write) error { w.Key = name(w.Key); return s.Set(bg, w) },
		invalidate: func(k store.Key) { s.Invalidate(bg, keys(name(k))) },
		expire:     func(k store.Key) { s.Expire(bg, keys(name(k))) },
	}
}

// edit changes the record of a key, if there is one.
func (s *Store) edit(key store.Key, change func(r *record, now int64)) {
	sh, now := s.lock(key)
	defer sh.mu.Unlock()
	if r := sh.record(key, now); r != nil {
		change(r, now)
	}
}

func (s *Store) birth(key store.Key) (birth string) {
	s.edit(key, func(r *record, _ int64) { birth = r.birth })
	return birth
}

func (s *Store) noFence(key store.Key) { s.edit(key, func(r *record, _ int64) { r.fence = 0 }) }
func (s *Store) noLease(key store.Key) {
	s.edit(key, func(r *record, _ int64) { r.holder, r.lease = "", span{} })
}
func (s *Store) noMark(key store.Key) { s.edit(key, func(r *record, _ int64) { r.waiting = false }) }
func (s *Store) noFailure(key store.Key) {
	s.edit(key, func(r *record, _ int64) { r.failures, r.cooldown = nil, span{} })
}

// must takes the result of a call that cannot fail here.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func keys(k store.Key) []store.Key { return []store.Key{k} }

func (s *Store) renewOne(rn store.Renewal) error {
	return errors.Join(s.Renew(bg, []store.Renewal{rn})...)
}

var mistakes = []mistake{
	{name: "an entry is of no instant", caught: "entry/it is as of an instant of its load", notByChance: true, wrong: func(s *Store) *wrong {
		return &wrong{Store: s, load: func(k store.Key) store.Entry {
			e, _ := s.Load(bg, k)
			e.At = time.Time{}
			return e
		}}
	}},
	{name: "fill ignores the fence", caught: "fence/a fill after an invalidate is refused", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error { s.noFence(g.Key); return s.Fill(bg, g, c) }}
	}},
	{name: "fill ignores the birth mark", caught: "fence/a fill under another record is refused though its token is higher", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error {
			if b := s.birth(g.Key); b != "" {
				g.Birth = b
			}
			return s.Fill(bg, g, c)
		}}
	}},
	{name: "fill without a record creates one", caught: "lease/only claim and begin create a record", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error {
			err := s.Fill(bg, g, c)
			must(s.Begin(bg, g.Key, time.Minute))
			return err
		}}
	}},
	{name: "fill asks for a running lease", caught: "fence/paused holders make progress", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error {
			running := false
			s.edit(g.Key, func(r *record, now int64) { running = r.lease.left(now) > 0 && r.holder == g.Holder })
			if !running {
				return store.ErrFenced
			}
			return s.Fill(bg, g, c)
		}}
	}},
	{name: "fill ends the lease of the next holder", caught: "fence/a late fill leaves the next holder its lease", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error {
			err := s.Fill(bg, g, c)
			if err == nil {
				s.noLease(g.Key)
			}
			return err
		}}
	}},
	{name: "the same fill again is written again", caught: "fence/the same fill again does not bring a lapsed entry back", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error {
			s.edit(g.Key, func(r *record, _ int64) {
				if r.fence == g.Token {
					r.fence--
				}
			})
			return s.Fill(bg, g, c)
		}}
	}},
	{name: "the same fill again is refused", caught: "fence/the same fill again changes nothing", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error {
			again := false
			s.edit(g.Key, func(r *record, _ int64) { again = r.fence == g.Token })
			if again {
				return store.ErrFenced
			}
			return s.Fill(bg, g, c)
		}}
	}},
	{name: "life counts from the fill", caught: "entry/life counts from the claim", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error { g.Time = s.clock.now(); return s.Fill(bg, g, c) }}
	}},
	{name: "a hand-over is not written", caught: "entry/a spent life is handed over", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error {
			err := s.Fill(bg, g, c)
			if must(s.Load(bg, g.Key)).HandOver {
				s.DropEntry(g.Key)
			}
			return err
		}}
	}},
	{name: "a hand-over looks like any entry", caught: "entry/no life is handed over", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, load: func(k store.Key) store.Entry {
			e := must(s.Load(bg, k))
			e.HandOver = false
			return e
		}}
	}},
	{name: "fill keeps the failures", caught: "lease/a fill clears failures and cooldown", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error {
			var failures []failure
			var cooldown span
			s.edit(g.Key, func(r *record, _ int64) { failures, cooldown = r.failures, r.cooldown })
			err := s.Fill(bg, g, c)
			s.edit(g.Key, func(r *record, _ int64) { r.failures, r.cooldown = failures, cooldown })
			return err
		}}
	}},
	{name: "fill keeps the caller's bytes", caught: "entry/the writer may change its payload after the call", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error {
			err := s.Fill(bg, g, c)
			sh, now := s.lock(g.Key)
			defer sh.mu.Unlock()
			if e := sh.entry(g.Key, now); e != nil && e.token == g.Token {
				e.payload = c.Payload
			}
			return err
		}}
	}},
	{name: "fill always wakes", caught: "events/a fill wakes if somebody waits", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error {
			s.edit(g.Key, func(r *record, _ int64) { r.waiting = true })
			return s.Fill(bg, g, c)
		}}
	}},
	{name: "fill never wakes", caught: "events/a new grant keeps the mark of being waited for", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error { s.noMark(g.Key); return s.Fill(bg, g, c) }}
	}},
	{name: "a fill whose record is gone is silent", caught: "events/a fill whose record is gone wakes those who waited", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, fill: func(g store.Grant, c store.Content) error {
			if s.birth(g.Key) != g.Birth {
				return store.ErrFenced
			}
			return s.Fill(bg, g, c)
		}}
	}},

	{name: "claim grants while held", caught: "concurrency/of many claims one is granted", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			v := must(s.Claim(bg, c))
			if v.Outcome == store.Held {
				s.noLease(c.Key)
				v = must(s.Claim(bg, c))
			}
			return v
		}}
	}},
	{name: "claim is two steps", caught: "concurrency/of many claims one is granted", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			held := false
			s.edit(c.Key, func(r *record, now int64) { held = r.lease.left(now) > 0 })
			time.Sleep(time.Nanosecond) // the others look meanwhile
			if !held {
				s.noLease(c.Key)
			}
			return must(s.Claim(bg, c))
		}}
	}},
	{name: "claim does not look at the entry", caught: "lease/an entry other than the one seen is a change", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			c.Seen = must(s.Load(bg, c.Key)).Token
			return must(s.Claim(bg, c))
		}}
	}},
	{name: "an entry that has gone is a change", caught: "lease/an entry that is not there is not a change", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			if c.Seen != 0 && must(s.Load(bg, c.Key)).Token == 0 {
				return store.Verdict{Outcome: store.Changed}
			}
			return must(s.Claim(bg, c))
		}}
	}},
	{name: "held is told before changed", caught: "lease/a change is told before a running lease", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			seeing := c
			seeing.Seen = must(s.Load(bg, c.Key)).Token
			held := false
			s.edit(c.Key, func(r *record, now int64) { held = r.lease.left(now) > 0 && r.holder != c.Holder })
			if held {
				return must(s.Claim(bg, seeing))
			}
			return must(s.Claim(bg, c))
		}}
	}},
	{name: "a holder's own lease is held against it", caught: "lease/the same holder is granted anew and its lease starts anew", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			own := false
			s.edit(c.Key, func(r *record, now int64) { own = r.lease.left(now) > 0 && r.holder == c.Holder })
			if own {
				c.Holder += "'"
			}
			return must(s.Claim(bg, c))
		}}
	}},
	{name: "a grant asked for again keeps its end", caught: "lease/the same holder is granted anew and its lease starts anew", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			var before span
			s.edit(c.Key, func(r *record, now int64) {
				if r.holder == c.Holder && r.lease.left(now) > 0 {
					before = r.lease
				}
			})
			v := must(s.Claim(bg, c))
			if v.Outcome == store.Granted && before != (span{}) {
				s.edit(c.Key, func(r *record, _ int64) { r.lease = before })
			}
			return v
		}}
	}},
	{name: "tokens do not grow", caught: "lease/tokens grow over every verb and key loss", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			last := s.token.Load()
			v := must(s.Claim(bg, c))
			if v.Outcome == store.Granted {
				v.Grant.Token = max(store.Token(last), 1)
			}
			return v
		}}
	}},
	{name: "birth marks come from the claim", caught: "fence/a retried claim after a loss does not admit the older grant", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			there := s.birth(c.Key) != ""
			v := must(s.Claim(bg, c))
			if v.Outcome == store.Granted && !there {
				v.Grant.Birth = string(c.Holder)
				s.edit(c.Key, func(r *record, _ int64) { r.birth = string(c.Holder) })
			}
			return v
		}}
	}},
	{name: "a new grant loses the mark of being waited for", caught: "events/a new grant keeps the mark of being waited for", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			v := must(s.Claim(bg, c))
			if v.Outcome == store.Granted {
				s.noMark(c.Key)
			}
			return v
		}}
	}},
	{name: "who only asks counts as waiting", caught: "events/a claim that only asks does not make a fill wake", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict { c.Wait = true; return must(s.Claim(bg, c)) }}
	}},
	{name: "a takeover is not told", caught: "lease/a lease that ran out is taken over", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			v := must(s.Claim(bg, c))
			v.Grant.Takeover = false
			return v
		}}
	}},
	{name: "what was seen and is gone is told to be there", caught: "lease/a claim tells whether what was seen is still there", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			v := must(s.Claim(bg, c))
			v.Same = v.Outcome != store.Changed && c.Seen != 0
			return v
		}}
	}},
	{name: "what was seen and is there is not told", caught: "lease/a claim tells whether what was seen is still there", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			v := must(s.Claim(bg, c))
			v.Same = false
			return v
		}}
	}},
	{name: "the last keep counts", caught: "lease/no verb shortens the life of the record", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			v := must(s.Claim(bg, c))
			sh, now := s.lock(c.Key)
			defer sh.mu.Unlock()
			if r := sh.record(c.Key, now); r != nil && v.Outcome == store.Granted {
				r.keep = c.Keep
				sh.moveEnd(&r.item, later(r.lease.until, c.Keep))
			}
			return v
		}}
	}},
	{name: "the record does not outlive its cooldown", caught: "lease/the record outlives its cooldown", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, release: func(g store.Grant, f *store.Failure) {
			left, _ := harness{s: s}.RecordLeft(g.Key)
			_ = s.Release(bg, g, f)
			sh, now := s.lock(g.Key)
			defer sh.mu.Unlock()
			if r := sh.record(g.Key, now); r != nil {
				sh.moveEnd(&r.item, now+int64(left))
			}
		}}
	}},
	{name: "an end too far ahead counts", caught: "lease/a lease whose end lies too far ahead has passed", notByChance: true, wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			v := must(s.Claim(bg, c))
			s.edit(c.Key, func(r *record, _ int64) { r.lease.length = 1 << 62 })
			return v
		}}
	}},

	{name: "one failure binds everybody", caught: "lease/a failure of one process binds that process alone", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			v := must(s.Claim(bg, c))
			if v.Outcome == store.Granted && v.Grant.SecondOpinion {
				_ = s.Release(bg, v.Grant, nil)
				return store.Verdict{Outcome: store.Cooling, Left: time.Second, Holder: "other/1"}
			}
			return v
		}}
	}},
	{name: "a cooldown binds only who failed last", caught: "lease/failures of two processes bind everybody", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, claim: func(c store.Claim) store.Verdict {
			s.edit(c.Key, func(r *record, _ int64) { r.failures = slices.Clone(r.failures[max(0, len(r.failures)-1):]) })
			return must(s.Claim(bg, c))
		}}
	}},
	{name: "a failure is counted for each sending", caught: "lease/a failure is counted once", wrong: func(s *Store) *wrong {
		var sent atomic.Int64
		return &wrong{Store: s, release: func(g store.Grant, f *store.Failure) {
			_ = s.Release(bg, g, nil)
			if f != nil {
				g.Holder += store.Holder(fmt.Sprintf("'%d", sent.Add(1)))
				_ = s.Release(bg, g, f)
			}
		}}
	}},
	{name: "a failure without its lease is not counted", caught: "lease/a failure is counted when its lease is gone", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, release: func(g store.Grant, f *store.Failure) {
			s.edit(g.Key, func(r *record, now int64) {
				if r.holder != g.Holder || r.lease.left(now) == 0 {
					f = nil
				}
			})
			_ = s.Release(bg, g, f)
		}}
	}},
	{name: "release ends the lease of another", caught: "lease/release leaves the lease of another alone", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, release: func(g store.Grant, f *store.Failure) { _ = s.Release(bg, g, f); s.noLease(g.Key) }}
	}},
	{name: "release ignores the birth mark", caught: "lease/release without its record does nothing", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, release: func(g store.Grant, f *store.Failure) { g.Birth = ""; _ = s.Release(bg, g, f) }}
	}},
	{name: "release needs a birth mark", caught: "lease/release by holder alone ends a lease of unknown token", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, release: func(g store.Grant, f *store.Failure) {
			if g.Birth != "" {
				_ = s.Release(bg, g, f)
			}
		}}
	}},
	{name: "renew creates a record", caught: "lease/only claim and begin create a record", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, renew: func(rn store.Renewal) error {
			err := s.renewOne(rn)
			if err != nil {
				must(s.Begin(bg, rn.Grant.Key, rn.Length))
			}
			return err
		}}
	}},
	{name: "renew does not look at the holder", caught: "lease/renew tells each lease that is lost", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, renew: func(rn store.Renewal) error {
			s.edit(rn.Grant.Key, func(r *record, _ int64) { rn.Grant.Holder = r.holder })
			return s.renewOne(rn)
		}}
	}},
	{name: "renew does nothing", caught: "lease/renew starts the lease anew", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, renew: func(rn store.Renewal) error {
			var before span
			s.edit(rn.Grant.Key, func(r *record, _ int64) { before = r.lease })
			err := s.renewOne(rn)
			s.edit(rn.Grant.Key, func(r *record, _ int64) { r.lease = before })
			return err
		}}
	}},

	{name: "begin moves the fence", caught: "fence/begin does nothing else", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, begin: func(k store.Key, keep time.Duration) store.Begun {
			b := must(s.Begin(bg, k, keep))
			s.edit(k, func(r *record, _ int64) { r.fence = b.Token })
			return b
		}}
	}},
	{name: "a begun set ignores the fence", caught: "fence/a begun set that was overtaken invalidates", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, set: func(w store.Write) error { s.noFence(w.Key); return s.Set(bg, w) }}
	}},
	{name: "a begun set ignores the birth mark", caught: "fence/a begun set without its record invalidates", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, set: func(w store.Write) error {
			if w.Begun != nil && w.Begun.Birth != s.birth(w.Key) {
				w.Begun = nil
			}
			return s.Set(bg, w)
		}}
	}},
	{name: "a refused begun set leaves the entry", caught: "fence/a begun set that was overtaken invalidates", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, set: func(w store.Write) error {
			refused := false
			s.edit(w.Key, func(r *record, _ int64) { refused = w.Begun != nil && r.fence > w.Begun.Token })
			if refused {
				return store.ErrFenced
			}
			return s.Set(bg, w)
		}}
	}},
	{name: "set leaves the fence", caught: "fence/a fill after a set is refused", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, set: func(w store.Write) error { err := s.Set(bg, w); s.noFence(w.Key); return err }}
	}},
	{name: "set clears the cooldown", caught: "lease/nothing but a fill clears a cooldown", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, set: func(w store.Write) error { s.noFailure(w.Key); return s.Set(bg, w) }}
	}},
	{name: "set creates a record", caught: "lease/only claim and begin create a record", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, set: func(w store.Write) error { must(s.Begin(bg, w.Key, time.Minute)); return s.Set(bg, w) }}
	}},
	{name: "invalidate forgets the fence", caught: "fence/a fill after an invalidate is refused", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, invalidate: func(k store.Key) { s.Invalidate(bg, keys(k)); s.noFence(k) }}
	}},
	{name: "invalidate leaves the lease", caught: "fence/writes end any lease", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, invalidate: func(k store.Key) {
			var holder store.Holder
			var lease span
			s.edit(k, func(r *record, _ int64) { holder, lease = r.holder, r.lease })
			s.Invalidate(bg, keys(k))
			s.edit(k, func(r *record, _ int64) { r.holder, r.lease = holder, lease })
		}}
	}},
	{name: "invalidate without a record is silent", caught: "events/writes always wake", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, invalidate: func(k store.Key) {
			if s.birth(k) != "" {
				s.Invalidate(bg, keys(k))
			} else {
				s.DropEntry(k)
			}
		}}
	}},
	{name: "invalidate wakes before it is done", caught: "events/the effect can be seen", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, invalidate: func(k store.Key) {
			s.hub.publish(k.Space, store.Event{Kind: store.Invalidated, ID: k.ID})
			time.Sleep(time.Nanosecond)
			s.Invalidate(bg, keys(k))
		}}
	}},
	{name: "expire lengthens the life", caught: "entry/expire of a stale entry lengthens nothing", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, expire: func(k store.Key) {
			s.Expire(bg, keys(k))
			sh, now := s.lock(k)
			defer sh.mu.Unlock()
			if e := sh.entry(k, now); e != nil {
				sh.moveEnd(&e.item, later(now, e.grace))
			}
		}}
	}},
	{name: "expire leaves the whole life", caught: "entry/expire begins the grace and lengthens nothing", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, expire: func(k store.Key) {
			left, _ := harness{s: s}.EntryLeft(k)
			s.Expire(bg, keys(k))
			sh, now := s.lock(k)
			defer sh.mu.Unlock()
			if e := sh.entry(k, now); e != nil {
				sh.moveEnd(&e.item, later(now, left))
			}
		}}
	}},
	{name: "expire forgets the fence", caught: "fence/a fill after an expire is refused", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, expire: func(k store.Key) { s.Expire(bg, keys(k)); s.noFence(k) }}
	}},
	{name: "expire gives the entry a new token", caught: "entry/expire makes stale and keeps bytes and token", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, expire: func(k store.Key) {
			s.Expire(bg, keys(k))
			sh, now := s.lock(k)
			defer sh.mu.Unlock()
			if e := sh.entry(k, now); e != nil {
				e.token = s.nextToken(now)
			}
		}}
	}},
	{name: "expire deletes", caught: "entry/expire makes stale and keeps bytes and token", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, expire: func(k store.Key) { s.Expire(bg, keys(k)); s.DropEntry(k) }}
	}},

	{name: "foreign bytes pass for a value", caught: "entry/foreign bytes are a miss and a fault", notByChance: true, wrong: func(s *Store) *wrong {
		return &wrong{Store: s, load: func(k store.Key) store.Entry {
			e := must(s.Load(bg, k))
			if e.Fault != nil {
				e = store.Entry{Kind: store.Value, Token: e.Token, Left: time.Second}
			}
			return e
		}}
	}},
	{name: "the token of unreadable bytes is kept back", caught: "entry/foreign bytes do not stop a claim that saw them", notByChance: true, wrong: func(s *Store) *wrong {
		return &wrong{Store: s, load: func(k store.Key) store.Entry {
			e := must(s.Load(bg, k))
			if e.Fault != nil {
				e.Token = 0
			}
			return e
		}}
	}},
	{name: "keys that differ in braces meet", caught: "keys/any key holds its own entry", notByChance: true, wrong: func(s *Store) *wrong {
		return renaming(s, func(k store.Key) store.Key { k.ID = strings.Trim(k.ID, "{}"); return k })
	}},
	{name: "space and ID are joined with a colon", caught: "keys/any key has its own lease and fence", notByChance: true, wrong: func(s *Store) *wrong {
		return renaming(s, func(k store.Key) store.Key {
			if top, below, ok := strings.Cut(k.Space, ":"); ok {
				k = store.Key{Space: top, ID: below + ":" + k.ID}
			}
			return k
		})
	}},
	{name: "long keys are cut", caught: "keys/any key has its own lease and fence", notByChance: true, wrong: func(s *Store) *wrong {
		return renaming(s, func(k store.Key) store.Key { k.ID = k.ID[:min(len(k.ID), 10<<10)]; return k })
	}},
	{name: "keys are taken for text", caught: "keys/any key holds its own entry", notByChance: true, wrong: func(s *Store) *wrong {
		return renaming(s, func(k store.Key) store.Key { k.ID = strings.ToValidUTF8(k.ID, "?"); return k })
	}},
	{name: "listeners hear every space that begins with theirs", caught: "keys/spaces do not meet", notByChance: true, wrong: func(s *Store) *wrong {
		return &wrong{Store: s, listen: func(space string, fn func(store.Event)) func() {
			one, two := s.Listen(space, fn), s.Listen(space+"*", func(e store.Event) {
				if e.Kind != store.Up {
					fn(e)
				}
			})
			return func() { one(); two() }
		}}
	}},
	{name: "up does not come", caught: "events/up comes first", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, listen: func(space string, fn func(store.Event)) func() {
			return s.Listen(space, func(e store.Event) {
				if e.Kind != store.Up {
					fn(e)
				}
			})
		}}
	}},
	{name: "what comes along is of another token", caught: "events/an entry that comes along is the one that landed", wrong: func(s *Store) *wrong {
		return carrying(s, func(e *store.Entry) { e.Token-- })
	}},
	{name: "what comes along has another payload", caught: "events/an entry that comes along is the one that landed", wrong: func(s *Store) *wrong {
		return carrying(s, func(e *store.Entry) { e.Payload = append(e.Payload, 'x') })
	}},
	{name: "what comes along is younger than what landed", caught: "events/an entry that comes along is the one that landed", notByChance: true, wrong: func(s *Store) *wrong {
		return carrying(s, func(e *store.Entry) { e.Fresh, e.Left, e.Age = e.Fresh+e.Age, e.Left+e.Age, 0 })
	}},
	{name: "hand-overs and passes come along", caught: "events/a hand-over or pass does not come along", wrong: func(s *Store) *wrong {
		return &wrong{Store: s, listen: func(space string, fn func(store.Event)) func() {
			return s.Listen(space, func(e store.Event) {
				if e.Kind == store.Filled && e.Entry == nil {
					there := must(s.Load(bg, store.Key{Space: space, ID: e.ID}))
					e.Entry = &there
				}
				fn(e)
			})
		}}
	}},
	{name: "stop does not wait", caught: "events/stop waits for the listener", notByChance: true, wrong: func(s *Store) *wrong {
		return &wrong{Store: s, listen: func(space string, fn func(store.Event)) func() {
			stop := s.Listen(space, fn)
			return func() { go stop() }
		}}
	}},
	{name: "events come after stop", caught: "events/nothing comes after stop", notByChance: true, wrong: func(s *Store) *wrong {
		return &wrong{Store: s, listen: func(space string, fn func(store.Event)) func() {
			s.Listen(space, fn)
			return func() {}
		}}
	}},
	{name: "a caller that has gone is served", caught: "lease/a caller that has gone is told so and changes nothing", notByChance: true, wrong: func(s *Store) *wrong {
		return &wrong{Store: s, deaf: true}
	}},
}

// carrying changes what events bring along.
func carrying(s *Store, change func(*store.Entry)) *wrong {
	return &wrong{Store: s, listen: func(space string, fn func(store.Event)) func() {
		return s.Listen(space, func(e store.Event) {
			if e.Entry != nil {
				change(e.Entry)
			}
			fn(e)
		})
	}}
}
