//go:build !race

package bench_test

import (
	"context"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
	"github.com/cacheguard-go/cacheguard/middleware"
)

// The budget is what may not grow unnoticed, because it is exact on any machine:
// how often an operation allocates, beyond the bare thing beside it in the same
// run; how many commands it sends; and in how many round trips. It is a table of
// docs/performance.md. (Times belong to the benchmarks, and to whoever reads
// them. The race detector allocates, too: this file is not built with it.)
const budgetPage = "docs/performance.md"

// spent is what an operation takes, or may take.
type spent struct{ allocs, commands, trips float64 }

// no stands for what is not measured, and not limited. (An operation can have
// fewer allocations than the bare thing beside it.)
var no = math.Inf(-1)

func (s spent) String() string {
	cell := func(v float64) string {
		if v == no {
			return "-"
		}
		return strconv.FormatFloat(v, 'g', 3, 64)
	}
	return fmt.Sprintf("allocations %s, commands %s, round trips %s", cell(s.allocs), cell(s.commands), cell(s.trips))
}

// over tells what of got is more than the budget allows.
func (budget spent) over(got spent) (what []string) {
	for _, c := range []struct {
		of         string
		limit, got float64
	}{
		{"allocations", budget.allocs, got.allocs},
		{"commands", budget.commands, got.commands},
		{"round trips", budget.trips, got.trips},
	} {
		switch {
		case c.limit == no && c.got != no:
			what = append(what, fmt.Sprintf("%s: %v, and the budget does not say how many", c.of, c.got))
		case c.limit != no && c.got == no:
			what = append(what, fmt.Sprintf("%s: not measured, the budget is %v", c.of, c.limit))
		case c.got > c.limit:
			what = append(what, fmt.Sprintf("%s: %v, the budget is %v", c.of, c.got, c.limit))
		}
	}
	return what
}

func TestASpendingOverTheBudgetIsNoticed(t *testing.T) {
	budget := spent{4, 1, no}
	for _, c := range []struct {
		got  spent
		want string
	}{
		{spent{4, 1, no}, ""},
		{spent{0, 0, no}, ""},
		{spent{5, 1, no}, "allocations: 5, the budget is 4"},
		{spent{4, 2, no}, "commands: 2, the budget is 1"},
		{spent{4, no, no}, "commands: not measured, the budget is 1"},
		{spent{4, 1, 1}, "round trips: 1, and the budget does not say how many"},
	} {
		if got := strings.Join(budget.over(c.got), "; "); got != c.want {
			t.Errorf("%+v: %q, want %q", c.got, got, c.want)
		}
	}
	if got := budget.over(spent{5, 2, no}); len(got) != 2 {
		t.Errorf("two are exceeded: %q", got)
	}
}

// readBudget reads the table between the page's markers.
func readBudget(text string) (budget map[string]spent, err error) {
	_, rest, begun := strings.Cut(text, "<!-- budget: begin")
	section, _, ended := strings.Cut(rest, "<!-- budget: end -->")
	if !begun || !ended {
		return nil, fmt.Errorf("no budget is marked")
	}
	budget = map[string]spent{}
	for _, m := range regexp.MustCompile(`(?m)^\| ([^|]+) \| ([0-9.-]+) \| ([0-9.-]+) \| ([0-9.-]+) \|$`).FindAllStringSubmatch(section, -1) {
		var limits [3]float64
		for i, cell := range m[2:] {
			if limits[i] = no; cell == "-" {
				continue
			}
			if limits[i], err = strconv.ParseFloat(cell, 64); err != nil {
				return nil, fmt.Errorf("%s: %w", m[0], err)
			}
		}
		budget[m[1]] = spent{limits[0], limits[1], limits[2]}
	}
	if rows := strings.Count(section, "\n| "); rows != len(budget)+1 {
		return nil, fmt.Errorf("%d rows below the head, of which %d can be read", rows-1, len(budget))
	}
	return budget, nil
}

