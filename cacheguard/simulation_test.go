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
	// calm ends the faults.
	calm bool

	mu   sync.Mutex
	keys map[string]*known
}

type known struct {
	version int64                     // of the origin, committed
	floor   int64                     // what a read that begins now must not be older than (P2)
	own     map[int]int64             // the same by process, its writes that failed included (P15)
	running map[int][]context.Context // of the loads, by process
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
			near: seed%2 == 0,
		}
		for i := range simKeys {
			w.keys[fmt.Sprint(i)] = &known{own: make(map[int]int64), running: make(map[int][]context.Context)}
		}
		procs := make([]*process, simProcesses)
		for i := range procs {
			procs[i] = w.start(i)
		}
		w.storm(procs)
		w.settle(procs)
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
}

func (w *world) start(id int) *process {
	p := &process{world: w, id: id, tap: newTap(&badMail{Store: w.open(w.mem), rnd: w.rnd, calm: w.isCalm})}
	p.tap.on(p.before, p.after)
	length := 50*time.Millisecond + w.rnd.upTo(200*time.Millisecond)
	var near cacheguard.Near
	if w.near {
		near = cacheguard.Near{MaxEntries: 100, TTL: simTTL / 4}
	}
	g, err := cacheguard.New(p.tap, options{
		Near:      near,
		Lifetime:  cacheguard.Lifetime{TTL: simTTL, Grace: simGrace},
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
	away, pause := time.Until(p.away), time.Until(p.pause)
	p.mu.Unlock()
	if pause > 0 {
		time.Sleep(pause)
	}
	switch {
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
	}
	time.Sleep(p.rnd.upTo(5 * time.Millisecond))
	return nil
}

func (w *world) isCalm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.calm
}

// load asks the origin, and checks that this process does not do so already.
func (p *process) load(ctx context.Context, key string) (string, error) {
	p.world.mu.Lock()
	k := p.keys[key]
	for _, other := range k.running[p.id] {
		if other.Err() == nil { // else it has been cancelled, and is about to return
			p.fail("process %d loads key %s twice at once", p.id, key)
		}
	}
	k.running[p.id] = append(k.running[p.id], ctx)
	v := k.version
	p.world.mu.Unlock()
	defer func() {
		p.world.mu.Lock()
		defer p.world.mu.Unlock()
		k.running[p.id] = slices.DeleteFunc(k.running[p.id], func(other context.Context) bool { return other == ctx })
	}()
	if !p.isCalm() {
		switch {
		case p.rnd.oneIn(15):
			return "", errOrigin
		case p.rnd.oneIn(40):
			panic("simulated")
		case p.rnd.oneIn(40):
			<-ctx.Done() // hangs until it is cut
			return "", context.Cause(ctx)
		}
		select {
		case <-time.After(p.rnd.upTo(150 * time.Millisecond)):
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
	return strconv.FormatInt(v, 10), nil
}

// read gets a key and judges the answer.
func (p *process) read(ctx context.Context, key string) {
	p.world.mu.Lock()
	floor := p.keys[key].own[p.id]
	if !p.near || p.calm {
		floor = max(floor, p.keys[key].floor)
	}
	p.world.mu.Unlock()
	begin := time.Now()
	got, err := p.guard.Get(ctx, key, p.load)
	took := time.Since(begin)
	// Looks, a claim, another's lease and load, an own one, and a pause.
	if limit := 4*simLoadLimit + 20*simTimeout + 2*time.Second; took > limit {
		p.fail("process %d: a read of %s took %v", p.id, key, took)
	}
	if err != nil {
		p.judgeError(ctx, err)
		return
	}
	v, scanErr := strconv.ParseInt(got, 10, 64)
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	switch k := p.keys[key]; {
	case scanErr != nil || v > k.version:
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
	anyKey := func() string { return fmt.Sprint(w.rnd.n(simKeys)) }
	for _, p := range procs {
		for range 4 {
			wg.Go(func() {
				for time.Now().Before(end) {
					ctx, cancel := context.WithCancel(w.t.Context())
					if w.rnd.oneIn(10) {
						ctx, cancel = context.WithTimeout(w.t.Context(), w.rnd.upTo(100*time.Millisecond))
					}
					p.read(ctx, anyKey())
					cancel()
					time.Sleep(w.rnd.upTo(40 * time.Millisecond))
				}
			})
		}
		wg.Go(func() {
			for time.Now().Before(end) {
				p.write(anyKey())
				time.Sleep(w.rnd.upTo(200 * time.Millisecond))
			}
		})
	}
	wg.Go(func() {
		for time.Now().Before(end) {
			time.Sleep(w.rnd.upTo(300 * time.Millisecond))
			w.accident(procs[w.rnd.n(simProcesses)], store.Key{Space: "cacheguard", ID: anyKey()})
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
