//go:build unix

package deploy_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// TestAlertsFireInTheirScenariosAndAreSilentOtherwise runs a real Prometheus
// against a fleet under load: first with nothing wrong, then through one
// trouble after the other. Each has to bring its alerts, and they have to end
// with it.
func TestAlertsFireInTheirScenariosAndAreSilentOtherwise(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes")
	}
	r := newRig(t)
	m := watchMachine(t)
	r.startStorm()
	t.Run("nothing is wrong", func(t *testing.T) { r.in(t).healthy(m) })
	// Loads of the list hang from now on, until they are cut after half a minute:
	// another guard's trouble, which goes along with the rest to save time.
	r.origin.hangs.Store(true)
	defer r.startLister()()

	for _, s := range []struct {
		name   string
		guard  string // "": products
		alerts []string
		begin  func(*rig)
		repeat func(*rig) // until the alerts fire; may be nil
		end    func(*rig)
	}{
		{
			name:   "loads take five times as long",
			alerts: []string{"CacheguardWaitGrows"},
			begin:  func(r *rig) { r.origin.takes(5 * ordinary) },
			end:    func(r *rig) { r.origin.takes(ordinary) },
		},
		{
			name:   "holders are paused",
			alerts: []string{"CacheguardLeaseTooShort", "CacheguardDuplicateLoads", "CacheguardFencedFills", "CacheguardPauses"},
			begin:  func(r *rig) { r.origin.takes(3 * ordinary) },
			repeat: (*rig).pauseHolder,
			end:    func(r *rig) { r.origin.takes(ordinary) },
		},
		{
			name:   "the origin fails",
			alerts: []string{"CacheguardOriginFails"},
			begin:  func(r *rig) { r.origin.fails.Store(true) },
			end:    func(r *rig) { r.origin.fails.Store(false) },
		},
		{
			name:   "the store hangs",
			alerts: []string{"CacheguardStoreAway", "CacheguardWritesPending", "CacheguardDeaf"},
			begin:  (*rig).pauseRedis,
			repeat: func(r *rig) { r.write(r.fleet[0], "hot-1") },
			end:    (*rig).resumeRedis,
		},
		{
			name:   "a load hangs",
			guard:  "product-lists",
			alerts: []string{"CacheguardGaveUpWaiting"},
			begin:  func(*rig) {},
			end:    func(*rig) { r.origin.hangs.Store(false) },
		},
	} {
		t.Run(s.name, func(t *testing.T) {
			r := r.in(t)
			guard := cmp.Or(s.guard, "products")
			s.begin(r)
			r.until(time.Minute, "some scrapes", func() bool { return r.scrapes() >= 5 })
			var seen []string
			begin := time.Now()
			all := r.until(90*time.Second, "all of "+strings.Join(s.alerts, ", ")+" have fired", func() bool {
				if s.repeat != nil {
					s.repeat(r)
				}
				seen = r.firedSince(begin, guard)
				return !slices.ContainsFunc(s.alerts, func(name string) bool { return !slices.Contains(seen, name) })
			})
			s.end(r)
			if !all {
				t.Fatalf("only %v have fired", seen)
			}
			r.until(2*time.Minute, "the alerts have ended", func() bool {
				return !slices.ContainsFunc(r.firing(guard), func(name string) bool { return slices.Contains(s.alerts, name) })
			})
		})
	}
}

// in is the rig for a part of the test.
func (r *rig) in(t testing.TB) *rig {
	part := &rig{t: t, origin: r.origin, redis: r.redis, fleet: r.fleet, prom: r.prom, client: r.client}
	part.ids.Store(r.ids.Load() + int64(len(t.Name()))<<32) // apart from those of the storm
	return part
}

