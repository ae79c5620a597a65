// Package slogguard writes to a log/slog logger what an operator must know of
// guards: an outage of the store and its end, leases that lapse, loads that
// fail, settings that are seldom meant.
//
//	logs := slogguard.New(slog.Default(), slogguard.Options{})
//	guard, err := cacheguard.New(store, cacheguard.Options[Product]{
//		Hooks: logs.Hooks("products"),
//	})
//
// Each kind of line comes at once the first time, and then at most once in
// Options.Every, with the number of those left out. No line above debug has a
// key, a value, or the text of an error, which may quote one; at debug every
// event has a line, with key and error. A caller who left is no event.
//
// To have metrics or traces besides, see [cacheguard.JoinHooks].
package slogguard

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Options of a [Logger]. The zero value works.
type Options struct {
	// Every is how much time lies at least between two lines of one kind about
	// one guard. 0 or less: one minute.
	Every time.Duration
}

// Logger makes hooks that log. It is safe for concurrent use.
type Logger struct {
	log   *slog.Logger
	every time.Duration
}

// New returns a Logger that writes to log. nil: slog.Default(), as it is then.
func New(log *slog.Logger, opts Options) *Logger {
	if log == nil {
		log = slog.Default()
	}
	if opts.Every <= 0 {
		opts.Every = time.Minute
	}
	return &Logger{log: log, every: opts.Every}
}

// Advise writes one line for each piece of advice, such as those of redisstore's
// Store.Advice. That of a guard's settings is written by its hooks.
func (l *Logger) Advise(advice ...string) { advise(l.log, advice) }

func advise(log *slog.Logger, advice []string) {
	for _, a := range advice {
		log.Warn("cacheguard: a setting is seldom meant", "advice", a)
	}
}

// Hooks returns the hooks of the guard of that name, for
// [cacheguard.Options].Hooks.
func (l *Logger) Hooks(guard string) cacheguard.Hooks {
	g := &guardLog{log: l.log.With("guard", guard), every: l.every, faults: make(map[store.Class]*kind)}
	for _, class := range loudClasses {
		g.faults[class] = new(kind)
	}
	return cacheguard.Hooks{
		Opened:  g.opened,
		Answer:  g.answer,
		Claim:   g.claim,
		Load:    g.load,
		Fill:    g.fill,
		Renew:   g.renew,
		Breaker: g.breaker,
		Pending: g.pending,
		Fault:   g.fault,
		Panic:   g.panic,
	}
}

// loudClasses are the faults that an operator must know of. A call that was
// cancelled is nobody's fault.
var loudClasses = []store.Class{
	store.ClassTimeout, store.ClassConnection, store.ClassPool, store.ClassReadOnly, store.ClassFull, store.ClassLoading,
	store.ClassCluster, store.ClassDenied, store.ClassData, store.ClassOther,
}

// guardLog is what one guard's lines have in common.
type guardLog struct {
	log      *slog.Logger
	every    time.Duration
	settings atomic.Pointer[cacheguard.Settings]

	faults map[store.Class]*kind // does not change
	lines  struct {
		gaveUp, cut, failed, panicked, took, outlived, takeover, fenced, lost, unrenewed, lapsed, duplicate kind
	}
	waiting atomic.Bool // writes are pending, and that was said
}

// kind is a kind of line, and when it was last written.
type kind struct {
	last    atomic.Int64 // Unix nanoseconds; 0: never
	skipped atomic.Int64
}

// due tells whether a line may be written now, and how many were not since the
// last.
func (k *kind) due(every time.Duration) (skipped int64, ok bool) {
	now, last := time.Now().UnixNano(), k.last.Load()
	if last != 0 && now-last < int64(every) || !k.last.CompareAndSwap(last, now) {
		k.skipped.Add(1)
		return 0, false
	}
	return k.skipped.Swap(0), true
}

// say writes a line of a kind, if one is due, and at debug the whole event.
func (g *guardLog) say(k *kind, level slog.Level, message, key string, err error, args ...any) {
	if g.log.Enabled(context.Background(), slog.LevelDebug) {
		all := append([]any{"key", key}, args...)
		if err != nil {
			all = append(all, "error", err)
		}
		g.log.Debug(message, all...)
		if level == slog.LevelDebug {
			return
		}
	}
	if skipped, ok := k.due(g.every); ok {
		if skipped > 0 {
			args = append(args, "more", skipped)
		}
		g.log.Log(context.Background(), level, message, args...)
	}
}

func (g *guardLog) opened(info cacheguard.GuardInfo) func() {
	g.settings.Store(&info.Settings)
	advise(g.log, info.Settings.Advice())
	return nil
}

func (g *guardLog) answer(a cacheguard.AnswerInfo) {
	if errors.Is(a.Err, cacheguard.ErrWaitLimit) {
		g.say(&g.lines.gaveUp, slog.LevelWarn, "cacheguard: a caller gave up waiting (WaitLimit)", a.Key, a.Err, "waited", a.Waited)
	}
}

