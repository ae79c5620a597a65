package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/redis/go-redis/v9"
)

// soak: readers, writers and rebuilds for a long time. In the end everything is
// as large as in the beginning.
var soak = scenario{
	name:  "soak",
	about: "all callers read and write products that expire all the time, for as long as -duration says; only when it is named",
	apart: true,
	once:  true,
	lifetime: func(time.Duration) (ttl, grace time.Duration) {
		return 2 * time.Second, 2 * time.Second
	},
	round:    soakRound,
	promises: []promise{noGrowth, noOldValue, rightAnswers},
}

const (
	soakProducts = 500
	soakReadRate = 1000 // of all callers, a second
	soakWriteGap = 50 * time.Millisecond
	soakSamples  = 60 // in all; not more than one a second
)

// size is how large the fleet and its Redis are at a moment.
type size struct {
	goroutines, heap, files float64 // of all processes
	keys, connections       float64 // of Redis
}

// sizes are the names of the parts of a size, how much of one counts as noise,
// and how to read it.
var sizes = []struct {
	name  string
	share float64 // of it
	plus  float64 // and so much more for each process
	of    func(size) float64
}{
	{"goroutines", 0.25, 20, func(s size) float64 { return s.goroutines }},
	{"bytes of heap", 0.5, 8 << 20, func(s size) float64 { return s.heap }},
	{"open files", 0.25, 20, func(s size) float64 { return s.files }},
	{"keys in Redis", 0.25, 20, func(s size) float64 { return s.keys }},
	{"connections to Redis", 0.25, 20, func(s size) float64 { return s.connections }},
}

// soaked is what a soak brought.
type soaked struct {
	samples []size
}

func soakRound(ctx context.Context, sh *show, n int) (r round, err error) {
	r = round{key: sh.key(n), staleFor: true, soaked: new(soaked)}
	keys := make([]string, soakProducts)
	known := make([]atomic.Int64, soakProducts) // newest version whose write was answered
	for i := range keys {
		keys[i] = fmt.Sprintf("%s-%d", r.key, i)
		sh.origin.create(keys[i])
		known[i].Store(1)
	}
	sh.origin.create(r.key)

	soaking, cancel := context.WithTimeout(ctx, sh.opts.duration)
	defer cancel()
	parts := make([]round, len(sh.callers))
	var wg sync.WaitGroup
	for i, c := range sh.callers {
		wg.Go(func() { parts[i] = sh.soakReads(soaking, c, keys, known) })
	}
	var failedWrites atomic.Int64
	for i, replica := range sh.fleet.replicas {
		wg.Go(func() { failedWrites.Add(sh.soakWrites(soaking, replica, i, keys, known)) })
	}
	err = sh.sample(soaking, r.soaked)
	cancel()
	wg.Wait()
	for _, part := range parts {
		r.add(part)
	}
	r.errors += failedWrites.Load()
	return r, err
}

// soakReads reads products until ctx ends. It keeps of each answer only how long
// it took.
func (sh *show) soakReads(ctx context.Context, c *caller, keys []string, known []atomic.Int64) (part round) {
	think := time.Duration(len(sh.callers)) * time.Second / soakReadRate
	zipf := rand.NewZipf(rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())), zipfS, 1, uint64(len(keys)-1))
	for pause(ctx, rand.N(2*think)) == nil {
		i := zipf.Uint64()
		oldest := known[i].Load()
		a := c.get(context.WithoutCancel(ctx), productPath(keys[i]))
		one := round{key: keys[i], answers: []answer{a}}
		one.judge(oldest, sh.origin.version(keys[i]))
		one.answers = []answer{{latency: a.latency, err: a.err}}
		part.add(one)
	}
	return part
}

// soakWrites writes products through one process, each of which is written
// through no other. It returns how many writes failed.
func (sh *show) soakWrites(ctx context.Context, r *replica, which int, keys []string, known []atomic.Int64) (failed int64) {
	mine := (len(keys) - 1 - which) / len(sh.fleet.replicas)
	for pause(ctx, rand.N(2*soakWriteGap)) == nil {
		i := which + rand.IntN(mine+1)*len(sh.fleet.replicas)
		if sh.write(context.WithoutCancel(ctx), r, keys[i], &known[i]) != nil {
			failed++
		}
	}
	return failed
}

// sample measures until ctx ends, which is in order.
func (sh *show) sample(ctx context.Context, s *soaked) error {
	client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: strings.Split(sh.redis.addr, ",")})
	if strings.Contains(sh.redis.addr, "://") {
		opt, err := redis.ParseURL(sh.redis.addr)
		if err != nil {
			return err
		}
		client = redis.NewClient(opt)
	}
	defer client.Close()
	gap := max(sh.opts.duration/soakSamples, 500*time.Millisecond)
	begin := time.Now()
	for pause(ctx, gap) == nil {
		one, err := sh.sizeNow(context.WithoutCancel(ctx), client)
		if err != nil {
			return fmt.Errorf("measuring: %w", err)
		}
		s.samples = append(s.samples, one)
		sh.progress.say(fmt.Sprintf("soak, mode %s: %v of %v", sh.mode, time.Since(begin).Round(time.Second), sh.opts.duration))
	}
	return nil
}

func (sh *show) sizeNow(ctx context.Context, client redis.UniversalClient) (s size, err error) {
	for _, r := range sh.fleet.replicas {
		page, err := sh.fleet.fetch(ctx, r, "/metrics")
		if err != nil {
			return s, err
		}
		parser := expfmt.NewTextParser(model.LegacyValidation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(page))
		if err != nil {
			return s, err
		}
		for name, sum := range map[string]*float64{"go_goroutines": &s.goroutines, "go_memstats_heap_alloc_bytes": &s.heap, "process_open_fds": &s.files} {
			for _, m := range families[name].GetMetric() {
				*sum += m.GetGauge().GetValue()
			}
		}
	}
	keys, err := client.DBSize(ctx).Result()
	if err != nil {
		return s, err
	}
	s.keys = float64(keys)
	// An embedded Redis does not say.
	info, _ := client.Info(ctx, "clients").Result()
	for line := range strings.Lines(info) {
		if n, ok := strings.CutPrefix(line, "connected_clients:"); ok {
			fmt.Sscan(n, &s.connections)
		}
	}
	return s, nil
}

var noGrowth = promise{
	name: "flat", text: "nothing grows: goroutines, heap, files, keys in Redis, connections to it",
	judge: func(t tally) verdict {
		samples := t.rounds[0].soaked.samples
		quarter := len(samples) / 4
		if quarter < minSamples {
			return verdict{Why: fmt.Sprintf("%d samples are too few", len(samples))}
		}
		// The first quarter is for what is opened on first use.
		early, late := samples[quarter:2*quarter], samples[len(samples)-quarter:]
		var seen, grown []string
		for _, part := range sizes {
			from, to := least(early, part.of), least(late, part.of)
			text := fmt.Sprintf("%s %.0f to %.0f", part.name, from, to)
			seen = append(seen, text)
			if to > from*(1+part.share)+part.plus*float64(t.opts.replicas) {
				grown = append(grown, text)
			}
		}
		if len(grown) > 0 {
			return kept(false, "grown: %s", strings.Join(grown, ", "))
		}
		return kept(true, "%s", strings.Join(seen, ", "))
	},
}

const minSamples = 3 // in a quarter

// least is the smallest of some values: what is there at all times, without
// what comes and goes (a heap before its collection).
func least(samples []size, of func(size) float64) float64 {
	values := make([]float64, len(samples))
	for i, s := range samples {
		values[i] = of(s)
	}
	return slices.Min(values)
}
