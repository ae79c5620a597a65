package cacheguard

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func TestEarly(t *testing.T) {
	const s = time.Second
	e1 := 1 - 1/math.E // its -ln(1-draw) is one
	for _, c := range []struct {
		name       string
		beta       float64
		cost, left time.Duration
		draw       float64
		want       bool
	}{
		{"off", -1, s, 1, 0.999, false},
		{"unknown cost", 1, 0, s, 0.999, false},
		{"nonsense cost", 1, -s, s, 0.999, false},
		{"stale already", 1, s, 0, 0.999, false},
		{"lowest draw", 1, s, 1, 0, false},
		{"one cost before the end, just", 1, s, s, e1 + 1e-9, true},
		{"one cost before the end, just not", 1, s, s, e1 - 1e-9, false},
		{"beta counts", 2, s, 2 * s, e1 + 1e-9, true},
		{"beta counts the other way", 0.5, s, s, e1 + 1e-9, false},
		{"highest draw", 1, s, 36 * s, math.Nextafter(1, 0), true},
		{"far away", 1, s, 38 * s, math.Nextafter(1, 0), false},
		{"no overflow", 1000, math.MaxInt64, math.MaxInt64, 0.5, true},
	} {
		if got := early(c.beta, c.cost, c.left, c.draw); got != c.want {
			t.Errorf("%s: early(%v, %v, %v, %v) = %t", c.name, c.beta, c.cost, c.left, c.draw, got)
		}
	}
}

// The probability at a distance from the end is exp(-left / (beta * cost)).
func TestEarlyFollowsXFetch(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	const draws = 100_000
	for _, beta := range []float64{0.5, 1, 3} {
		for _, costs := range []float64{0.1, 0.5, 1, 2, 5} {
			const cost = time.Second
			left := time.Duration(costs * float64(cost))
			n := 0
			for range draws {
				if early(beta, cost, left, rnd.Float64()) {
					n++
				}
			}
			p := math.Exp(-costs / beta)
			deviation := math.Sqrt(draws * p * (1 - p))
			if math.Abs(float64(n)-draws*p) > 5*deviation {
				t.Errorf("beta %v, %v costs before the end: %d of %d, want %.0f", beta, costs, n, draws, draws*p)
			}
		}
	}
}

func TestJittered(t *testing.T) {
	for _, c := range []struct {
		ttl         time.Duration
		share, draw float64
		want        time.Duration
	}{
		{time.Minute, 0.1, 0, time.Minute},
		{time.Minute, 0.1, 0.5, 57 * time.Second},
		{time.Minute, -1, 0.5, time.Minute},
		{time.Minute, 0, 0.5, time.Minute},
		{0, 0.1, 0.5, 0},
		{1, 0.99, 0.99, 1},
		{maxLife, 0.5, 0.5, maxLife * 3 / 4},
	} {
		if got := jittered(c.ttl, c.share, c.draw); got != c.want {
			t.Errorf("jittered(%v, %v, %v) = %v, want %v", c.ttl, c.share, c.draw, got, c.want)
		}
	}
	for range 10_000 {
		if d := jittered(time.Second, math.Nextafter(1, 0), math.Nextafter(1, 0)); d <= 0 || d > time.Second {
			t.Fatalf("a life of %v", d)
		}
	}
}

func TestLifetimeIsBounded(t *testing.T) {
	for _, c := range []struct{ life, want Lifetime }{
		{Lifetime{}, Lifetime{}},
		{Lifetime{time.Second, time.Minute}, Lifetime{time.Second, time.Minute}},
		{Lifetime{-1, -1}, Lifetime{}},
		{Lifetime{math.MinInt64, math.MaxInt64}, Lifetime{0, maxLife / 2}},
		{Lifetime{math.MaxInt64, math.MaxInt64}, Lifetime{maxLife / 2, maxLife / 2}},
	} {
		if got := c.life.bounded(); got != c.want {
			t.Errorf("%v.bounded() = %v, want %v", c.life, got, c.want)
		}
	}
}

func TestPollIntervals(t *testing.T) {
	g := &Guard[string]{}
	within := func(round int, low, high time.Duration) {
		t.Helper()
		for range 1000 {
			if d := g.pollInterval(round); d < low || d > high {
				t.Fatalf("round %d: %v, want %v to %v", round, d, low, high)
			}
		}
	}
	within(0, pollDeafMin*3/4, pollDeafMin*5/4+1)
	within(1, 2*pollDeafMin*3/4, 2*pollDeafMin*5/4+1)
	within(1000, pollDeafMax*3/4, pollDeafMax*5/4+1)
	g.hearing.Store(true)
	within(0, pollHearing*3/4, pollHearing*5/4+1)
	if longest := pollHearing * 5 / 4; handOverLife <= longest {
		t.Errorf("a hand-over lives %v, and the longest poll interval is %v", handOverLife, longest)
	}
}