func (g *guardLog) claim(c cacheguard.ClaimInfo) {
	if c.Takeover {
		g.say(&g.lines.takeover, slog.LevelWarn, "cacheguard: took over a lease that had run out while its holder loaded", c.Key, nil, "length", c.Length)
	}
}

func (g *guardLog) load(l cacheguard.LoadInfo) {
	var panicked *cacheguard.PanicError
	switch err := l.Err; {
	case err == nil, errors.Is(err, cacheguard.ErrNotFound):
		g.fits(l)
	case cacheguard.NotShared(err), errors.Is(err, cacheguard.ErrClosed), errors.As(err, &panicked):
		// Nothing is wrong, or the panic has its own line.
	case errors.Is(err, store.ErrLost):
		g.say(&g.lines.duplicate, slog.LevelWarn, "cacheguard: a load was one too many: another process had taken its lease", l.Key, nil, "length", l.Length)
	case errors.Is(err, cacheguard.ErrLoadLimit):
		g.say(&g.lines.cut, slog.LevelError, "cacheguard: a load was cut at LoadLimit", l.Key, err, "took", l.Took)
	default:
		g.say(&g.lines.failed, slog.LevelError, "cacheguard: a load failed", l.Key, err, "took", l.Took)
	}
}

// fits compares the time that a load took with the settings: what only shows
// once there are loads.
func (g *guardLog) fits(l cacheguard.LoadInfo) {
	s := g.settings.Load()
	if s == nil {
		return
	}
	if ttl := s.Lifetime.TTL; !s.Chosen && ttl > 0 && l.Took > ttl {
		g.say(&g.lines.outlived, slog.LevelWarn, "cacheguard: a load took longer than its value is fresh; raise Lifetime.TTL", l.Key, nil, "took", l.Took, "ttl", ttl)
	}
	if l.Length > 0 && l.Took > s.Lease.Max {
		g.say(&g.lines.took, slog.LevelWarn, "cacheguard: a load took longer than the longest lease; raise Lease.Max", l.Key, nil, "took", l.Took, "max", s.Lease.Max)
	}
}

func (g *guardLog) fill(f cacheguard.FillInfo) {
	if errors.Is(f.Err, store.ErrFenced) && !f.Overtaken {
		g.say(&g.lines.fenced, slog.LevelWarn, "cacheguard: the fence refused a fill and no write was heard of: two holders, or a lease record was lost", f.Key, nil)
	}
}

func (g *guardLog) renew(r cacheguard.RenewInfo) {
	switch {
	case r.Err == nil, r.Overtaken:
	case r.Lapsed:
		g.say(&g.lines.lapsed, slog.LevelWarn, "cacheguard: a lease ran out while its load ran: no renewal got through, or this process was paused", r.Key, nil, "length", r.Length)
	case errors.Is(r.Err, store.ErrLost):
		g.say(&g.lines.lost, slog.LevelWarn, "cacheguard: a lease was lost while its load ran", r.Key, nil, "length", r.Length)
	default:
		g.say(&g.lines.unrenewed, slog.LevelWarn, "cacheguard: a lease could not be renewed", r.Key, r.Err, "class", store.ClassOf(r.Err), "length", r.Length)
	}
}

// breaker is said each time: the breaker itself sees to it that it is seldom.
func (g *guardLog) breaker(open bool) {
	if open {
		g.log.Error("cacheguard: the store has failed repeatedly and is not asked for a while")
		return
	}
	g.log.Info("cacheguard: the store is back")
}

// pending is said when writes begin to wait, and when none does any more.
func (g *guardLog) pending(n int) {
	switch {
	case n > 0 && !g.waiting.Swap(true):
		g.log.Error("cacheguard: writes have not reached the store and are being retried", "writes", n)
	case n == 0 && g.waiting.Swap(false):
		g.log.Info("cacheguard: all writes have reached the store")
	}
}

func (g *guardLog) fault(f cacheguard.FaultInfo) {
	if f.Refused || f.Class == store.ClassCanceled || errors.Is(f.Err, context.Canceled) {
		return
	}
	k := g.faults[f.Class]
	if k == nil {
		k = g.faults[store.ClassOther]
	}
	g.say(k, slog.LevelWarn, "cacheguard: fault of the store", f.Key, f.Err, "op", f.Op, "class", f.Class)
}

// panic says what the runtime says of a panic; a value that somebody passed to
// panic may be anything, and is left to debug.
func (g *guardLog) panic(p cacheguard.PanicInfo) {
	if g.log.Enabled(context.Background(), slog.LevelDebug) {
		g.log.Debug("cacheguard: panic", "where", p.Where, "value", p.Value)
	}
	args := []any{"where", p.Where, "stack", string(p.Stack)}
	if err, ok := p.Value.(runtime.Error); ok {
		args = append(args, "panic", err.Error())
	}
	if skipped, ok := g.lines.panicked.due(g.every); ok {
		if skipped > 0 {
			args = append(args, "more", skipped)
		}
		g.log.Error("cacheguard: recovered from a panic", args...)
	}
}
