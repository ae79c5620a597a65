package cacheguard

import (
	"context"
	"errors"
	"runtime/debug"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// reporter tells the user's hooks. Everything that a guard reports goes through
// its methods here and through those of guard and flight below: one call where
// it happens, and nothing but a comparison if nobody listens.
type reporter struct {
	panics

	answer  hook[AnswerInfo]
	claim   hook[ClaimInfo]
	load    hook[LoadInfo]
	fill    hook[FillInfo]
	follow  hook[FollowInfo]
	flight  hook[FlightInfo]
	renew   hook[RenewInfo]
	woken   hook[time.Duration]
	call    hook[CallInfo]
	breaker hook[bool]
	pending hook[int]
	fault   hook[FaultInfo]
	start   startHook
}

func newReporter(h Hooks) *reporter {
	return &reporter{
		panics:  panics{tell: h.Panic},
		answer:  hook[AnswerInfo]{name: "Hooks.Answer", fn: h.Answer},
		claim:   hook[ClaimInfo]{name: "Hooks.Claim", fn: h.Claim},
		load:    hook[LoadInfo]{name: "Hooks.Load", fn: h.Load},
		fill:    hook[FillInfo]{name: "Hooks.Fill", fn: h.Fill},
		follow:  hook[FollowInfo]{name: "Hooks.Follow", fn: h.Follow},
		flight:  hook[FlightInfo]{name: "Hooks.Flight", fn: h.Flight},
		renew:   hook[RenewInfo]{name: "Hooks.Renew", fn: h.Renew},
		woken:   hook[time.Duration]{name: "Hooks.Woken", fn: h.Woken},
		call:    hook[CallInfo]{name: "Hooks.Call", fn: h.Call},
		breaker: hook[bool]{name: "Hooks.Breaker", fn: h.Breaker},
		pending: hook[int]{name: "Hooks.Pending", fn: h.Pending},
		fault:   hook[FaultInfo]{name: "Hooks.Fault", fn: h.Fault},
		start:   startHook{fn: h.Start},
	}
}

// sent is when a call of the store is sent, if anybody wants to know.
func (r *reporter) sent() (began time.Time) {
	if r.call.on() {
		began = time.Now()
	}
	return began
}

// called tells about a call of the store that has come back.
func (r *reporter) called(op string, keys int, began time.Time, err error) {
	if !began.IsZero() {
		r.call.tell(&r.panics, CallInfo{Op: op, Keys: keys, Took: time.Since(began), Err: err})
	}
}

// begin tells that work begins for the caller of ctx. It returns the context
// for that work, and what is to be told of its end: nil if nobody listens. The
// zero info is told to nobody.
func (r *reporter) begin(ctx context.Context, info SpanInfo) (context.Context, func(SpanEnd)) {
	if info.Span == 0 {
		return ctx, nil
	}
	return r.start.begin(&r.panics, ctx, info)
}

// protect runs a piece of the user's code that is neither a loader nor a hook (a
// codec, a LifetimeFunc) on a goroutine of ours, where a panic would end the
// process. It returns the panic, which it has reported, or nil.
//
// runtime.Goexit there cannot be stopped; it is left to end the goroutine.
func (g *Guard[V]) protect(where string, fn func()) (panicked *PanicError) {
	defer func() {
		if r := recover(); r != nil {
			panicked = &PanicError{Value: r, Stack: debug.Stack()}
			g.panicked(where, panicked)
		}
	}()
	fn()
	return nil
}

func (g *Guard[V]) panicked(where string, p *PanicError) {
	g.tells.report(PanicInfo{Where: where, Value: p.Value, Stack: p.Stack})
}

// answered is the last thing that happens to an answer.
func (g *Guard[V]) answered(key string, h how, e Entry[V], err error) (Entry[V], error) {
	if clone := g.opts.Clone; clone != nil && e.State != 0 && e.State != Absent {
		e.Value = clone(e.Value)
	}
	if g.tells.answer.on() {
		g.tells.answer.tell(&g.tells.panics, AnswerInfo{
			Key: key, State: e.State, Via: h.via, Stale: staleReason(e.State, h.via, err),
			Coalesced: e.Coalesced, Waited: h.waited, Left: h.left, Err: err,
		})
	}
	return e, err
}

// staleReason tells why a stale answer was given.
func staleReason(s State, via Via, err error) StaleReason {
	switch {
	case s != Stale:
		return 0
	case err != nil:
		return StaleError
	case via == ViaNear:
		return StaleOutage // the near cache gives nothing stale otherwise
	}
	return StaleGrace
}

func (g *Guard[V]) fault(key string, err error) {
	if !g.tells.fault.on() {
		return
	}
	info := FaultInfo{Key: key, Class: store.ClassOf(err), Refused: errors.Is(err, errBreakerOpen), Err: err}
	if f := asFault(err); f != nil {
		info.Op = f.Op
	}
	g.tells.fault.tell(&g.tells.panics, info)
}

func (g *Guard[V]) claimed(f *flight[V], c store.Claim, v store.Verdict) {
	g.tells.claim.tell(&g.tells.panics, ClaimInfo{
		Key: f.key, Outcome: v.Outcome, Length: c.Length, Background: f.background,
		Takeover: v.Grant.Takeover, SecondOpinion: v.Grant.SecondOpinion,
	})
}

func (g *Guard[V]) loaded(f *flight[V], info LoadInfo) {
	info.Key, info.Background, info.Early = f.key, f.background, f.early
	g.tells.load.tell(&g.tells.panics, info)
}

func (g *Guard[V]) filled(f *flight[V], size int, err error) {
	if g.tells.fill.on() {
		g.tells.fill.tell(&g.tells.panics, FillInfo{Key: f.key, Size: size, Err: err, Overtaken: f.isOvertaken()})
	}
}

func (f *flight[V]) isOvertaken() bool {
	f.sh.mu.Lock()
	defer f.sh.mu.Unlock()
	return f.overtaken
}

// followed tells about a wait that ended, with err or, if that is nil, with an
// answer, or, if granted, a lease.
func (f *flight[V]) followed(w *wait, granted bool, err error) {
	if w.begun() {
		f.g.tells.follow.tell(&f.g.tells.panics, FollowInfo{Key: f.key, Waited: time.Since(w.since), Granted: granted, Err: err})
	}
}

// ended tells what has become of a flight.
func (f *flight[V]) ended(out outcome[V]) {
	if f.g.tells.flight.on() {
		f.g.tells.flight.tell(&f.g.tells.panics, FlightInfo{Key: f.key, End: f.end(out), Background: f.background, Err: out.err})
	}
}

func (f *flight[V]) end(out outcome[V]) FlightEnd {
	var p *PassError
	switch {
	case out.led && f.alone:
		return FlightAlone
	case out.led:
		return FlightLed
	case errors.Is(out.err, ErrCooldown):
		return FlightCooling
	case out.err != nil && !errors.As(out.err, &p):
		return FlightFailed
	case f.background:
		return FlightYielded
	}
	return FlightFollowed
}

func (g *Guard[V]) renewed(grant store.Grant, length time.Duration, err error) {
	key := grant.Key.ID
	if err != nil && !errors.Is(err, store.ErrLost) {
		g.fault(key, err)
	}
	if !g.tells.renew.on() {
		return
	}
	info := RenewInfo{Key: key, Length: length, Err: err}
	if errors.Is(err, store.ErrLost) {
		f := g.shards.of(key).flight(key)
		info.Overtaken = f != nil && f.isOvertaken()
	}
	g.tells.renew.tell(&g.tells.panics, info)
}

// spanFill begins the span of a fill.
func (f *flight[V]) spanFill(grant store.Grant) func(SpanEnd) {
	if f.batch != nil {
		return func(SpanEnd) {} // it is sent along with others
	}
	_, spanned := f.g.tells.begin(f.ctx, SpanInfo{Span: SpanFill, Key: f.key, Token: grant.Token, Background: f.background})
	if spanned == nil {
		return func(SpanEnd) {}
	}
	return spanned
}

// lapsed tells about a lease that has run out under its load.
func (g *Guard[V]) lapsed(grant store.Grant) {
	g.tells.renew.tell(&g.tells.panics, RenewInfo{Key: grant.Key.ID, Length: grant.Length, Err: errLapsed, Lapsed: true})
}

var errLapsed = errors.New("cacheguard: a lease ran out while its load went on")

func (g *Guard[V]) woken(late time.Duration) { g.tells.woken.tell(&g.tells.panics, late) }

func (g *Guard[V]) toldPending() {
	g.tells.pending.tell(&g.tells.panics, int(g.pending.n.Load()))
}
