package cacheguard_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

var (
	simulationSeed  = flag.Uint64("simulation.seed", 0, "replay this one seed of the simulation")
	simulationSeeds = flag.Int("simulation.seeds", 200, "how many seeds of the simulation to run")
)

// TestSimulation runs a fleet over a bad network, by seed: calls are late, do
// not arrive, or lose their replies; messages are late, lost, or doubled;
// processes are cut off or pause; records and entries are evicted; loaders are slow, fail, or panic. Meanwhile the origin is
// written and the store told of it, and a checker that knows the order of things
// in real time judges every answer (see world).
//
// Two kinds of readers ask, for one key and for several (GetMany). What is judged
// while the weather is bad: the age and origin of each value (P2, P3, P10, and
// P15 for the writer itself), one load per key and process at a time (P8), the
// kind of each error and the time that each read takes (P5, P7, P9), and that a
// load which asks for its own key is told so at once (P14). When it is calm:
// that all agree with the origin, and then, one accident at a time, P1, P4, P6
// and P7 to the letter (see drills).
//
// The order of what happens at one instant is the scheduler's, so a seed that
// fails may need some tries to fail again: -simulation.seed N -count 20.
func TestSimulation(t *testing.T) {
	judge := func(t *testing.T, seed uint64) {
		simulate(t, seed, func(s *memstore.Store) store.Store { return s }, t.Errorf)
	}
	if *simulationSeed != 0 {
		judge(t, *simulationSeed)
		return
	}
	for seed := range uint64(*simulationSeeds) {
		if !t.Run(strconv.FormatUint(seed+1, 10), func(t *testing.T) { judge(t, seed+1) }) {
			t.Fatalf("replay with -run TestSimulation -simulation.seed %d", seed+1)
		}
	}
}

// world is an origin with versions, and what the checker knows of each key.
type world struct {
	t   *testing.T
	mem *memstore.Store
	// open is the store as a process has it; fail takes what the checker finds.
	open func(*memstore.Store) store.Store
	fail func(format string, args ...any)
	rnd  *dice
	// near: the processes have near caches. Then P2 does not bind the others at
	// once, and in an outage not at all; what a process wrote itself does.
	near bool
	// crowd: all ask for one key, which is soon stale, and there are more of them.
	// Else a caller seldom comes while another of its process is under way to the
	// same, and finds something stale even less often.
	crowd bool

	mu      sync.Mutex
	calm    bool   // ends the faults
	origin  error  // what loads in calm weather end with, if they do; errPanic: by a panic
	counted string // the key whose loads are counted
	loads   []int  // of that key, by process; nil: nobody counts
	keys    map[string]*known
}

// underWay is a load under way. One of several keys goes on until none of its
// flights wants it any more: that of one key may have ended long before.
type underWay struct {
	ctx   context.Context
	joint bool
}

// errPanic makes a load panic.
var errPanic = errors.New("simulated")

// calmLoad is how long a load takes in calm weather.
const calmLoad = 50 * time.Millisecond

type known struct {
	version int64              // of the origin, committed
	floor   int64              // what a read that begins now must not be older than (P2)
	own     map[int]int64      // the same by process, its writes that failed included (P15)
	running map[int][]underWay // loads, by process
}

// dice is a source of chance for many goroutines.
type dice struct {
	mu  sync.Mutex
	rnd *rand.Rand
}

func (d *dice) n(n int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rnd.Int64N(n)
}

func (d *dice) upTo(limit time.Duration) time.Duration { return time.Duration(d.n(int64(limit) + 1)) }
func (d *dice) oneIn(n int64) bool                     { return d.n(n) == 0 }

const (
	simKeys      = 3
	simProcesses = 3
	simTimeout   = 100 * time.Millisecond // of the store
	simTTL       = 400 * time.Millisecond
	simGrace     = 600 * time.Millisecond
	simLoadLimit = 500 * time.Millisecond
	simCooldown  = 100 * time.Millisecond
)

