package storetest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// resolution is how coarsely a store may count time.
const resolution = 2 * time.Millisecond

// patience bounds every wait for something that must come.
const patience = 10 * time.Second

// trial is one run of a check: short words for what checks do and expect.
type trial struct {
	T
	Harness
	ctx context.Context
	st  store.Store

	unit  time.Duration
	short time.Duration // lapses within wait(short)
	long  time.Duration // does not lapse while a check runs

	ids []string // of the keys that the check has used so far
}

func newTrial(t T, h Harness) *trial {
	u := h.Unit()
	return &trial{T: t, Harness: h, ctx: t.Context(), st: h.Store(), unit: u, short: 2 * u, long: 2000 * u}
}

func (t *trial) key(id string) store.Key {
	t.ids = append(t.ids, id)
	return store.Key{Space: t.Space(), ID: id}
}

// units waits for some units.
func (t *trial) units(n int) { t.Wait(time.Duration(n) * t.unit) }

// outlast waits until what was given t.short has lapsed.
func (t *trial) outlast() { t.Wait(t.short + t.unit) }

// ask is a claim with a long lease by an attempt of a process: "A/1".
func (t *trial) ask(key store.Key, holder store.Holder) store.Claim {
	return store.Claim{Key: key, Holder: holder, Length: t.long, Keep: t.long}
}

// askShort is a claim whose lease lapses while the check runs.
func (t *trial) askShort(key store.Key, holder store.Holder) store.Claim {
	c := t.ask(key, holder)
	c.Length = t.short
	return c
}

func (t *trial) claim(c store.Claim) store.Verdict {
	t.Helper()
	v, err := t.st.Claim(t.ctx, c)
	if err != nil {
		t.Fatalf("claim by %s: %v", c.Holder, err)
	}
	return v
}

func (t *trial) want(c store.Claim, outcome store.Outcome) store.Verdict {
	t.Helper()
	v := t.claim(c)
	if v.Outcome != outcome {
		t.Fatalf("claim by %s was answered %v (%+v), want %v", c.Holder, v.Outcome, v, outcome)
	}
	return v
}

func (t *trial) granted(c store.Claim) store.Grant {
	t.Helper()
	return t.want(c, store.Granted).Grant
}

// grant is a grant of a long lease to an attempt.
func (t *trial) grant(key store.Key, holder store.Holder) store.Grant {
	t.Helper()
	return t.granted(t.ask(key, holder))
}

// regrant is a grant to an attempt that looked at what is there now.
func (t *trial) regrant(key store.Key, holder store.Holder) store.Grant {
	t.Helper()
	return t.granted(t.seeing(t.ask(key, holder)))
}

// seeing makes a claim one that has seen what is there now.
func (t *trial) seeing(c store.Claim) store.Claim {
	t.Helper()
	c.Seen = t.load(c.Key).Token
	return c
}

// waiting makes a claim one that wants to be woken.
func waiting(c store.Claim) store.Claim {
	c.Wait = true
	return c
}

// lapse grants a short lease and lets it run out.
func (t *trial) lapse(key store.Key, holder store.Holder) store.Grant {
	t.Helper()
	g := t.granted(t.askShort(key, holder))
	t.outlast()
	return g
}

func (t *trial) renew(g store.Grant, length time.Duration) error {
	t.Helper()
	errs := t.st.Renew(t.ctx, []store.Renewal{{Grant: g, Length: length}})
	return t.one("renew", errs)
}

// one takes the result of a call for one thing apart.
func (t *trial) one(op string, errs []error) error {
	t.Helper()
	switch len(errs) {
	case 0:
		return nil
	case 1:
		if errs[0] == nil {
			t.Errorf("%s: it all went well, but the result is not nil", op)
		}
		return errs[0]
	}
	t.Fatalf("%s of one: %d results", op, len(errs))
	return nil
}

func (t *trial) release(g store.Grant, f *store.Failure) {
	t.Helper()
	if err := t.st.Release(t.ctx, g, f); err != nil {
		t.Fatalf("release by %s: %v", g.Holder, err)
	}
}

// fail releases with a failure that binds for a long time.
func (t *trial) fail(g store.Grant) {
	t.Helper()
	t.release(g, &store.Failure{Reason: "origin of " + g.Holder.Process() + " failed", Cooldown: t.long})
}

// failed is a failed attempt of a process.
func (t *trial) failed(key store.Key, holder store.Holder) store.Grant {
	t.Helper()
	g := t.regrant(key, holder)
	t.fail(g)
	return g
}

func (t *trial) load(key store.Key) store.Entry {
	t.Helper()
	e, err := t.st.Load(t.ctx, key)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	return e
}

