package storetest

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// SeedVariable names the environment variable that replays a failed random
// check: the seed is printed with the failure.
const SeedVariable = "STORETEST_SEED"

// Histories is a check that runs random histories of calls, each on a key of its
// own, and compares every answer with a small model of the contract. A failure
// prints the seed and the shortest history that was found to fail.
func Histories(seed uint64, n int) Check {
	return Check{"random/every history goes as the model says", func(t *trial) {
		if text := os.Getenv(SeedVariable); text != "" {
			var err error
			if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
				t.Fatalf("%s: %v", SeedVariable, err)
			}
		}
		late := 0
		for from := 0; from < n; from += batch {
			var all []history
			for i := range min(batch, n-from) {
				all = append(all, newHistory(seed+uint64(from+i)))
			}
			late += t.play(all)
		}
		switch {
		case late == n:
			t.Skipf("NOT CHECKED: %v", errLate)
		case late > 0:
			t.Logf("NOT CHECKED TO THE END: %d of %d histories, %v", late, n, errLate)
		}
	}}
}

var randomChecks = []Check{Histories(rand.Uint64()>>1, 2*batch)}

// batch is how many histories are played at once.
const batch = 16

// play plays histories. Those that real time ran away from are played again,
// slower; it returns how many were never played to the end.
func (t *trial) play(all []history) (late int) {
	t.Helper()
	for slower := time.Duration(1); slower <= 8 && len(all) > 0; slower *= 2 {
		failed, late, err := t.first(all, slower*t.unit)
		if err != nil {
			shortest, err := t.shorten(failed, err, slower*t.unit)
			t.Fatalf("%s=%d, shortened to:\n%s\n%v", SeedVariable, failed.seed, shortest, err)
		}
		all = late
	}
	return len(all)
}

// history is a list of steps that follows from its seed.
type history struct {
	seed  uint64
	steps []step
}

func (h history) String() string {
	var b strings.Builder
	for i, s := range h.steps {
		fmt.Fprintf(&b, "%3d %s\n", i, s)
	}
	return b.String()
}

// step is one call, or a wait for some ticks.
type step struct {
	verb   string
	holder store.Holder
	ref    int // which of the grants or begun tokens before it: the last, the last but one, ...
	seen   int // of a claim: 0 nothing, 1 what is there, 2 something else
	kind   store.Kind

	// Lengths in thirds of a tick, see thirds.
	length, keep, ttl, grace, handOver, cooldown int

	wait, fails, alone, free bool
	ticks                    int
}

func (s step) String() string {
	switch s.verb {
	case "wait":
		return fmt.Sprintf("wait %d", s.ticks)
	case "claim":
		return fmt.Sprintf("claim %s seen:%d length:%d keep:%d wait:%v", s.holder, s.seen, s.length, s.keep, s.wait)
	case "renew":
		return fmt.Sprintf("renew -%d length:%d", s.ref, s.length)
	case "release":
		return fmt.Sprintf("release -%d alone:%v fails:%v cooldown:%d free:%v", s.ref, s.alone, s.fails, s.cooldown, s.free)
	case "fill":
		return fmt.Sprintf("fill -%d %v ttl:%d grace:%d hand-over:%d", s.ref, s.kind, s.ttl, s.grace, s.handOver)
	case "set", "set begun":
		return fmt.Sprintf("%s -%d %v ttl:%d grace:%d", s.verb, s.ref, s.kind, s.ttl, s.grace)
	}
	return s.verb
}

// Calls are made shortly after full ticks, and every length is a third of a
// tick over a full number of them. A sum of two lengths is then two thirds over:
// nothing ever ends close to a call, so what must come out is certain although
// real time is not exact.
const thirds = 3