// healthy looks at a fleet with which nothing is wrong.
func (r *rig) healthy(m *machine) {
	t := r.t
	if !r.until(2*time.Minute, "thirty scrapes", func() bool { return r.scrapes() >= 30 }) {
		return
	}
	for _, s := range r.query(`count by (alertname) (count_over_time(ALERTS{alertstate="firing"}[5m]))`) {
		// Something is wrong with a machine on which timers are late by what a
		// pause, a store's time-out or a lease's slack is made of.
		name, excuse := s.labels["alertname"], 100*time.Millisecond
		if name == "CacheguardPauses" {
			excuse = 50 * time.Millisecond
		}
		if late := m.late(); late > excuse {
			t.Logf("%s HAS FIRED, perhaps rightly: on this machine a timer was %v late", name, late)
		} else {
			t.Errorf("%s has fired, and nothing is wrong", name)
		}
	}
	if up := r.number(`sum(up)`); up != replicas {
		t.Errorf("%v processes answer scrapes, want %d", up, replicas)
	}
	for expr, least := range map[string]float64{
		`guard:cacheguard_hits:ratio5m{guard="products"}`:                           0.5,
		`guard:cacheguard_loads_avoided:ratio5m{guard="products"}`:                  0.5,
		`sum(cacheguard_loads_avoided_total{guard="products",by="process"})`:        1,
		`sum(cacheguard_loads_avoided_total{guard="products",by="fleet"})`:          1,
		`guard:cacheguard_callers_per_flight:ratio5m{guard="products"}`:             1,
		`guard:cacheguard_load_seconds:p99_5m{guard="products"}`:                    ordinary.Seconds() / 2,
		`max(cacheguard_lease_next_seconds{guard="products"})`:                      ordinary.Seconds(),
		`sum(cacheguard_answers_total{guard="products",state="fresh",via="store"})`: 1,
		`sum(cacheguard_answers_total{guard="products",state="followed"})`:          1,
		`sum(cacheguard_store_call_seconds_count{guard="products",op="claim"})`:     1,
		`sum(cacheguard_stale_answers_total{guard="products",reason="grace"})`:      1,
		`count(cacheguard_listening{guard="products"} == 1)`:                        replicas,
	} {
		if v := r.number(expr); !(v >= least) {
			t.Errorf("%s is %v, want at least %v", expr, v, least)
		}
	}
	r.until(time.Minute, "the loads that are counted are those that the origin has seen", func() bool {
		// Both go on: a load that is under way is counted by the origin alone.
		before := float64(r.origin.all())
		counted := r.number(`sum(cacheguard_loads_total{guard="products"})`)
		return counted <= float64(r.origin.all()) && counted > 0.8*before
	})
	r.dashboard()
	const took = `max(quantile_over_time(%s, scrape_duration_seconds[1m]))`
	t.Logf("a scrape took %.1f ms, and %.1f ms at most", 1000*r.number(fmt.Sprintf(took, "0.5")), 1000*r.number(fmt.Sprintf(took, "1")))
}

// dashboard runs every query of the dashboard.
func (r *rig) dashboard() {
	fill := strings.NewReplacer("$job", ".*", "$guard", ".*", "$__rate_interval", "20s")
	for _, q := range dashboardQueries(r.t) {
		if strings.Contains(q.expr, "cacheguard_http_") {
			continue // demo-api has no HTTP cache
		}
		if expr := fill.Replace(q.expr); len(r.query(expr)) == 0 {
			r.t.Errorf("panel %q is empty: %s", q.panel, expr)
		}
	}
}

func (r *rig) pauseRedis() {
	if err := r.redis.Pause(); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) resumeRedis() {
	if err := r.redis.Resume(); err != nil {
		r.t.Fatal(err)
	}
}

// pauseHolder stops a process while it loads, for longer than its leases last,
// until another has loaded the same, and lets it go on.
func (r *rig) pauseHolder() {
	// Each in its turn: a process takes the time that it was paused for load
	// time, and asks for longer leases then.
	r.paused++
	holder, other := r.fleet[r.paused%replicas], r.fleet[(r.paused+1)%replicas]
	ids := make([]string, 6)
	for i := range ids {
		ids[i] = r.newID()
	}
	var reads, others sync.WaitGroup
	for _, id := range ids {
		reads.Go(func() { r.read(r.t.Context(), holder, "/products/"+id) })
	}
	r.until(30*time.Second, "the holder loads", func() bool { return r.origin.loadsOf(ids) == len(ids) })
	if err := holder.Signal(syscall.SIGSTOP); err != nil {
		r.t.Fatal(err)
	}
	for _, id := range ids {
		others.Go(func() { r.read(r.t.Context(), other, "/products/"+id) })
	}
	others.Wait()
	if n := r.origin.loadsOf(ids); n != 2*len(ids) {
		r.t.Errorf("%d loads of %d products, want one more of each after its holder's lease has run out", n, len(ids))
	}
	if err := holder.Signal(syscall.SIGCONT); err != nil {
		r.t.Fatal(err)
	}
	reads.Wait()
}
