package tuning

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const limit = 30 * time.Second

// newTuner has a floor so low that it hides nothing of loads of 40 ms.
func newTuner(t *testing.T, c Config) *Tuner {
	t.Helper()
	if c.Min == 0 {
		c.Min = 5 * time.Millisecond
	}
	c, err := c.Resolve(limit)
	if err != nil {
		t.Fatal(err)
	}
	return New(c)
}

// The two readings of "40 +- 10 ms": evenly between 30 and 50, and with a
// deviation of 10.
var loads = map[string]func(*rand.Rand, time.Duration) time.Duration{
	"uniform": func(r *rand.Rand, mean time.Duration) time.Duration {
		return time.Duration(float64(mean) * (0.75 + r.Float64()/2))
	},
	"normal": func(r *rand.Rand, mean time.Duration) time.Duration {
		return max(0, time.Duration(float64(mean)*(1+r.NormFloat64()/4)))
	},
}

var p99 = map[string]float64{"uniform": 0.75 + 0.99/2, "normal": 1 + 2.326/4}

// within fails unless the lease is 1.2 to 3 times the true P99 or is the floor.
func within(t *testing.T, got, p99, floor time.Duration) {
	t.Helper()
	low, high := max(floor, p99*12/10), max(floor, p99*3)
	if got < low || got > high {
		t.Fatalf("length = %v; want %v to %v (true P99 %v)", got, low, high, p99)
	}
}

// rebuilds teaches n loads of the keys "0".."keys-1" in random order, with the
// cost that each key's entry then carries.
type rebuilds struct {
	rnd   *rand.Rand
	tuner *Tuner
	load  func(*rand.Rand, time.Duration) time.Duration
	cost  []time.Duration
}

func (b *rebuilds) run(n int, mean time.Duration) {
	for range n {
		k := b.rnd.IntN(len(b.cost))
		d := b.load(b.rnd, mean)
		b.tuner.Observe(d, b.cost[k])
		b.cost[k] = d
	}
}

func TestLengthFollowsAStepBothWays(t *testing.T) {
	for name, load := range loads {
		for _, keys := range []int{1, 10, 1000} {
			for _, floor := range []time.Duration{5 * time.Millisecond, DefaultMin} {
				t.Run(fmt.Sprintf("%s/%d keys/floor %v", name, keys, floor), func(t *testing.T) {
					for seed := range uint64(2) {
						b := rebuilds{rand.New(rand.NewPCG(seed, 1)), newTuner(t, Config{Min: floor}), load, make([]time.Duration, keys)}
						low := time.Duration(p99[name] * float64(40*time.Millisecond))
						b.run(100, 40*time.Millisecond)
						within(t, b.tuner.Length(0), low, floor)

						b.run(30, 400*time.Millisecond)
						// A lease that covers the slowest load of the new kind twice.
						if got := b.tuner.Length(0); got < 600*time.Millisecond || got > 1900*time.Millisecond {
							t.Fatalf("seed %d: length = %v thirty rebuilds after the step up", seed, got)
						}
						b.run(60, 40*time.Millisecond)
						within(t, b.tuner.Length(0), low, floor)
					}
				})
			}
		}
	}
}

func TestLengthOfAManyKeyStepIsTheNewQuantile(t *testing.T) {
	b := rebuilds{rand.New(rand.NewPCG(1, 1)), newTuner(t, Config{}), loads["normal"], make([]time.Duration, 1000)}
	b.run(100, 40*time.Millisecond)
	b.run(30, 400*time.Millisecond)
	within(t, b.tuner.Length(0), 633*time.Millisecond, 0)
}

func TestSlowKeyDoesNotLengthenTheLeasesOfOthers(t *testing.T) {
	const slowLoad = 2 * time.Second
	// share: how many of ten rebuilds are of the slow key.
	for _, share := range []int{1, 5, 7} {
		t.Run(fmt.Sprintf("%d in 10", share), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(uint64(share), 2))
			tuner := newTuner(t, Config{})
			others := rebuilds{rnd, tuner, loads["uniform"], make([]time.Duration, 100)}
			others.run(60, 40*time.Millisecond)
			slowKey := rebuilds{rnd, tuner, loads["uniform"], make([]time.Duration, 1)}
			for range 250 {
				if rnd.IntN(10) < share {
					slowKey.run(1, slowLoad)
				} else {
					others.run(1, 40*time.Millisecond)
				}
				within(t, tuner.Length(others.cost[0]), 50*time.Millisecond, 0)
				if c := slowKey.cost[0]; c > 0 && tuner.Length(c) < 2*c-time.Microsecond {
					t.Fatalf("slow key that cost %v gets a lease of %v", c, tuner.Length(c))
				}
			}
		})
	}
}

func TestSlowKeyThatComesFirstIsForgotten(t *testing.T) {
	tuner := newTuner(t, Config{})
	tuner.Observe(2*time.Second, 0)
	if got := tuner.Length(0); got < 4*time.Second {
		t.Fatalf("length = %v after one load of 2 s", got)
	}
	for range 3 {
		tuner.Observe(40*time.Millisecond, 0)
		tuner.Observe(2*time.Second, 2*time.Second)
	}
	within(t, tuner.Length(0), 40*time.Millisecond, 0)
}

func TestManySlowKeysAreTheRule(t *testing.T) {
	tuner := newTuner(t, Config{})
	for range 50 { // each key's first load: nothing is known of it
		tuner.Observe(40*time.Millisecond, 0)
		tuner.Observe(time.Second, 0)
	}
	if got := tuner.Length(0); got < 2*time.Second {
		t.Fatalf("length = %v where half of the keys take 1 s", got)
	}
}