func TestABudgetThatCannotBeReadIsNoticed(t *testing.T) {
	const head = "<!-- budget: begin -->\n\n| what | a | c | r |\n|---|---|---|---|\n"
	good := head + "| a hit | 4 | 1 | - |\n<!-- budget: end -->\n"
	if b, err := readBudget(good); err != nil || b["a hit"] != (spent{4, 1, no}) {
		t.Errorf("%v, %v", b, err)
	}
	for _, text := range []string{
		"| a hit | 4 | 1 | - |\n",
		strings.Replace(good, "4", "four", 1),
		strings.Replace(good, "4", "4.4.4", 1),
		strings.Replace(good, "<!-- budget: end -->", "| a hit | 5 | 1 | - |\n<!-- budget: end -->", 1),
	} {
		if b, err := readBudget(text); err == nil {
			t.Errorf("%q was read: %v", text, b)
		}
	}
}

// budgeting measures operation after operation against the budget.
type budgeting struct {
	budget map[string]spent
	seen   map[string]bool
}

// line measures one line of the table.
func (b *budgeting) line(t *testing.T, what string, measure func(t *testing.T) spent) {
	t.Helper()
	b.seen[what] = true
	t.Run(what, func(t *testing.T) {
		limit, ok := b.budget[what]
		got := measure(t)
		if !ok {
			t.Fatalf("%s has no line for it; it takes %v", budgetPage, got)
		}
		for _, over := range limit.over(got) {
			t.Error(over)
		}
		t.Logf("%v; the budget: %v", got, limit)
	})
}

func TestBudget(t *testing.T) {
	text, err := os.ReadFile(budgetPage)
	if err != nil {
		t.Fatal(err)
	}
	budget, err := readBudget(string(text))
	if err != nil {
		t.Fatal(budgetPage, err)
	}
	b := &budgeting{budget: budget, seen: map[string]bool{}}
	hits(t, b)
	misses(t, b)
	writes(t, b)
	fleet(t, b)
	overHTTP(t, b)
	for what := range budget {
		if !b.seen[what] {
			t.Errorf("%s has a line %q that nothing measures", budgetPage, what)
		}
	}
}

// wire is a Redis with two clients: one that only a guard or a store uses, whose
// commands are counted, and a bare one.
type wire struct {
	server *redistest.Server
	bare   *redis.Client
	count  *counter
	store  *redisstore.Store
}

func newWire(t *testing.T) *wire {
	t.Helper()
	w := &wire{server: redistest.Start(t)}
	w.bare = redis.NewClient(&redis.Options{Addr: w.server.Addr})
	t.Cleanup(func() { _ = w.bare.Close() })
	w.count, w.store = w.connect(t)
	return w
}

// connect is another process: a store on a client of its own.
func (w *wire) connect(t *testing.T) (*counter, *redisstore.Store) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: w.server.Addr, ContextTimeoutEnabled: true})
	count := &counter{primed: make(chan struct{})}
	client.AddHook(count)
	s, err := redisstore.New(client, redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(); _ = client.Close() })
	// Messages arrive, and the server's time has been asked for, before anything
	// is counted.
	up := make(chan struct{}, 10)
	s.Listen("cacheguard", func(ev store.Event) { // the namespace of a guard that is given none
		if ev.Kind == store.Up {
			up <- struct{}{}
		}
	})
	for _, ready := range []<-chan struct{}{up, count.primed} {
		select {
		case <-ready:
		case <-time.After(10 * time.Second):
			t.Fatal("no subscription")
		}
	}
	return count, s
}

// uncounted is a guard on a client like the bare one: a hook allocates, too.
func (w *wire) uncounted(t *testing.T) *bytesGuard {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: w.server.Addr})
	s, err := redisstore.New(client, redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(); _ = client.Close() })
	return guardOn(t, s, cacheguard.Near{})
}

// counter counts what a client sends besides its handshakes.
type counter struct {
	commands, trips, answered atomic.Int64 // answered: trips that are over

	primed chan struct{} // closed when the store has asked for the time
	once   sync.Once
}

func (c *counter) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "time" {
			defer c.once.Do(func() { close(c.primed) })
		}
		return c.trip([]redis.Cmder{cmd}, func() error { return next(ctx, cmd) })
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return c.trip(cmds, func() error { return next(ctx, cmds) })
	}
}

// trip counts one. What a new connection begins with is not counted: when the
// pool opens one is nobody's decision here.
func (c *counter) trip(cmds []redis.Cmder, send func() error) error {
	if name := cmds[0].Name(); name == "hello" || name == "client" {
		return send()
	}
	c.commands.Add(int64(len(cmds)))
	c.trips.Add(1)
	defer c.answered.Add(1)
	return send()
}

