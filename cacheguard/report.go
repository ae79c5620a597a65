package cacheguard

import (
	"errors"
	"runtime/debug"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// protect runs a piece of the user's code that is not a loader (a codec, a
// LifetimeFunc, a hook) on a goroutine of ours, where a panic would end the
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

// panicked reports a panic. The hook for it is the end of the line: should it
// panic itself, that is dropped.
func (g *Guard[V]) panicked(where string, p *PanicError) {
	if g.opts.Hooks.Panic == nil {
		return
	}
	defer func() { _ = recover() }()
	g.opts.Hooks.Panic(PanicInfo{Where: where, Value: p.Value, Stack: p.Stack})
}

// answered is the last thing that happens to an answer.
func (g *Guard[V]) answered(key string, e Entry[V], err error) (Entry[V], error) {
	if clone := g.opts.Clone; clone != nil && e.State != 0 && e.State != Absent {
		e.Value = clone(e.Value)
	}
	if h := g.opts.Hooks.Answer; h != nil {
		g.protect("Hooks.Answer", func() {
			h(AnswerInfo{Key: key, State: e.State, Coalesced: e.Coalesced, Err: err})
		})
	}
	return e, err
}

func (g *Guard[V]) fault(key string, err error) {
	h := g.opts.Hooks.Fault
	if h == nil {
		return
	}
	info := FaultInfo{Key: key, Class: store.ClassOf(err), Err: err}
	if f := asFault(err); f != nil {
		info.Op = f.Op
	}
	g.protect("Hooks.Fault", func() { h(info) })
}

func (g *Guard[V]) claimed(f *flight[V], c store.Claim, v store.Verdict) {
	if h := g.opts.Hooks.Claim; h != nil {
		g.protect("Hooks.Claim", func() {
			h(ClaimInfo{
				Key: f.key, Outcome: v.Outcome, Length: c.Length, Background: f.background,
				Takeover: v.Grant.Takeover, SecondOpinion: v.Grant.SecondOpinion,
			})
		})
	}
}

func (g *Guard[V]) loaded(f *flight[V], info LoadInfo) {
	if h := g.opts.Hooks.Load; h != nil {
		info.Key, info.Background, info.Early = f.key, f.background, f.early
		g.protect("Hooks.Load", func() { h(info) })
	}
}

func (g *Guard[V]) filled(f *flight[V], size int, err error) {
	if h := g.opts.Hooks.Fill; h != nil {
		g.protect("Hooks.Fill", func() { h(FillInfo{Key: f.key, Size: size, Err: err}) })
	}
}

// followed tells about a wait that ended, with err or, if that is nil, with an
// answer or a lease.
func (f *flight[V]) followed(w *wait, err error) {
	if h := f.g.opts.Hooks.Follow; h != nil && w.begun() {
		info := FollowInfo{Key: f.key, Waited: time.Since(w.since), Err: err}
		f.g.protect("Hooks.Follow", func() { h(info) })
	}
}

func (g *Guard[V]) renewed(grant store.Grant, length time.Duration, err error) {
	if err != nil && !errors.Is(err, store.ErrLost) {
		g.fault(grant.Key.ID, err)
	}
	if h := g.opts.Hooks.Renew; h != nil {
		g.protect("Hooks.Renew", func() { h(RenewInfo{Key: grant.Key.ID, Length: length, Err: err}) })
	}
}

func (g *Guard[V]) woken(late time.Duration) {
	if h := g.opts.Hooks.Woken; h != nil {
		g.protect("Hooks.Woken", func() { h(late) })
	}
}

func (g *Guard[V]) toldPending() {
	if h := g.opts.Hooks.Pending; h != nil {
		g.protect("Hooks.Pending", func() { h(int(g.pending.n.Load())) })
	}
}

func (g *Guard[V]) toldBreaker(open bool) {
	if h := g.opts.Hooks.Breaker; h != nil {
		g.protect("Hooks.Breaker", func() { h(open) })
	}
}