func newHistory(seed uint64) history {
	rnd := rand.New(rand.NewPCG(seed, 0))
	length := func(most int) int { return thirds*rnd.IntN(most) + 1 }
	maybe := func(n int) int { return n * min(1, rnd.IntN(4)) } // zero now and then
	verbs := []string{
		"claim", "claim", "claim", "claim", "claim", "claim", "fill", "fill", "fill", "fill", "release", "release",
		"renew", "set", "invalidate", "expire", "begin", "set begun", "load", "lose record", "lose entry",
		"wait", "wait", "wait", "wait", "wait",
	}
	h := history{seed: seed}
	cooldown := length(3) // one for all: the contract does not say how different ones mix
	for range 60 {
		s := step{
			verb:   verbs[rnd.IntN(len(verbs))],
			holder: store.Holder(fmt.Sprintf("%c/%d", 'A'+rnd.IntN(3), rnd.IntN(8))),
			ref:    min(rnd.IntN(4), rnd.IntN(4)),
			seen:   []int{1, 1, 1, 1, 1, 0, 2}[rnd.IntN(7)],
			kind:   []store.Kind{store.Value, store.Value, store.Value, store.Absent, store.Pass}[rnd.IntN(5)],
			length: length(3),
			ttl:    maybe(length(5)), grace: maybe(length(5)), handOver: length(3), cooldown: cooldown, free: rnd.IntN(4) == 0,
			wait: rnd.IntN(2) == 0, fails: rnd.IntN(2) == 0, alone: rnd.IntN(4) == 0,
			ticks: 1 + rnd.IntN(3),
		}
		s.keep = s.length + thirds*rnd.IntN(6)
		h.steps = append(h.steps, s)
	}
	return h
}

// errLate says that real time ran away, so that nothing is certain any more.
var errLate = errors.New("the machine was too slow to tell")

// first plays histories at once. It returns the first that failed, or else
// those that could not be played to the end in time.
func (t *trial) first(all []history, tick time.Duration) (failed history, late []history, err error) {
	t.Helper()
	ear := t.listen(t.st, t.Space())
	defer ear.stop()
	runs := make([]*run, len(all))
	errs := make([]error, len(all))
	var done sync.WaitGroup
	for i, h := range all {
		r := &run{trial: t, key: t.key(fmt.Sprintf("%d of seed %d, %d", i, h.seed, rand.Uint32())), unit: tick, real: map[int]store.Token{0: 0}}
		r.start = time.Now().Add(tick * time.Duration(i) / time.Duration(len(all))) // not all call at the same time
		runs[i] = r
		done.Go(func() { errs[i] = r.play(h.steps) })
	}
	done.Wait()
	heard := ear.all(runs)
	for i, r := range runs {
		if errors.Is(errs[i], errLate) {
			late = append(late, all[i])
		} else if err := cmp.Or(errs[i], r.told(heard[r.key.ID])); err != nil {
			return all[i], nil, err
		}
	}
	return history{}, late, nil
}

// all returns the events of each run's key. It ends each key with two writes,
// by which it knows that it has heard everything before them.
func (e *ear) all(runs []*run) map[string][]store.Event {
	e.t.Helper()
	for _, r := range runs {
		e.t.set(r.key, "last")
		e.t.invalidate(r.key)
	}
	heard := make(map[string][]store.Event)
	for ended := 0; ended < len(runs); {
		event := e.next()
		i := slices.IndexFunc(runs, func(r *run) bool { return r.key.ID == event.ID })
		if i < 0 && slices.Contains(e.old, event.ID) {
			continue // of other histories, played before
		}
		if i < 0 {
			e.t.Fatalf("heard %+v, which is of none of the keys", event)
		}
		events := append(heard[event.ID], event)
		heard[event.ID] = events
		n := len(events)
		if n > 1 && events[n-1].Kind == store.Invalidated && events[n-2].Kind == store.Written {
			if runs[i].lastIs(events[n-2].Token) {
				heard[event.ID] = events[:n-2]
				ended++
			}
		}
	}
	return heard
}

// shorten leaves out steps, first many in a row and then single ones, as long as
// the rest still fails.
func (t *trial) shorten(h history, err error, tick time.Duration) (history, error) {
	t.Helper()
	for size := len(h.steps) / 2; size > 0; {
		var shorter []history
		for i := 0; i+size <= len(h.steps); i += size {
			shorter = append(shorter, history{h.seed, slices.Delete(slices.Clone(h.steps), i, i+size)})
		}
		if next, _, nextErr := t.first(shorter, tick); nextErr != nil {
			h, err = next, nextErr
		} else {
			size /= 2
		}
	}
	return h, err
}