// value is content with a long life, fresh and stale.
func (t *trial) value(payload string) store.Content {
	return t.lasting(payload, t.long, t.long)
}

func (t *trial) lasting(payload string, ttl, grace time.Duration) store.Content {
	return store.Content{
		Kind: store.Value, Payload: []byte(payload),
		TTL: ttl, Grace: grace, HandOver: t.long, Cost: 3 * time.Millisecond,
	}
}

func (t *trial) fill(g store.Grant, c store.Content) {
	t.Helper()
	if err := t.st.Fill(t.ctx, g, c); err != nil {
		t.Fatalf("fill by %s: %v", g.Holder, err)
	}
}

// fenced expects a fill to be refused.
func (t *trial) fenced(g store.Grant, c store.Content) {
	t.Helper()
	if err := t.st.Fill(t.ctx, g, c); !errors.Is(err, store.ErrFenced) {
		t.Errorf("fill by %s: %v, want ErrFenced", g.Holder, err)
	}
}

// filled is an entry that was loaded and filled by an attempt.
func (t *trial) filled(key store.Key, holder store.Holder, payload string) store.Grant {
	t.Helper()
	g := t.regrant(key, holder)
	t.fill(g, t.value(payload))
	return g
}

func (t *trial) begin(key store.Key) store.Begun {
	t.Helper()
	b, err := t.st.Begin(t.ctx, key, t.long)
	if err != nil {
		t.Fatalf("begin: %v", err)
	}
	return b
}

func (t *trial) set(key store.Key, payload string) {
	t.Helper()
	if err := t.st.Set(t.ctx, store.Write{Key: key, Content: t.value(payload)}); err != nil {
		t.Fatalf("set: %v", err)
	}
}

func (t *trial) setBegun(key store.Key, payload string, b store.Begun) error {
	return t.st.Set(t.ctx, store.Write{Key: key, Content: t.value(payload), Begun: &b})
}

func (t *trial) invalidate(key store.Key) {
	t.Helper()
	if err := t.one("invalidate", t.st.Invalidate(t.ctx, []store.Key{key})); err != nil {
		t.Fatalf("invalidate: %v", err)
	}
}

func (t *trial) expire(key store.Key) {
	t.Helper()
	if err := t.one("expire", t.st.Expire(t.ctx, []store.Key{key})); err != nil {
		t.Fatalf("expire: %v", err)
	}
}

// holds expects a value under a key.
func (t *trial) holds(key store.Key, payload string) store.Entry {
	t.Helper()
	e := t.load(key)
	if e.Kind != store.Value || string(e.Payload) != payload {
		t.Fatalf("the entry is %s, want a value %q", show(e), payload)
	}
	return e
}

// empty expects that there is nothing under a key.
func (t *trial) empty(key store.Key) {
	t.Helper()
	if e := t.load(key); e.Kind != store.None || e.Token != 0 || e.Fault != nil {
		t.Fatalf("the entry is %s, want none", show(e))
	}
}

func (t *trial) recordGone(key store.Key, after string) {
	t.Helper()
	if left, there := t.RecordLeft(key); there {
		t.Fatalf("after %s there is a record with %v left, want none", after, left)
	}
}

// recordLeft expects a record with some life left at least.
func (t *trial) recordLeft(key store.Key, least time.Duration, after string) {
	t.Helper()
	if left, there := t.RecordLeft(key); !there || left < least-resolution {
		t.Errorf("after %s the record has %v left (there: %v), want at least %v", after, left, there, least)
	}
}

// moment is when something happened: within a call.
type moment struct{ before, after time.Time }

// during runs a call and tells when it was.
func during(call func()) moment {
	m := moment{before: time.Now()}
	call()
	m.after = time.Now()
	return m
}

// since expects that got is the time between two moments, as far as an
// onlooker can know.
func (t *trial) since(what string, got time.Duration, from, to moment) {
	t.Helper()
	least, most := to.before.Sub(from.after)-resolution, to.after.Sub(from.before)+resolution
	if got < least || got > most {
		t.Errorf("%s is %v, want %v to %v", what, got, least, most)
	}
}

// leftOf expects that got is what is left at one moment of what was given at
// another.
func (t *trial) leftOf(what string, got, given time.Duration, from, to moment) {
	t.Helper()
	t.since(fmt.Sprintf("%s (%v): what is gone of %v", what, got, given), given-got, from, to)
}

// show prints an entry without its whole payload.
func show(e store.Entry) string {
	payload := e.Payload
	e.Payload = nil
	return fmt.Sprintf("%v %.40q %+v", e.Kind, payload, e)
}