func TestOneHiccupIsNotATrend(t *testing.T) {
	tuner := newTuner(t, Config{})
	for range 50 {
		tuner.Observe(40*time.Millisecond, 0)
	}
	tuner.Observe(10*time.Second, 0)
	within(t, tuner.Length(0), 40*time.Millisecond, 0)
	tuner.Observe(10*time.Second, 0)
	if got := tuner.Length(0); got < 10*time.Second {
		t.Fatalf("length = %v after two loads of 10 s", got)
	}
}

func TestLengthBeforeAnyMeasurement(t *testing.T) {
	tuner := newTuner(t, Config{})
	if got := tuner.Length(0); got != DefaultInitial {
		t.Errorf("Length(0) = %v, want %v", got, DefaultInitial)
	}
	// A fresh process starts calibrated: the entry says what the load takes.
	if got := tuner.Length(40 * time.Millisecond); got != 80*time.Millisecond {
		t.Errorf("Length(40ms) = %v, want 80ms", got)
	}
}

func TestCostLengthensAndNeverShortens(t *testing.T) {
	tuner := newTuner(t, Config{})
	for range 50 {
		tuner.Observe(100*time.Millisecond, 0)
	}
	base := tuner.Length(0)
	if got := tuner.Length(time.Millisecond); got != base {
		t.Errorf("Length(1ms) = %v, want %v as for an unknown cost", got, base)
	}
	if got := tuner.Length(time.Second); got != 2*time.Second {
		t.Errorf("Length(1s) = %v, want 2s", got)
	}
	if got := tuner.Length(0); got != base {
		t.Errorf("Length(0) = %v after asking for a slow key, want %v", got, base)
	}
}

func TestLengthStaysBetweenFloorAndCeiling(t *testing.T) {
	extremes := []time.Duration{math.MinInt64, -1, 0, 1, time.Millisecond, time.Hour, math.MaxInt64}
	tuner := newTuner(t, Config{Min: 100 * time.Millisecond, Max: 5 * time.Second, Headroom: maxHeadroom, Quantile: 1})
	for _, d := range extremes {
		for _, known := range extremes {
			tuner.Observe(d, known)
			for _, cost := range extremes {
				if got := tuner.Length(cost); got < 100*time.Millisecond || got > 5*time.Second {
					t.Fatalf("after Observe(%v, %v): Length(%v) = %v", d, known, cost, got)
				}
			}
		}
	}
}

func TestQuantileOfTheWindowIsTheNearestValueBelow(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
		tuner := newTuner(t, Config{Quantile: q, Headroom: 1})
		var window []time.Duration
		for range sections * perSection {
			d := time.Duration(rnd.Int64N(int64(10 * time.Second)))
			tuner.Observe(d, 0)
			window = append(window, d)
		}
		slices.Sort(window)
		want := max(window[quantileRank(q, int64(len(window)))-1], 5*time.Millisecond)
		if got := tuner.Length(0); got < want || float64(got) > 1.01*float64(want) {
			t.Errorf("quantile %v: length = %v, want %v and at most a hundredth more", q, got, want)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	tuner := newTuner(t, Config{})
	var users sync.WaitGroup
	for range 8 {
		users.Go(func() {
			for i := range 100 {
				tuner.Observe(time.Duration(i)*time.Millisecond, 0)
				if got := tuner.Length(0); got < 5*time.Millisecond || got > limit {
					t.Errorf("length = %v", got)
				}
			}
		})
	}
	users.Wait()
}

func TestResolveFillsInZeroes(t *testing.T) {
	for _, c := range []struct {
		limit time.Duration
		want  Config
	}{
		{30 * time.Second, Config{3 * time.Second, 250 * time.Millisecond, 30 * time.Second, 0.99, 2}},
		{time.Second, Config{time.Second, 250 * time.Millisecond, time.Second, 0.99, 2}},
		{100 * time.Millisecond, Config{100 * time.Millisecond, 100 * time.Millisecond, 100 * time.Millisecond, 0.99, 2}},
	} {
		if got, err := (Config{}).Resolve(c.limit); err != nil || got != c.want {
			t.Errorf("limit %v: %+v, %v; want %+v", c.limit, got, err, c.want)
		}
	}
}

func TestResolveSaysWhatToWriteInstead(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Max: 31 * time.Second}, "lease Max is 31s: must be above 0 and at most the limit of one load or hold, 30s"},
		{Config{Max: -1}, "lease Max"},
		{Config{Min: -1}, "lease Min"},
		{Config{Min: 2 * time.Second, Max: time.Second}, "lease Min is 2s: must be above 0 and at most Max, 1s"},
		{Config{Initial: time.Millisecond}, "lease Initial is 1ms: must lie between Min, 250ms, and Max, 30s"},
		{Config{Initial: time.Minute}, "lease Initial"},
		{Config{Quantile: 99}, "lease Quantile is 99: must be above 0 and at most 1, such as 0.99"},
		{Config{Quantile: math.NaN()}, "lease Quantile"},
		{Config{Headroom: 0.5}, "lease Headroom"},
		{Config{Headroom: math.Inf(1)}, "lease Headroom"},
	} {
		if _, err := c.cfg.Resolve(limit); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v; want one with %q", c.cfg, err, c.want)
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	cfg, err := (Config{}).Resolve(limit)
	if err != nil {
		b.Fatal(err)
	}
	tuner := New(cfg)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		tuner.Observe(time.Duration(i%100)*time.Millisecond, 0)
	}
}

func BenchmarkLength(b *testing.B) {
	cfg, err := (Config{}).Resolve(limit)
	if err != nil {
		b.Fatal(err)
	}
	tuner := New(cfg)
	tuner.Observe(40*time.Millisecond, 0)
	b.ReportAllocs()
	for b.Loop() {
		tuner.Length(50 * time.Millisecond)
	}
}