// run plays one history on the store and on the model.
type run struct {
	*trial
	key   store.Key
	start time.Time
	unit  time.Duration // of its ticks
	ticks int
	model model

	grants  []granted
	begun   []granted
	real    map[int]store.Token // of the model's tokens, those that are known
	payload int
}

// granted is a grant of the store, and the model's. It is also used for what
// was begun.
type granted struct {
	store.Grant
	model modelGrant
	keep  int
}

// play returns an error that says in what a step went otherwise than the model.
func (r *run) play(steps []step) error {
	for i, s := range append([]step{{verb: "wait"}}, steps...) {
		if s.verb == "wait" {
			r.ticks += s.ticks
			r.Wait(max(0, time.Until(r.tick())))
		}
		if err := cmp.Or(r.call(s), r.look()); err != nil {
			if r.late() {
				err = errLate
			}
			return fmt.Errorf("step %d, %s: %w", i-1, s, err)
		}
		if r.late() {
			return errLate
		}
	}
	return nil
}

// late tells whether the last step may have come too close to an end.
func (r *run) late() bool {
	return time.Since(r.tick()) > r.unit/4
}

// tick is the time of the tick that the run is at.
func (r *run) tick() time.Time { return r.start.Add(time.Duration(r.ticks) * r.unit) }

func (r *run) now() int { return r.ticks * thirds }

// length is a number of thirds of a tick, in whole milliseconds: a store may
// count in those.
func (r *run) length(n int) time.Duration {
	return (time.Duration(n) * r.unit / thirds).Round(time.Millisecond)
}

// call makes the call of a step on the store and on the model.
func (r *run) call(s step) error {
	now := r.now()
	switch s.verb {
	case "claim":
		return r.claim(s)
	case "begin":
		b, err := r.st.Begin(r.ctx, r.key, r.length(s.keep))
		m := r.model.begin(now, s.keep)
		r.begun = append(r.begun, granted{store.Grant{Token: b.Token, Birth: b.Birth}, m, 0})
		return cmp.Or(err, r.same(m.token, b.Token))
	case "set":
		return r.set(s, nil, nil)
	case "invalidate":
		r.model.invalidate(now)
		return errors.Join(r.st.Invalidate(r.ctx, []store.Key{r.key})...)
	case "expire":
		r.model.expire(now)
		return errors.Join(r.st.Expire(r.ctx, []store.Key{r.key})...)
	case "lose record":
		r.LoseRecord(r.key)
		r.model.record = nil
	case "lose entry":
		r.LoseEntry(r.key)
		r.model.entry = nil
	case "set begun":
		if g, ok := nth(r.begun, s.ref); ok {
			return r.set(s, &store.Begun{Token: g.Token, Birth: g.Birth}, &g.model)
		}
	case "renew", "release", "fill":
		if g, ok := nth(r.grants, s.ref); ok {
			return r.held(s, g)
		}
	}
	return nil
}

func nth(all []granted, back int) (granted, bool) {
	if back >= len(all) {
		return granted{}, false
	}
	return all[len(all)-1-back], true
}

func (r *run) claim(s step) error {
	c := store.Claim{Key: r.key, Holder: s.holder, Length: r.length(s.length), Keep: r.length(s.keep), Wait: s.wait}
	seen := 0
	switch e := r.model.entry; {
	case s.seen == 1 && e != nil:
		seen, c.Seen = e.token, r.real[e.token]
	case s.seen == 2:
		seen, c.Seen = -1, 1
	}
	want := r.model.claim(r.now(), seen, s.holder, s.length, s.keep, s.wait)
	got, err := r.st.Claim(r.ctx, c)
	if err != nil {
		return err
	}
	if got.Outcome != want.Outcome {
		return fmt.Errorf("answered %v (%+v), want %v (%+v)", got.Outcome, got, want.Outcome, want)
	}
	switch got.Outcome {
	case store.Granted:
		r.grants = append(r.grants, granted{got.Grant, want.modelGrant, s.keep})
		return cmp.Or(r.same(want.token, got.Grant.Token), agree("takeover", got.Grant.Takeover, want.takeover),
			agree("second opinion", got.Grant.SecondOpinion, want.secondHand), agree("same", got.Same, want.same), r.sameBirth())
	case store.Held, store.Cooling:
		if got.Holder != want.holder || got.Token != r.real[want.token] {
			return fmt.Errorf("answered %+v, want %+v", got, want)
		}
		return cmp.Or(r.near("left", got.Left, want.left), agree("same", got.Same, want.same))
	}
	return nil
}