// simulate runs one seed on a store that open makes, and tells fail of all that
// is wrong.
func simulate(t *testing.T, seed uint64, open func(*memstore.Store) store.Store, fail func(string, ...any)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, mem: memstore.New(memstore.Options{}), open: open, fail: fail,
			rnd:  &dice{rnd: rand.New(rand.NewPCG(seed, 1))},
			keys: make(map[string]*known),
			near: seed%2 == 0, crowd: seed%4 >= 2,
		}
		for i := range simKeys {
			w.keys[fmt.Sprint(i)] = &known{own: make(map[int]int64), running: make(map[int][]underWay)}
		}
		procs := make([]*process, simProcesses)
		for i := range procs {
			procs[i] = w.start(i)
		}
		w.storm(procs)
		w.settle(procs)
		w.drills(procs)
		for _, p := range procs {
			if err := p.guard.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// process is one guard and its way to the store.
type process struct {
	*world
	id    int
	tap   *tap
	guard *guard

	mu    sync.Mutex
	away  time.Time // cut off from the store until then
	pause time.Time // stands still at its calls until then
	dead  bool      // cut off for good
}

// together is the way of a GetMany's calls to the store.
type together struct{ *tap }

func (s together) LoadMany(ctx context.Context, keys []store.Key) (entries []store.Entry, errs []error) {
	var got []store.Entry
	errs = s.many("load", "", len(keys), func() (errs []error) { got, errs = s.Store.LoadMany(ctx, keys); return errs })
	entries = make([]store.Entry, len(keys))
	if allOK(errs) {
		copy(entries, got)
	}
	return entries, errs
}

func (s together) ClaimMany(ctx context.Context, claims []store.Claim) (verdicts []store.Verdict, errs []error) {
	var got []store.Verdict
	errs = s.many("claim", "", len(claims), func() (errs []error) { got, errs = s.Store.ClaimMany(ctx, claims); return errs })
	verdicts = make([]store.Verdict, len(claims))
	if allOK(errs) {
		copy(verdicts, got)
	}
	return verdicts, errs
}

func (s together) FillMany(ctx context.Context, fills []store.Filling) []error {
	return s.many("fill", "", len(fills), func() []error { return s.Store.FillMany(ctx, fills) })
}

// allOK tells whether a call for many has an answer: what a lost or late one has
// brought must not be looked at.
func allOK(errs []error) bool {
	return !slices.ContainsFunc(errs, func(err error) bool { return err != nil })
}

func (w *world) start(id int) *process {
	p := &process{world: w, id: id, tap: newTap(&badMail{Store: w.open(w.mem), rnd: w.rnd, calm: w.isCalm})}
	p.tap.on(p.before, p.after)
	wire := together{p.tap}
	length := 50*time.Millisecond + w.rnd.upTo(200*time.Millisecond)
	var near cacheguard.Near
	if w.near {
		near = cacheguard.Near{MaxEntries: 100, TTL: simTTL / 4}
	}
	g, err := cacheguard.New(wire, options{
		Near:     near,
		Lifetime: cacheguard.Lifetime{TTL: simTTL, Grace: simGrace},
		LifetimeFunc: func(string, string) cacheguard.Lifetime {
			life := cacheguard.Lifetime{TTL: simTTL, Grace: simGrace}
			if w.crowd && !w.isCalm() {
				life.TTL /= 8
			}
			return life
		},
		LoadLimit: simLoadLimit,
		Cooldown:  simCooldown,
		Lease:     cacheguard.LeaseTuning{Initial: length, Min: 20 * time.Millisecond},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	p.guard = g
	return p
}

// before is the way to the store. As the contract wants, no call takes longer
// than a bound of the store's own, unless the whole process stands still.
func (p *process) before(op, _ string) error {
	p.mu.Lock()
	away, pause, dead := time.Until(p.away), time.Until(p.pause), p.dead
	p.mu.Unlock()
	if pause > 0 {
		time.Sleep(pause)
	}
	switch {
	case dead:
		time.Sleep(simTimeout)
		return lost(op, store.ClassTimeout)
	case p.isCalm():
		return nil
	case away > 0:
		time.Sleep(simTimeout)
		return lost(op, store.ClassTimeout)
	case p.rnd.oneIn(30):
		return lost(op, store.ClassConnection)
	case p.rnd.oneIn(60):
		// It arrives when nobody waits for it any more.
		late := &stalled{make(chan struct{})}
		time.AfterFunc(simTimeout+p.rnd.upTo(time.Second), func() { close(late.until) })
		time.Sleep(simTimeout)
		return late
	}
	time.Sleep(p.rnd.upTo(5 * time.Millisecond))
	return nil
}

// after is the way back.
func (p *process) after(op, _ string) error {
	switch {
	case p.isCalm():
		return nil
	case p.rnd.oneIn(30):
		return lost(op, store.ClassConnection)
	case p.rnd.oneIn(60):
		time.Sleep(simTimeout)
		return lost(op, store.ClassTimeout)
	case p.crowd && op == "load":
		time.Sleep(p.rnd.upTo(30 * time.Millisecond)) // others come meanwhile, and writes go by
		return nil
	}
	time.Sleep(p.rnd.upTo(5 * time.Millisecond))
	return nil
}

// anyKey is one of those that are asked for and written.
func (w *world) anyKey() string {
	if w.crowd {
		return "0"
	}
	return fmt.Sprint(w.rnd.n(simKeys))
}

func (w *world) isCalm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

// begin begins a load of a key, and checks that this process does not load it
// already. It returns the version that the load will bring.
func (p *process) begin(ctx context.Context, key string, joint bool) (version string, end func()) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	k := p.keys[key]
	for _, other := range k.running[p.id] {
		if other.ctx.Err() == nil && !other.joint { // else it has been cancelled, and is about to return
			p.fail("process %d loads key %s twice at once", p.id, key)
		}
	}
	if p.loads != nil && key == p.counted {
		p.loads[p.id]++
	}
	k.running[p.id] = append(k.running[p.id], underWay{ctx, joint})
	return strconv.FormatInt(k.version, 10), func() {
		p.world.mu.Lock()
		defer p.world.mu.Unlock()
		k.running[p.id] = slices.DeleteFunc(k.running[p.id], func(u underWay) bool { return u.ctx == ctx })
	}
}

// work is what a load does between its question and its answer.
func (p *process) work(ctx context.Context) error {
	takes := calmLoad
	p.world.mu.Lock()
	calm, err := p.calm, p.origin
	p.world.mu.Unlock()
	if !calm {
		takes = p.rnd.upTo(150 * time.Millisecond)
		switch {
		case p.rnd.oneIn(15):
			return errOrigin
		case p.rnd.oneIn(40):
			err = errPanic
		case p.rnd.oneIn(40):
			<-ctx.Done() // hangs until it is cut
			return context.Cause(ctx)
		}
	}
	switch err {
	case nil:
	case errPanic:
		panic("simulated")
	default:
		return err // at once: a broken pool fails fastest
	}
	select {
	case <-time.After(takes):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// load is the loader of one key.
func (p *process) load(ctx context.Context, key string) (string, error) {
	version, end := p.begin(ctx, key, false)
	defer end()
	if !p.isCalm() && p.rnd.oneIn(30) {
		p.askForItself(ctx, key)
	}
	return version, p.work(ctx)
}

// askForItself asks, inside a load of a key, for that key (P14).
func (p *process) askForItself(ctx context.Context, key string) {
	begin := time.Now()
	_, err := p.guard.Get(ctx, key, p.load)
	// A look at the store comes first: it may have the answer meanwhile.
	if took := time.Since(begin); took > 3*simTimeout+time.Second {
		p.fail("process %d: a load of %s that asked for %s waited %v", p.id, key, key, took)
	}
	if err != nil && !errors.Is(err, cacheguard.ErrCycle) && ctx.Err() == nil && !errors.Is(err, cacheguard.ErrCooldown) {
		p.fail("process %d: a load of %s that asked for %s got %v", p.id, key, key, err)
	}
}

// loadMany is the loader of several.
func (p *process) loadMany(ctx context.Context, keys []string) (map[string]string, error) {
	got := make(map[string]string)
	for _, key := range keys {
		version, end := p.begin(ctx, key, len(keys) > 1)
		defer end()
		got[key] = version
	}
	if err := p.work(ctx); err != nil {
		return nil, err
	}
	if !p.isCalm() && p.rnd.oneIn(10) { // one of them fails
		delete(got, keys[0])
		return got, &cacheguard.ManyError{Errs: map[string]error{keys[0]: errOrigin}}
	}
	return got, nil
}

// floor is what a read of this process that begins now must not be older than.
func (p *process) floor(key string) int64 {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	floor := p.keys[key].own[p.id]
	if !p.near || p.calm {
		floor = max(floor, p.keys[key].floor)
	}
	return floor
}

// read gets a key and judges the answer.
func (p *process) read(ctx context.Context, key string) {
	floor, begin := p.floor(key), time.Now()
	got, err := p.guard.Get(ctx, key, p.load)
	p.judgeTime(begin)
	if err != nil {
		p.judgeError(ctx, err)
		return
	}
	p.judge(key, got, floor, begin)
}

// readMany gets several keys, in some order, and judges the answers.
func (p *process) readMany(ctx context.Context) {
	floors := make(map[string]int64)
	var keys []string
	for range 1 + p.rnd.n(simKeys) {
		key := p.anyKey()
		keys, floors[key] = append(keys, key), p.floor(key)
	}
	begin := time.Now()
	got, err := p.guard.GetMany(ctx, keys, p.loadMany)
	p.judgeTime(begin)
	var each *cacheguard.ManyError
	if errors.As(err, &each) {
		for key, err := range each.Errs {
			if _, both := got[key]; both {
				p.fail("process %d: key %s has a value and the error %v", p.id, key, err)
			}
			p.judgeError(ctx, err)
			delete(floors, key)
		}
		err = nil
	}
	for key, value := range got {
		p.judge(key, value, floors[key], begin)
		delete(floors, key)
	}
	switch {
	case err != nil:
		p.judgeError(ctx, err)
	case len(floors) > 0:
		p.fail("process %d: a GetMany has neither value nor error for %v", p.id, floors)
	}
}

// judgeTime: looks, a claim, another's lease and load, an own one, and a pause.
func (p *process) judgeTime(begin time.Time) {
	if took, limit := time.Since(begin), 4*simLoadLimit+20*simTimeout+2*time.Second; took > limit {
		p.fail("process %d: a read took %v", p.id, took)
	}
}

func (p *process) judge(key, got string, floor int64, begin time.Time) {
	v, err := strconv.ParseInt(got, 10, 64)
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	switch k := p.keys[key]; {
	case err != nil || v > k.version:
		p.fail("process %d: key %s has the value %q, which never was", p.id, key, got)
	case v < floor:
		p.fail("process %d at %v: key %s is at %d, but the store was told of %d before the read began", p.id, begin.Format("05.000000"), key, v, floor)
	}
}

func (p *process) judgeError(ctx context.Context, err error) {
	var panicked *cacheguard.PanicError
	switch {
	case p.isCalm():
		p.fail("process %d: %v, in calm weather", p.id, err)
	case errors.Is(err, errOrigin), errors.As(err, &panicked), errors.Is(err, cacheguard.ErrCooldown), errors.Is(err, cacheguard.ErrWaitLimit):
	case errors.Is(err, context.DeadlineExceeded): // of the load, or the caller's
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
	default:
		p.fail("process %d: unexpected error %v", p.id, err)
	}
}

// write commits a version and tells the store of it, in one of three ways.
// Expire promises less: what is stale is served. So it is not counted.
func (p *process) write(key string) {
	var committed int64
	commit := func(context.Context) (string, error) {
		time.Sleep(p.rnd.upTo(20 * time.Millisecond))
		p.world.mu.Lock()
		p.keys[key].version++
		committed = p.keys[key].version
		p.world.mu.Unlock()
		time.Sleep(p.rnd.upTo(20 * time.Millisecond))
		return strconv.FormatInt(committed, 10), nil
	}
	var err error
	switch p.rnd.n(5) {
	case 0:
		_, _ = commit(p.t.Context())
		_ = p.guard.Expire(p.t.Context(), key)
		return
	case 1, 2:
		_, err = p.guard.Update(p.t.Context(), key, commit)
	default:
		_, _ = commit(p.t.Context())
		err = p.guard.Invalidate(p.t.Context(), key)
	}
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	k := p.keys[key]
	k.own[p.id] = max(k.own[p.id], committed)
	if err == nil {
		k.floor = max(k.floor, committed)
	}
}

// storm lets readers, writers and accidents go at the fleet for a while.
func (w *world) storm(procs []*process) {
	var wg sync.WaitGroup
	end := time.Now().Add(3 * time.Second)
	readers, think, rest := 4, 40*time.Millisecond, 200*time.Millisecond
	if w.crowd {
		readers, think, rest = 8, 5*time.Millisecond, 600*time.Millisecond // or the one key would hardly ever be there
	}
	for _, p := range procs {
		for range readers {
			wg.Go(func() {
				for time.Now().Before(end) {
					ctx, cancel := context.WithCancel(w.t.Context())
					if w.rnd.oneIn(10) {
						ctx, cancel = context.WithTimeout(w.t.Context(), w.rnd.upTo(100*time.Millisecond))
					}
					if w.rnd.oneIn(4) {
						p.readMany(ctx)
					} else {
						p.read(ctx, w.anyKey())
					}
					cancel()
					time.Sleep(w.rnd.upTo(think))
				}
			})
		}
		wg.Go(func() {
			for time.Now().Before(end) {
				p.write(w.anyKey())
				time.Sleep(w.rnd.upTo(rest))
			}
		})
	}
	wg.Go(func() {
		for time.Now().Before(end) {
			time.Sleep(w.rnd.upTo(300 * time.Millisecond))
			w.accident(procs[w.rnd.n(simProcesses)], store.Key{Space: "cacheguard", ID: w.anyKey()})
		}
	})
	wg.Wait()
}

func (w *world) accident(p *process, key store.Key) {
	switch w.rnd.n(4) {
	case 0:
		w.mem.DropEntry(key)
	case 1:
		w.mem.DropRecord(key)
	default:
		p.mu.Lock()
		defer p.mu.Unlock()
		until := time.Now().Add(w.rnd.upTo(500 * time.Millisecond))
		if w.rnd.oneIn(2) {
			p.away = until
		} else {
			p.pause = until
		}
	}
}

// settle ends the faults, and checks that in the end all processes agree with
// the origin.
func (w *world) settle(procs []*process) {
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	time.Sleep(simTTL + simGrace + 10*time.Second) // cooldowns, pauses, late calls, retries
	for key, k := range w.keys {
		k.floor = k.version
		for _, p := range procs {
			p.read(w.t.Context(), key)
		}
	}
}

// drills are what the promises say to the letter, tried one at a time in calm
// weather.
func (w *world) drills(procs []*process) {
	if err := procs[0].guard.Invalidate(w.t.Context(), "0"); err != nil {
		w.fail("Invalidate in calm weather: %v", err)
	}
	// P1: everybody asks, one loads.
	begin := time.Now()
	if n := sum(w.rush(procs, "0", nil)); n != 1 {
		w.fail("P1: %d loads of a key that all processes asked for", n)
	}
	if took := time.Since(begin); took > 2*calmLoad {
		w.fail("P1: a load of %v was waited for for %v", calmLoad, took)
	}
	w.drillFailure(procs)
	w.drillPanic(procs)
	w.drillCrash(procs)
}

// rush lets three callers of each process ask for a key at once, and returns the
// loads of each process. Each error is to be one of those that are allowed.
func (w *world) rush(procs []*process, key string, allowed func(error) bool) []int {
	w.mu.Lock()
	w.counted, w.loads = key, make([]int, simProcesses)
	w.mu.Unlock()
	var wg sync.WaitGroup
	for _, p := range procs {
		for range 3 {
			wg.Go(func() {
				if _, err := p.guard.Get(w.t.Context(), key, p.load); err != nil && (allowed == nil || !allowed(err)) {
					w.fail("process %d: %v, in calm weather", p.id, err)
				}
			})
		}
	}
	wg.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	loads := w.loads
	w.loads = nil
	return loads
}

// P6: an origin that fails is asked by two processes in a cooldown, whatever the
// number of callers; then it is normal again.
func (w *world) drillFailure(procs []*process) {
	_ = procs[1].guard.Invalidate(w.t.Context(), "1")
	w.originEnds(errOrigin)
	isFailure := func(err error) bool { return errors.Is(err, errOrigin) || errors.Is(err, cacheguard.ErrCooldown) }
	loads := 0
	begin := time.Now()
	for time.Since(begin) < 5*simCooldown {
		loads += sum(w.rush(procs, "1", isFailure))
		time.Sleep(simCooldown / 20)
	}
	// A cooldown begins when a load has failed.
	if most := 2 * (int(time.Since(begin)/simCooldown) + 1); loads > most {
		w.fail("P6: an origin that fails was asked %d times in %v, want at most %d", loads, time.Since(begin), most)
	}
	w.originEnds(nil)
	time.Sleep(simCooldown)
	if n := sum(w.rush(procs, "1", nil)); n != 1 {
		w.fail("P6: %d loads when the origin is back", n)
	}
}

// P7: a loader that panics ends its lease at once: another process loads, and
// nobody waits for a lease to run out.
func (w *world) drillPanic(procs []*process) {
	_ = procs[0].guard.Invalidate(w.t.Context(), "2")
	w.originEnds(errPanic)
	var panicked *cacheguard.PanicError
	if _, err := procs[0].guard.Get(w.t.Context(), "2", procs[0].load); !errors.As(err, &panicked) {
		w.fail("P7: a loader that panics brings %v", err)
	}
	w.originEnds(nil)
	begin := time.Now()
	if _, err := procs[1].guard.Get(w.t.Context(), "2", procs[1].load); err != nil {
		w.fail("P7: %v after a panic in another process", err)
	}
	if took := time.Since(begin); took > calmLoad+simTimeout/10 {
		w.fail("P7: after a panic another process waited %v for a load of %v", took, calmLoad)
	}
}

// P4: a holder is gone for good. The others wait for what was left of its lease,
// and then one of them loads.
func (w *world) drillCrash(procs []*process) {
	time.Sleep(simTTL + simGrace) // nothing stale is there
	crashed, others := procs[0], procs[1:]
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = crashed.guard.Get(w.t.Context(), "0", crashed.load)
	}()
	time.Sleep(calmLoad / 2)
	crashed.mu.Lock()
	crashed.dead = true
	crashed.mu.Unlock()
	begin := time.Now()
	loads := w.rush(others, "0", nil)
	loads[crashed.id] = 0 // its own callers are served by loads of their own
	if n := sum(loads); n != 1 {
		w.fail("P4: %d loads took over from a holder that is gone", n)
	}
	if took, limit := time.Since(begin), simLoadLimit+calmLoad+simTimeout/2; took > limit {
		w.fail("P4: the others waited %v, want at most the lease and a load, %v", took, limit)
	}
	<-gone
	crashed.mu.Lock()
	crashed.dead = false
	crashed.mu.Unlock()
	time.Sleep(time.Second) // its breaker closes
}

func (w *world) originEnds(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.origin = err
}

func sum(ns []int) (n int) {
	for _, i := range ns {
		n += i
	}
	return n
}
