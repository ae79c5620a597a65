package main

import (
	"strings"
	"testing"
	"time"
)

func TestARedisIsReachedThroughAProxyAsItWasGiven(t *testing.T) {
	for where, want := range map[string][2]string{
		"127.0.0.1:6379":                  {"127.0.0.1:6379", "proxy:1"},
		"redis://user:secret@host:7000/3": {"host:7000", "redis://user:secret@proxy:1/3"},
		"redis://host/0":                  {"host:6379", "redis://proxy:1/0"},
	} {
		target, through, err := redisThrough(where)
		if err != nil || target != want[0] || through("proxy:1") != want[1] {
			t.Errorf("%s: %s, %v", where, target, err)
		}
	}
	for _, where := range []string{"a:1,b:2", "rediss://host:1", "unix:///var/run/redis.sock"} {
		if _, _, err := redisThrough(where); err == nil || !strings.Contains(err.Error(), "use one server without TLS") {
			t.Errorf("%s: %v, want what to write instead", where, err)
		}
	}
}

func soakOf(samples int, growth float64) tally {
	s := new(soaked)
	for i := range samples {
		x := float64(i) * growth
		s.samples = append(s.samples, size{goroutines: 100 + x, heap: 10 << 20, files: 50, keys: 500, connections: 10})
	}
	return tally{scenario: soak, opts: options{replicas: 2}, rounds: []round{{soaked: s}}}
}

func TestASoakThatGrowsIsNoticed(t *testing.T) {
	for _, c := range []struct {
		samples int
		growth  float64
		want    verdict
	}{
		{40, 0, verdict{Judged: true, Kept: true}},
		{40, 1, verdict{Judged: true, Kept: true}}, // 30 goroutines in two processes are noise
		{40, 5, verdict{Judged: true}},
		{11, 0, verdict{}},
	} {
		got := noGrowth.judge(soakOf(c.samples, c.growth))
		if got.Judged != c.want.Judged || got.Kept != c.want.Kept {
			t.Errorf("%d samples that grow by %v: %+v", c.samples, c.growth, got)
		}
	}
}

func TestTheLoadsOfAFailingOriginAreBoundedByTheCooldown(t *testing.T) {
	of := func(loads int64) verdict {
		return fewFailedLoads.judge(tally{rounds: []round{{failing: &failing{lasted: 2500 * time.Millisecond, absent: loads}}}})
	}
	if v := of(8); !v.Kept {
		t.Errorf("two loads in each of four cooldowns: %+v", v)
	}
	if v := of(9); v.Kept || !v.Judged {
		t.Errorf("nine loads in 2.5 s: %+v", v)
	}
}

func TestOutagePromisesAreBrokenByWhatTheyForbid(t *testing.T) {
	seen := func(o outage) tally {
		return tally{opts: options{replicas: 2}, rounds: []round{{outage: &o, recovery: time.Second}}}
	}
	for name, c := range map[string]struct {
		p    promise
		good outage
		bad  outage
	}{
		"two loads at once in a process": {boundedLoads, outage{atOnce: 2, most: 4}, outage{atOnce: 3, most: 4}},
		"three loads in a storm":         {boundedLoads, outage{atOnce: 1, most: 2}, outage{atOnce: 1, most: 5}},
		"a burst afterwards":             {noLoadAfter(1), outage{after: 1}, outage{after: 2}},
	} {
		if v := c.p.judge(seen(c.good)); !v.Kept {
			t.Errorf("%s: %+v for what is allowed", name, v)
		}
		if v := c.p.judge(seen(c.bad)); v.Kept || !v.Judged {
			t.Errorf("%s: %+v", name, v)
		}
	}
	late := seen(outage{})
	late.rounds[0].recovery = 3 * time.Second
	if v := soonNormal.judge(late); v.Kept {
		t.Errorf("normal after 3 s: %+v", v)
	}
}