func (r *run) held(s step, g granted) error {
	now := r.now()
	switch s.verb {
	case "renew":
		length := min(s.length, g.keep)
		ok := r.model.renew(now, g.model, length)
		return refused(r.renewOnce(g.Grant, r.length(length)), store.ErrLost, ok)
	case "fill":
		c, m := r.content(s)
		c.HandOver = r.length(s.handOver)
		ok := r.model.fill(now, g.model, m, s.handOver)
		return refused(r.st.Fill(r.ctx, g.Grant, c), store.ErrFenced, ok)
	}
	fails, cooldown := s.fails, s.cooldown
	if m := r.model.record; m != nil {
		if slices.Contains(m.everFailed, g.Holder) && !slices.Contains(m.failed, g.Holder) {
			fails = false // a failure is remembered by the last two: whether older ones are is open
		}
		if s.free && m.cooldown <= now { // while one runs, it is open what a failure without one does
			cooldown = 0
		}
	}
	var f *store.Failure
	if fails {
		f = &store.Failure{Reason: "no", Cooldown: r.length(cooldown)}
	}
	grant, birth := g.Grant, g.model.birth
	if s.alone {
		grant, birth = store.Grant{Key: r.key, Holder: g.Holder}, 0
	}
	r.model.release(now, birth, g.Holder, fails, cooldown)
	return r.st.Release(r.ctx, grant, f)
}

func (r *run) renewOnce(g store.Grant, length time.Duration) error {
	errs := r.st.Renew(r.ctx, []store.Renewal{{Grant: g, Length: length}})
	return errors.Join(errs...)
}

func (r *run) set(s step, begun *store.Begun, m *modelGrant) error {
	c, entry := r.content(s)
	ok := r.model.set(r.now(), m, entry)
	return refused(r.st.Set(r.ctx, store.Write{Key: r.key, Content: c, Begun: begun}), store.ErrFenced, ok)
}

// content makes a content that no other write has.
func (r *run) content(s step) (store.Content, modelEntry) {
	c := store.Content{Kind: s.kind, TTL: r.length(s.ttl), Grace: r.length(s.grace)}
	if c.Kind == store.Value {
		r.payload++
		c.Payload = []byte(strconv.Itoa(r.payload))
	}
	return c, modelEntry{Content: c, ttl: s.ttl, grace: s.grace}
}

// look compares what is there with the model, and tells the model what time took
// away.
func (r *run) look() error {
	now := r.now()
	left, there := r.RecordLeft(r.key)
	m := r.model.record
	if m != nil && there && m.mustEnd > now && left < r.length(m.mustEnd-now)-r.unit/2 {
		return fmt.Errorf("the record has %v left, want %v", left, r.length(m.mustEnd-now))
	}
	if m != nil && there && left > r.length(m.mayEnd-now)+r.unit/2 {
		return fmt.Errorf("the record has %v left, want at most %v", left, r.length(m.mayEnd-now))
	}
	r.model.pass(now, there)
	if want := r.model.record != nil; want != there {
		return fmt.Errorf("there is a record: %v, want %v", there, want)
	}
	e, err := r.st.Load(r.ctx, r.key)
	if err != nil {
		return err
	}
	return r.sameEntry(e, r.model.entry)
}

func (r *run) sameEntry(got store.Entry, want *modelEntry) error {
	now := r.now()
	if want == nil {
		if got.Kind != store.None || got.Token != 0 || got.Fault != nil {
			return fmt.Errorf("loaded %s, want none", show(got))
		}
		return nil
	}
	if got.Kind != want.Kind || string(got.Payload) != string(want.Payload) || got.TTL != want.TTL ||
		(got.HandOver != want.handOver && want.Kind != store.Pass) || (got.Fresh > 0) != (want.fresh > now) {
		return fmt.Errorf("loaded %s, want %+v", show(got), *want)
	}
	return cmp.Or(r.same(want.token, got.Token), r.near("left", got.Left, want.end-now), r.near("age", got.Age, now-want.born))
}

