package cacheguard

import (
	"context"
	"time"
)

// JoinHooks returns hooks that tell all of the given ones, in their order. A
// hook that panics is reported to every Panic, and switched off alone.
func JoinHooks(all ...Hooks) Hooks {
	var out Hooks
	out.Panic = joinedPanic(each(all, func(h Hooks) func(PanicInfo) { return h.Panic }))
	r := &panics{tell: out.Panic}

	out.Opened = joinedOpened(r, all)
	out.Answer = joined(r, "Hooks.Answer", each(all, func(h Hooks) func(AnswerInfo) { return h.Answer }))
	out.Claim = joined(r, "Hooks.Claim", each(all, func(h Hooks) func(ClaimInfo) { return h.Claim }))
	out.Load = joined(r, "Hooks.Load", each(all, func(h Hooks) func(LoadInfo) { return h.Load }))
	out.Fill = joined(r, "Hooks.Fill", each(all, func(h Hooks) func(FillInfo) { return h.Fill }))
	out.Follow = joined(r, "Hooks.Follow", each(all, func(h Hooks) func(FollowInfo) { return h.Follow }))
	out.Flight = joined(r, "Hooks.Flight", each(all, func(h Hooks) func(FlightInfo) { return h.Flight }))
	out.Renew = joined(r, "Hooks.Renew", each(all, func(h Hooks) func(RenewInfo) { return h.Renew }))
	out.Woken = joined(r, "Hooks.Woken", each(all, func(h Hooks) func(time.Duration) { return h.Woken }))
	out.Call = joined(r, "Hooks.Call", each(all, func(h Hooks) func(CallInfo) { return h.Call }))
	out.Breaker = joined(r, "Hooks.Breaker", each(all, func(h Hooks) func(bool) { return h.Breaker }))
	out.Pending = joined(r, "Hooks.Pending", each(all, func(h Hooks) func(int) { return h.Pending }))
	out.Fault = joined(r, "Hooks.Fault", each(all, func(h Hooks) func(FaultInfo) { return h.Fault }))
	out.Start = joinedStart(r, all)
	return out
}

// each returns one hook of each, leaving out those that are not set.
func each[I any](all []Hooks, of func(Hooks) func(I)) (fns []func(I)) {
	for _, h := range all {
		if fn := of(h); fn != nil {
			fns = append(fns, fn)
		}
	}
	return fns
}

func joined[I any](r *panics, name string, fns []func(I)) func(I) {
	switch len(fns) {
	case 0:
		return nil
	case 1:
		return fns[0]
	}
	hooks := make([]hook[I], len(fns))
	for i, fn := range fns {
		hooks[i].name, hooks[i].fn = name, fn
	}
	return func(info I) {
		for i := range hooks {
			hooks[i].tell(r, info)
		}
	}
}

// joinedPanic is the end of the line: what panics in it is dropped.
func joinedPanic(fns []func(PanicInfo)) func(PanicInfo) {
	if len(fns) == 0 {
		return nil
	}
	return func(info PanicInfo) {
		for _, fn := range fns {
			func() {
				defer func() { _ = recover() }()
				fn(info)
			}()
		}
	}
}

func joinedOpened(r *panics, all []Hooks) func(GuardInfo) func() {
	var some bool
	for _, h := range all {
		some = some || h.Opened != nil
	}
	if !some {
		return nil
	}
	return func(info GuardInfo) func() {
		var closed []func()
		for _, h := range all {
			closed = append(closed, r.opened(h.Opened, info))
		}
		return func() {
			for _, fn := range closed {
				fn()
			}
		}
	}
}

func joinedStart(r *panics, all []Hooks) func(context.Context, SpanInfo) (context.Context, func(SpanEnd)) {
	var starts []*startHook
	for _, h := range all {
		if h.Start != nil {
			starts = append(starts, &startHook{fn: h.Start})
		}
	}
	if len(starts) == 0 {
		return nil
	}
	return func(ctx context.Context, info SpanInfo) (context.Context, func(SpanEnd)) {
		ends := make([]func(SpanEnd), len(starts))
		for i, s := range starts {
			ctx, ends[i] = s.begin(r, ctx, info)
		}
		return ctx, func(end SpanEnd) {
			for i := len(ends) - 1; i >= 0; i-- {
				if ends[i] != nil {
					ends[i](end)
				}
			}
		}
	}
}