// sent is what run sends.
func (c *counter) sent(run func()) spent {
	commands, trips := c.commands.Load(), c.trips.Load()
	run()
	return spent{no, float64(c.commands.Load() - commands), float64(c.trips.Load() - trips)}
}

// guardOn is a guard for values of bytes, on which key k has been loaded.
func guardOn(t *testing.T, s store.Store, near cacheguard.Near) *bytesGuard {
	t.Helper()
	return guardLiving(t, s, near, cacheguard.Lifetime{TTL: time.Hour})
}

// guardLiving is guardOn with entries that live for so long.
func guardLiving(t *testing.T, s store.Store, near cacheguard.Near, life cacheguard.Lifetime) *bytesGuard {
	t.Helper()
	g, err := cacheguard.New(s, cacheguard.Options[[]byte]{
		Codec: cacheguard.Bytes(), EarlyRefresh: -1, Lifetime: life, Near: near,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	getting(t, g, context.Background(), "k")()
	return g
}

var kib = make([]byte, 1<<10)

// getting returns a Get of key.
func getting(t *testing.T, g *bytesGuard, ctx context.Context, key string) func() {
	load := loads(kib)
	return func() {
		if _, err := g.Get(ctx, key, load); err != nil {
			t.Error(err)
		}
	}
}

// allocations are those of one call on average, beyond those of bare.
func allocations(bare, call func()) float64 {
	const runs = 500
	n := testing.AllocsPerRun(runs, call)
	if bare != nil {
		n -= testing.AllocsPerRun(runs, bare)
	}
	return n
}

// bareGet returns the client's GET of as many bytes.
func (w *wire) bareGet(t *testing.T) func() {
	t.Helper()
	ctx, key := context.Background(), fmt.Sprint("bare") // made at run time, as keys are
	if err := w.bare.Set(ctx, key, kib, time.Hour).Err(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := w.bare.Get(ctx, key).Err(); err != nil {
			t.Error(err)
		}
	}
}

func hits(t *testing.T, b *budgeting) {
	canEnd, cancel := context.WithCancel(context.Background())
	defer cancel()
	background := context.Background()

	b.line(t, "hit in the near cache", func(t *testing.T) spent {
		w := newWire(t)
		g := guardOn(t, w.store, cacheguard.Near{MaxEntries: 10, TTL: time.Hour})
		got := w.count.sent(func() { getting(t, g, canEnd, "k")() })
		got.allocs = allocations(nil, getting(t, g, canEnd, "k"))
		return got
	})
	b.line(t, "hit in memstore", func(t *testing.T) spent {
		g := guardOn(t, memstore.New(memstore.Options{}), cacheguard.Near{})
		return spent{allocations(nil, getting(t, g, background, "k")), no, no}
	})
	b.line(t, "hit in memstore, with a context that can end", func(t *testing.T) spent {
		g := guardOn(t, memstore.New(memstore.Options{}), cacheguard.Near{})
		return spent{allocations(nil, getting(t, g, canEnd, "k")), no, no}
	})
	inRedis := func(what string, ctx context.Context) {
		b.line(t, what, func(t *testing.T) spent {
			w := newWire(t)
			got := w.count.sent(getting(t, guardOn(t, w.store, cacheguard.Near{}), ctx, "k"))
			got.allocs = allocations(w.bareGet(t), getting(t, w.uncounted(t), ctx, "k"))
			return got
		})
	}
	inRedis("hit in Redis", background)
	inRedis("hit in Redis, with a context that can end", canEnd)
	b.line(t, "hit in Redis of one hot key, 32 goroutines", func(t *testing.T) spent {
		w := newWire(t)
		get, bare := getting(t, w.uncounted(t), background, "k"), w.bareGet(t)
		const each = 200
		return spent{(allocatedBy(32, each, get) - allocatedBy(32, each, bare)) / (32 * each), no, no}
	})
	b.line(t, "100 who come while a read of their key is under way", func(t *testing.T) spent { return shared(t, false) })
	b.line(t, "100 who come while a key that is stale is read: claim, fill", func(t *testing.T) spent { return shared(t, true) })
}

// allocatedBy is how often n goroutines allocate that make so many calls each.
func allocatedBy(n, each int, call func()) float64 {
	call()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			for range each {
				call()
			}
		})
	}
	all.Wait()
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs - before.Mallocs)
}

// gated is a store whose reads wait for the gate. Calls are counted.
type gated struct {
	store.Store
	sent atomic.Int64
	gate chan struct{}
}

