package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// hotProduct is the product that the page watches and that storms ask for.
const hotProduct = "1"

// live is what the page at / shows, and what its controls do.
type live struct {
	cfg       config
	catalogue *catalogue
	back      *backend

	requests atomic.Int64 // for products
	reading  atomic.Int64 // those for the hot one that are under way
	storming atomic.Bool
	watch    *leaseWatch

	// ctx ends with Close, which waits for all that start has started.
	ctx context.Context
	end context.CancelFunc

	running sync.RWMutex // held for reading by start, so that nothing starts when Close waits
	ended   bool         // guarded by running
	tasks   sync.WaitGroup

	mu          sync.Mutex
	rate        int    // of the steady readers; guarded by mu
	stopReaders func() // nil: there are none; guarded by mu
	storms      int    // how many there were; guarded by mu
	kept        []storm
}

func newLive(cfg config, c *catalogue, b *backend, watch *leaseWatch) *live {
	l := &live{cfg: cfg, catalogue: c, back: b, watch: watch}
	l.ctx, l.end = context.WithCancel(context.Background())
	return l
}

// Close ends readers and storms, and waits for them.
func (l *live) Close() error {
	l.running.Lock()
	l.ended = true
	l.running.Unlock()
	l.end()
	l.tasks.Wait()
	return nil
}

// start runs a task that ends with the context it is given. It reports whether
// it did: not when Close was called.
func (l *live) start(task func(context.Context)) bool {
	l.running.RLock()
	defer l.running.RUnlock()
	if l.ended {
		return false
	}
	l.tasks.Go(func() { task(l.ctx) })
	return true
}

// asked counts a request for a product; answered is to be called at its end.
func (l *live) asked(id string) (answered func()) {
	l.requests.Add(1)
	if id != hotProduct {
		return func() {}
	}
	l.reading.Add(1)
	return func() { l.reading.Add(-1) }
}

// read asks for the hot product as a request does.
func (l *live) read(ctx context.Context) error {
	defer l.asked(hotProduct)()
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	_, err := l.catalogue.Product(ctx, hotProduct)
	return err
}

func (l *live) mode() string { return l.catalogue.mode() }

func (l *live) expireHot(ctx context.Context) error {
	return l.catalogue.products.now().Expire(ctx, hotProduct)
}

func (l *live) invalidateHot(ctx context.Context) error {
	return l.catalogue.products.now().Invalidate(ctx, hotProduct)
}

// liveState is what the page asks for several times a second. Times are
// milliseconds.
type liveState struct {
	Mode     string      `json:"mode"`
	Controls bool        `json:"controls"` // this caller may use them
	Requests int64       `json:"requests"` // for products, ever
	Loads    int64       `json:"loads"`    // of the origin, ever
	Rate     int         `json:"rate"`
	Storming bool        `json:"storming"`
	Storms   []storm     `json:"storms"`
	Hot      hotState    `json:"hot"`
	Lease    leaseState  `json:"lease"`
	Origin   originState `json:"origin"`
	Store    storeState  `json:"store"`
}

// hotState is the hot product in the store.
type hotState struct {
	ID      string  `json:"id"`
	State   string  `json:"state"` // fresh, stale, absent, missing, or unknown while the store is away
	Fresh   float64 `json:"fresh_ms"`
	Left    float64 `json:"left_ms"`
	Age     float64 `json:"age_ms"`
	Token   int64   `json:"token"`
	Waiting int64   `json:"waiting"` // requests to this process that are under way
}

type originState struct {
	Delay       float64 `json:"delay_ms"`
	Failing     bool    `json:"failing"`
	InUse       int     `json:"in_use"` // connections
	Connections int     `json:"connections"`
	Failures    int64   `json:"failures"`
}

type storeState struct {
	Away    bool `json:"away"`    // its line was pulled here
	Breaker bool `json:"breaker"` // it has failed, and is not asked
}

func (l *live) state(ctx context.Context) liveState {
	o := l.catalogue.origin
	s := liveState{
		Mode: l.mode(), Requests: l.requests.Load(), Loads: o.loads.Load(), Storming: l.storming.Load(),
		Origin: originState{Delay: millis(time.Duration(o.unruly.delay.Load())), Failing: o.unruly.failing.Load(),
			InUse: len(o.slots), Connections: cap(o.slots), Failures: o.failures.Load()},
		Store: storeState{Away: l.back.plug.isPulled(), Breaker: l.watch.breaker.Load()},
		Hot:   l.hot(ctx),
		Lease: l.lease(ctx),
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Rate, s.Storms = l.rate, append([]storm{}, l.kept...)
	return s
}

// hot looks at the hot product's entry, as a read of any mode does.
func (l *live) hot(ctx context.Context) hotState {
	h := hotState{ID: hotProduct, State: "missing", Waiting: l.reading.Load()}
	e, err := l.back.store.Load(ctx, store.Key{Space: productSpace, ID: hotProduct})
	switch {
	case err != nil:
		h.State = "unknown"
		return h
	case e.HandOver || e.Kind != store.Value && e.Kind != store.Absent:
		return h
	case e.Kind == store.Absent:
		h.State = "absent"
	case e.Fresh > 0:
		h.State = "fresh"
	default:
		h.State = "stale"
	}
	h.Fresh, h.Left, h.Age, h.Token = millis(max(e.Fresh, 0)), millis(e.Left), millis(e.Age), int64(e.Token)
	return h
}

// leaseState is who may load the hot product.
type leaseState struct {
	Holder string  `json:"holder"` // nobody, this process, another process, or unknown
	Who    string  `json:"who"`    // of another process
	Held   float64 `json:"held_ms"`
	Left   float64 `json:"left_ms"`
}

// lease tells who holds the hot product's lease: this process by what its guard
// has told, any other by the record that Redis keeps.
func (l *live) lease(ctx context.Context) leaseState {
	if mine := l.watch.held(); mine.Holder != "" {
		return mine
	}
	if l.back.lease == nil {
		return leaseState{Holder: "nobody"}
	}
	found, err := l.back.lease(ctx, store.Key{Space: productSpace, ID: hotProduct})
	if err != nil {
		return leaseState{Holder: "unknown"}
	}
	return found
}

// leaseWatch learns from a guard's hooks whether this process holds the hot
// product's lease.
type leaseWatch struct {
	breaker atomic.Bool

	mu    sync.Mutex
	since time.Time // zero: it is not held; guarded by mu
	until time.Time // guarded by mu
}

func (w *leaseWatch) hooks() cacheguard.Hooks {
	return cacheguard.Hooks{
		Claim: func(c cacheguard.ClaimInfo) {
			if c.Key == hotProduct && c.Outcome == store.Granted {
				w.set(time.Now(), c.Length)
			}
		},
		Renew: func(r cacheguard.RenewInfo) {
			if r.Key == hotProduct && r.Err == nil {
				w.extend(r.Length)
			}
		},
		Flight: func(f cacheguard.FlightInfo) {
			if f.Key == hotProduct {
				w.set(time.Time{}, 0)
			}
		},
		Breaker: w.breaker.Store,
	}
}

func (w *leaseWatch) set(since time.Time, length time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.since, w.until = since, since.Add(length)
}

func (w *leaseWatch) extend(length time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.until = time.Now().Add(length)
}

// held is the zero state if this process does not hold the lease.
func (w *leaseWatch) held() leaseState {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return leaseState{}
	}
	return leaseState{Holder: "this process", Held: millis(time.Since(w.since)), Left: max(0, millis(time.Until(w.until)))}
}

var errNoControls = errors.New("the controls are for callers on the machine of the demo; start it with -controls to let others use them")