// same learns which token the store took for one of the model. They must be in
// the same order.
func (r *run) same(model int, real store.Token) error {
	if known, ok := r.real[model]; ok && known != real {
		return fmt.Errorf("token %d, want %d", real, known)
	}
	for m, other := range r.real {
		if cmp.Compare(m, model) != cmp.Compare(other, real) {
			return fmt.Errorf("token %d, which is out of order with %d", real, other)
		}
	}
	r.real[model] = real
	return nil
}

// sameBirth compares the births of all grants: equal where the model's are.
func (r *run) sameBirth() error {
	last := r.grants[len(r.grants)-1]
	for _, g := range slices.Concat(r.grants, r.begun) {
		if (g.Birth == last.Birth) != (g.model.birth == last.model.birth) {
			return fmt.Errorf("birth mark %q, but another grant of another record has %q", last.Birth, g.Birth)
		}
	}
	return nil
}

// lastIs tells whether a token is above all that the run knows of: that of the
// write that ends its key.
func (r *run) lastIs(token store.Token) bool {
	for _, known := range r.real {
		if known >= token {
			return false
		}
	}
	return true
}

// told compares the events of the run's key with the model's.
func (r *run) told(heard []store.Event) error {
	if !r.explains(r.model.events, heard) {
		return fmt.Errorf("heard %+v, want %+v", heard, r.model.events)
	}
	for _, e := range heard {
		if err := r.carried(e); err != nil {
			return fmt.Errorf("event %v: %w", e.Kind, err)
		}
	}
	// The tokens of writes are first seen here.
	written := slices.DeleteFunc(heard, func(e store.Event) bool { return e.Kind == store.Filled || e.Kind == store.Released })
	for _, want := range r.model.events {
		if want.kind == store.Filled || want.kind == store.Released {
			continue
		}
		if err := r.same(want.token, written[0].Token); err != nil {
			return fmt.Errorf("event %v: %w", want.kind, err)
		}
		written = written[1:]
	}
	return nil
}

// carried judges what an event brought along: what the fill of its token has
// left.
func (r *run) carried(e store.Event) error {
	if e.Entry == nil {
		return nil
	}
	for model, token := range r.real {
		want, ok := r.model.fills[model]
		if !ok || token != e.Token {
			continue
		}
		if e.Entry.Kind != want.Kind || string(e.Entry.Payload) != string(want.Payload) || e.Entry.Token != token ||
			want.handOver || want.Kind == store.Pass || e.Entry.TTL != want.TTL {
			return fmt.Errorf("brought %s, want %+v", show(*e.Entry), want)
		}
		return nil
	}
	return fmt.Errorf("brought %s, which no fill has left", show(*e.Entry))
}

// explains tells whether events of the model, with or without the optional
// ones, are what was heard.
func (r *run) explains(model []modelEvent, heard []store.Event) bool {
	if len(model) == 0 {
		return len(heard) == 0
	}
	want := model[0]
	if len(heard) > 0 && heard[0].Kind == want.kind {
		known, ok := r.real[want.token]
		if (!ok || known == heard[0].Token) && r.explains(model[1:], heard[1:]) {
			return true
		}
	}
	return want.optional && r.explains(model[1:], heard)
}

// near compares a duration with one in thirds of a tick.
func (r *run) near(what string, got time.Duration, want int) error {
	if d := got - r.length(want); d.Abs() > r.unit/4+resolution {
		return fmt.Errorf("%s is %v, want %v", what, got, r.length(want))
	}
	return nil
}

func agree(what string, got bool, want answer) error {
	if want != open && got != (want == yes) {
		return fmt.Errorf("%s: %v", what, got)
	}
	return nil
}

// refused compares the error of a call with whether the model accepted it.
func refused(got, sentinel error, accepted bool) error {
	if accepted == (got == nil) && (got == nil || errors.Is(got, sentinel)) {
		return nil
	}
	if accepted {
		return fmt.Errorf("refused: %w", got)
	}
	return fmt.Errorf("error %v, want %v", got, sentinel)
}