func (s *gated) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	s.sent.Add(1)
	<-s.gate
	return s.Store.Load(ctx, key)
}

func (s *gated) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	s.sent.Add(1)
	return s.Store.Claim(ctx, c)
}

func (s *gated) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	s.sent.Add(1)
	return s.Store.Fill(ctx, g, c)
}

// shared counts the calls that are made for callers who find a read under way: in
// a bubble, where it is certain that all of them have come before it ends.
func shared(t *testing.T, stale bool) (got spent) {
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		close(open)
		s := &gated{Store: memstore.New(memstore.Options{}), gate: open}
		g := guardLiving(t, s, cacheguard.Near{}, cacheguard.Lifetime{TTL: time.Hour, Grace: time.Hour})
		get := getting(t, g, t.Context(), "k")
		if stale {
			if err := g.Expire(t.Context(), "k"); err != nil {
				t.Fatal(err)
			}
		}
		s.gate = make(chan struct{})
		var all sync.WaitGroup
		all.Go(get)
		synctest.Wait()
		before := s.sent.Load()
		for range 100 {
			all.Go(get)
		}
		synctest.Wait()
		close(s.gate)
		all.Wait()
		synctest.Wait()
		got = spent{no, float64(s.sent.Load() - before), no}
	})
	return got
}

func misses(t *testing.T, b *budgeting) {
	ctx := context.Background()
	b.line(t, "miss: read, claim, fill", func(t *testing.T) spent {
		w := newWire(t)
		got := w.count.sent(getting(t, guardOn(t, w.store, cacheguard.Near{}), ctx, "miss"))
		n := 0
		key := func() string { n++; return strconv.Itoa(1e6 + n) } // all of one length
		g, load := w.uncounted(t), loads(kib)
		misses := func() {
			if _, err := g.Get(ctx, key(), load); err != nil {
				t.Error(err)
			}
		}
		got.allocs = allocations(func() {
			key := key()
			if err := w.bare.Get(ctx, key).Err(); err != redis.Nil {
				t.Error(err)
			}
			if err := w.bare.Set(ctx, key, kib, time.Hour).Err(); err != nil {
				t.Error(err)
			}
		}, misses)
		return got
	})
	b.line(t, "miss of 256 KiB", func(t *testing.T) spent {
		w := newWire(t)
		g := guardOn(t, w.store, cacheguard.Near{})
		load := loads(make([]byte, 256<<10))
		return w.count.sent(func() {
			if _, err := g.Get(ctx, "large", load); err != nil {
				t.Error(err)
			}
		})
	})
	b.line(t, "load that fails: read, claim, release", func(t *testing.T) spent {
		w := newWire(t)
		g := guardOn(t, w.store, cacheguard.Near{})
		fails := func(key string) {
			_, err := g.Get(ctx, key, func(context.Context, string) ([]byte, error) { return nil, context.DeadlineExceeded })
			if err == nil {
				t.Error("it did not fail")
			}
		}
		fails("once") // the server learns the script
		return w.count.sent(func() { fails("again") })
	})
	many := func(what string, missing int) {
		b.line(t, what, func(t *testing.T) spent {
			w := newWire(t)
			g := guardOn(t, w.store, cacheguard.Near{})
			all := keys("many")[:100]
			get := func(keys []string) {
				if got, err := g.GetMany(ctx, keys, loadsMany(kib)); err != nil || len(got) != len(keys) {
					t.Error(len(got), err)
				}
			}
			get(all[missing:])
			got := w.count.sent(func() { get(all) })
			if missing > 0 {
				got.trips = no // the flights wait for each other's claims and fills, but not for long
			}
			return got
		})
	}
	many("GetMany of 100, all there", 0)
	many("GetMany of 100, half of them missing", 50)
}

func writes(t *testing.T, b *budgeting) {
	ctx := context.Background()
	for _, c := range []struct {
		what string
		run  func(g *bytesGuard) error
	}{
		{"Set", func(g *bytesGuard) error { return g.Set(ctx, "k", kib) }},
		{"Set of 256 KiB", func(g *bytesGuard) error { return g.Set(ctx, "k", make([]byte, 256<<10)) }},
		{"Invalidate", func(g *bytesGuard) error { return g.Invalidate(ctx, "k") }},
		{"Invalidate of 100 keys", func(g *bytesGuard) error { return g.Invalidate(ctx, keys("k")[:100]...) }},
		{"Expire", func(g *bytesGuard) error { return g.Expire(ctx, "k") }},
		{"Update", func(g *bytesGuard) error {
			_, err := g.Update(ctx, "k", func(context.Context) ([]byte, error) { return kib, nil })
			return err
		}},
		{"Refresh", func(g *bytesGuard) error { _, err := g.Refresh(ctx, "k", loads(kib)); return err }},
	} {
		b.line(t, c.what, func(t *testing.T) spent {
			w := newWire(t)
			g := guardOn(t, w.store, cacheguard.Near{})
			if err := c.run(g); err != nil { // the server learns the script
				t.Error(err)
			}
			return w.count.sent(func() {
				if err := c.run(g); err != nil {
					t.Error(err)
				}
			})
		})
	}
	b.line(t, "renewal of 100 leases that are due together", func(t *testing.T) spent {
		w := newWire(t)
		var all []store.Renewal
		for _, key := range keys("leased")[:100] {
			v, err := w.store.Claim(ctx, store.Claim{Key: store.Key{Space: "s", ID: key}, Holder: "p/1", Length: time.Minute, Keep: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, store.Renewal{Grant: v.Grant, Length: time.Minute})
		}
		renew := func() {
			if errs := w.store.Renew(ctx, all); errs != nil {
				t.Error(errs)
			}
		}
		renew()
		return w.count.sent(renew)
	})
}

func fleet(t *testing.T, b *budgeting) {
	following := func(what string, size int) {
		b.line(t, what, func(t *testing.T) spent {
			w := newWire(t)
			holder := guardOn(t, w.store, cacheguard.Near{})
			count, s := w.connect(t)
			return spent{no, float64(follows(t, holder, guardOn(t, s, cacheguard.Near{}), count, make([]byte, size))), no}
		})
	}
	following("follower of a small value: read, claim", 1<<10)
	following("follower of a larger value: read, claim, read", 16<<10)
	b.line(t, "guard without work, each second", idle)
}

// follows lets follower wait for a value that holder loads, and returns how many
// commands it has sent.
func follows(t *testing.T, holder, follower *bytesGuard, count *counter, value []byte) int {
	const key = "cold"
	loading, end := make(chan struct{}), make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() {
		_, err := holder.Get(context.Background(), key, func(context.Context, string) ([]byte, error) {
			close(loading)
			<-end
			return value, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-loading
	commands, answered := count.commands.Load(), count.answered.Load()
	all.Go(getting(t, follower, context.Background(), key))
	for count.answered.Load() < answered+2 { // the read and the claim
		time.Sleep(time.Millisecond)
	}
	close(end)
	all.Wait()
	return int(count.commands.Load() - commands)
}

// idle is how many commands a guard sends, by the server's own count, that has
// nothing to do.
func idle(t *testing.T) spent {
	w := newWire(t)
	guardOn(t, w.store, cacheguard.Near{})
	processed := func() (n float64) {
		info, err := w.bare.Info(t.Context(), "stats").Result()
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(info) {
			_, _ = fmt.Sscanf(line, "total_commands_processed:%g", &n)
		}
		return n
	}
	// The subscription is asked whether it lives when it has been silent for
	// 1.5 s: twice in this time, and perhaps a third time just at its end.
	const while = 3 * time.Second
	before, began := processed(), time.Now()
	time.Sleep(while)
	return spent{no, (processed() - before - 1) / time.Since(began).Seconds(), no}
}

func overHTTP(t *testing.T, b *budgeting) {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "max-age=3600")
		_, _ = w.Write(kib)
	})
	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{Near: cacheguard.Near{MaxEntries: 10, TTL: time.Hour}})
	if err != nil {
		t.Fatal(err)
	}
	defer pages.Close()
	serve := func(h http.Handler, header ...string) func() {
		r := httptest.NewRequest(http.MethodGet, "http://budget.test/products/1", nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return func() { h.ServeHTTP(&nowhere{make(http.Header)}, r) }
	}
	b.line(t, "HTTP: hit in the near cache", func(t *testing.T) spent {
		return spent{allocations(serve(handler), serve(pages.Handler(handler))), no, no}
	})
	b.line(t, "HTTP: request that is passed by", func(t *testing.T) spent {
		return spent{allocations(serve(handler), serve(pages.Handler(handler), "Cookie", "session=1")), no, no}
	})
}
