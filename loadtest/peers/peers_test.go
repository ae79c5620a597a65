package main

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(envStrategy); name != "" { // this binary is a worker too
		exit(work(name))
	}
	os.Exit(m.Run())
}

func newTestStage(t *testing.T) *stage {
	server := redistest.Start(t)
	st, err := newStage(server.Addr, newProgress(t.Output(), 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func TestEachStrategyAnswersWithWhatTheOriginHas(t *testing.T) {
	st := newTestStage(t)
	for _, s := range strategies {
		t.Run(s.name, func(t *testing.T) {
			f, err := st.start(t.Context(), s, 2)
			if err != nil {
				t.Fatal(err)
			}
			defer f.stop()
			keys := f.make("test", 3, 5*time.Millisecond)
			read := func() []int {
				t.Helper()
				replies, err := on[KeysArgs, ReadReply](t.Context(), f.workers[:1], "Read", KeysArgs{keys})
				if err != nil {
					t.Fatal(err)
				}
				return replies[0].Versions
			}
			for _, want := range []int{1, 2} {
				if want == 2 {
					await(t, s, read)
				}
				// Twice: the second is a hit.
				for range 2 {
					if got := read(); slices.ContainsFunc(got, func(v int) bool { return v != want }) {
						t.Fatalf("versions %v, want %d", got, want)
					}
				}
				if want == 1 && len(f.loads(keys[0])) != 1 {
					t.Fatalf("%d loads for two reads", len(f.loads(keys[0])))
				}
				settle(t, s, st.redis, keys)
				for _, key := range keys {
					f.write(key)
				}
				if _, err := on[KeysArgs, struct{}](t.Context(), f.workers[:1], "Delete", KeysArgs{keys}); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// settle waits for what a strategy writes after it has answered, by its design:
// sturdyc its values, and a delete that comes before them leaves them there. The
// others get no such grace.
func settle(t *testing.T, s strategy, addr string, keys []string) {
	t.Helper()
	if s.name != sturdycRedis.name {
		return
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	for deadline := time.Now().Add(10 * time.Second); ; {
		n, err := client.Exists(t.Context(), keys...).Result()
		if err != nil {
			t.Fatal(err)
		}
		if n == int64(len(keys)) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("10 s after the answers %d of %d values are stored", n, len(keys))
		}
	}
}

// await reads past what a strategy answers of old values right after a delete,
// by its design: rockscache what was deleted, while it loads, and the two on
// rueidis what is in their memory, until the connection has brought what Redis
// says of it, which comes after the answer to the delete. The others get no such
// grace.
func await(t *testing.T, s strategy, read func() []int) {
	t.Helper()
	if s.name != rocksCache.name && s.name != rueidisLock.name && s.name != placeholder.name {
		return
	}
	for deadline := time.Now().Add(10 * time.Second); slices.Contains(read(), 1); {
		if time.Now().After(deadline) {
			t.Fatal("what was deleted is still read 10 s later")
		}
	}
}

// What the tables claim of this library is checked with few storms; how fast it
// was is not.
func TestTheGuardKeepsItsPromisesBesideItsPeers(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	_ = redistest.Start(t) // or skip
	o, err := parseFlags([]string{"-short", "-only", "cacheguard"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	rep, err := compare(t.Context(), o, newProgress(t.Output(), 0))
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Sections) != len(sections) {
		t.Fatalf("%d of %d sections came to their end: %v", len(rep.Sections), len(sections), rep.Sections)
	}
	checkPromises(t, rep.of(guarded), o)
	checkWhatAllUse(t, rep)
	checkPage(t, rep.page())
}

func checkPromises(t *testing.T, res *result, o options) {
	t.Helper()
	if len(res.Missing) > 0 || len(res.Storms) != len(shapes) {
		t.Fatalf("%d of %d shapes; missing: %v", len(res.Storms), len(shapes), res.Missing)
	}
	for _, s := range res.Storms {
		if slices.Min(s.Loads) != 1 || slices.Max(s.Loads) != 1 || s.Errors+s.Wrong != 0 {
			t.Errorf("%v: loads %v, %d errors, %d wrong; want one load", s.Shape, s.Loads, s.Errors, s.Wrong)
		}
	}
	if f := res.Faults; f.StopStale+f.DeleteStale+f.ReadStale+f.LateStale != 0 || f.StopKeys == 0 || f.DeleteKeys == 0 || f.ReadKeys == 0 || f.LateReads == 0 {
		t.Errorf("old values: %+v", *f)
	}
	if s := res.Slow; s.Loads != 1 || s.Failed != 0 || s.Calls == 0 {
		t.Errorf("loads that outlast a lock: %+v, want one", *s)
	}
	if f := res.Failing; f.OnceLoads == 0 || f.OnceLoads > 2 || f.OnceCallers != crowd*crowdCallers {
		t.Errorf("a load that fails, all callers at once: %+v, want at most two loads", *f)
	}
	if n := res.Failing.Loads; n == 0 || n > 2*(int(o.failFor/time.Second)+1) {
		t.Errorf("%d loads of a key that fails in %v, want at most two a second", n, o.failFor)
	}
	if res.Outage.Failed > 0 {
		t.Errorf("%d of %d calls got no value while Redis was stopped", res.Outage.Failed, res.Outage.Calls)
	}
}

// checkWhatAllUse: what was measured of Redis and clients was measured.
func checkWhatAllUse(t *testing.T, rep report) {
	t.Helper()
	if len(rep.Wake) != len(ways) {
		t.Errorf("%d of %d ways to wake", len(rep.Wake), len(ways))
	}
	for _, w := range rep.Wake {
		if !(w.P50 > 0 && w.P99 >= w.P50 && w.ManyP99 > 0 && w.ManyCPU > 0) {
			t.Errorf("a wake-up that cannot be: %+v", w)
		}
	}
	for _, c := range slices.Concat(rep.Inside, rep.Writes) {
		if !(c.Command > 0 && c.Processor > c.Command) {
			t.Errorf("a cost that cannot be: %+v", c)
		}
	}
	if len(rep.Inside) == 0 || len(rep.Writes) == 0 || len(rep.Decoding) == 0 || len(rep.Readers) == 0 || len(rep.Reads) == 0 {
		t.Errorf("something was not measured: %+v", rep)
	}
	for _, h := range rep.Hangs {
		if h.Over || h.Slowest < ms(callLimit)/2 {
			t.Errorf("a call that met a stopped Redis: %+v", h)
		}
	}
}

// checkPage: the page has a part for each section, with a table that is not
// empty, and the document of the repository has a place for each.
func checkPage(t *testing.T, p page) {
	t.Helper()
	doc, err := os.ReadFile("../../docs/comparison.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range p.parts {
		if !strings.Contains(string(doc), docBegin(part.name)) {
			t.Errorf("docs/comparison.md has no place for %q", part.name)
		}
		for _, table := range part.tables {
			if len(table.rows) == 0 {
				t.Errorf("%s: %q is empty", part.name, table.title)
			}
			for _, row := range table.rows {
				if len(row) != len(table.head) {
					t.Errorf("%s: %q: %d cells under %d heads", part.name, table.title, len(row), len(table.head))
				}
			}
		}
	}
}

func TestFlagsThatContradictEachOtherAreRefused(t *testing.T) {
	for _, args := range [][]string{
		{"-section", "storms"}, {"-section", "storm,"}, {"-doc", "x.md", "-short"}, {"-doc", "x.md", "-only", "cacheguard"},
		{"-capacity", "-section", "storm"}, {"-capacity", "-only", "cacheguard"}, {"storm"},
	} {
		if _, err := parseFlags(args, io.Discard); err == nil {
			t.Errorf("%v was accepted", args)
		}
	}
	o, err := parseFlags([]string{"-section", "hits, storm"}, io.Discard)
	if err != nil || len(o.sections) != 2 || o.sections[0].name != "storm" {
		t.Errorf("%v, %v; want storm and hits, in the order in which they run", o.sections, err)
	}
}

func TestTheRunEndsAtItsLimit(t *testing.T) {
	_ = redistest.Start(t) // or skip
	err := runCommand(t.Context(), []string{"-limit", "300ms", "-section", "storm"}, io.Discard, t.Output())
	if err == nil || !strings.Contains(err.Error(), "-limit") {
		t.Errorf("err = %v, want one that names the limit", err)
	}
}

func TestWordsSayWhoIsBetter(t *testing.T) {
	rows := []measured{{"a", 1}, {"b", 4.9}, {"ours", 5}, {"c", 9}}
	for _, test := range []struct {
		contest contest
		ours    string
		want    string
	}{
		{contest{what: "W", margin: 0.5, format: count}, "ours", "W: **better than ours**, with 5: a (1)."},
		{contest{what: "W", format: count}, "ours", "W: **better than ours**, with 5: a (1), b (5)."},
		{contest{what: "W", higher: true, margin: 0.5, format: count}, "ours", "W: **better than ours**, with 5: c (9)."},
		{contest{what: "W", margin: 5, format: count}, "ours", "W: none is better than ours, with 5; as good: a, b, c."},
		{contest{what: "W", format: count}, "a", "W: a is best, with 1."},
		{contest{what: "W", format: count}, "nobody", ""},
	} {
		if got := test.contest.verdict(test.ours, rows); got != test.want && !strings.HasPrefix(got, test.want) {
			t.Errorf("%+v of %s: %q, want %q", test.contest, test.ours, got, test.want)
		}
	}
}

func TestLoadsAtOnceAreCounted(t *testing.T) {
	begin := time.Now()
	var loads []load
	for _, at := range []time.Duration{0, 2, 5, 6, 11} {
		loads = append(loads, load{at: begin.Add(at * time.Second)})
	}
	if got := atOnce(loads, 5*time.Second); got != 3 { // those of 2, 5 and 6
		t.Errorf("%d at once, want 3", got)
	}
	if got := atOnce(nil, time.Second); got != 0 {
		t.Errorf("%d of none", got)
	}
}

func TestACommandsTimeIsReadFromWhatTheServerCounts(t *testing.T) {
	const text = "# Commandstats\r\ncmdstat_getex:calls=1,usec=2,usec_per_call=2.00\r\ncmdstat_get:calls=12,usec=34,usec_per_call=2.83\r\n"
	if calls, usec, err := commandStat(text, "get"); calls != 12 || usec != 34 || err != nil {
		t.Errorf("%d calls, %d µs, %v", calls, usec, err)
	}
	if _, _, err := commandStat(text, "set"); err == nil {
		t.Error("a command that was not called was found")
	}
}

func TestAnUnknownStrategyIsRefused(t *testing.T) {
	if _, err := parseFlags([]string{"-only", "memcached"}, io.Discard); err == nil || !strings.Contains(err.Error(), "redsync recipe") {
		t.Errorf("err = %v, want one that lists what there is", err)
	}
}

func TestCommandsAreCountedHoweverTheyAreCut(t *testing.T) {
	const stream = "*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*1\r\n$4\r\nPING\r\n*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$6\r\n*1\r\n$1\r\n"
	for size := 1; size <= len(stream); size++ {
		var names []string
		c := &countedConn{Conn: discard{}, command: func(name string) { names = append(names, name) }}
		for part := range slices.Chunk([]byte(stream), size) {
			if _, err := c.Write(part); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(names, []string{"get", "ping", "set"}) {
			t.Fatalf("in parts of %d: %v", size, names)
		}
	}
}

// discard is a connection that takes everything.
type discard struct{ net.Conn }

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func TestAValueTellsItsKeyAndVersion(t *testing.T) {
	v := valueOf("a", 7)
	if got := versionOf("a", v); got != 7 {
		t.Errorf("version %d, want 7", got)
	}
	for key, bad := range map[string][]byte{"b": v, "a": v[:100]} {
		if got := versionOf(key, bad); got != 0 {
			t.Errorf("versionOf(%q) = %d for what is no value of it", key, got)
		}
	}
}

func TestTheTablesReplaceTheirSectionAlone(t *testing.T) {
	file := filepath.Join(t.TempDir(), "doc.md")
	if err := os.WriteFile(file, []byte("before\n"+docBegin("a")+"old\n"+docEnd("a")+docBegin("b")+"kept\n"+docEnd("b")+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	today := page{[]part{{name: "a", about: "today"}}}
	if err := today.writeInto(file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	if !strings.HasPrefix(text, "before\n"+docBegin("a")) || !strings.HasSuffix(text, docEnd("a")+docBegin("b")+"kept\n"+docEnd("b")+"after\n") ||
		!strings.Contains(text, "today") || strings.Contains(text, "old\n") {
		t.Errorf("%s", text)
	}
	if err := os.WriteFile(file, []byte("no section"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := today.writeInto(file); err == nil {
		t.Error("a document without a section was accepted")
	}
	if err := today.writeInto(file + ".missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
}

func TestTheCostsAreCountedAndAddedUp(t *testing.T) {
	if testing.Short() {
		t.Skip("takes twenty seconds")
	}
	st := newTestStage(t)
	c, err := st.measureCapacity(t.Context(), short)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range slices.Concat(c.Replicas, c.Callers, c.Times) {
		if slices.Max(k.Loads) != 1 || k.Sent < 2 || k.Sent > 3.5 && !k.Untuned {
			t.Errorf("%+v: want one load and about three commands of each process", k)
		}
	}
	if c.EntryBytes < 1024 || c.RecordBytes <= 0 || c.RecordLife <= 0 || c.ReadCPU <= 0 || c.RebuildCPU <= c.ReadCPU {
		t.Errorf("units that cannot be: %+v", c)
	}
	if len(c.projection().rows) == 0 || len(c.memory().rows) == 0 {
		t.Error("nothing was calculated")
	}
	if sum(c.Cluster.Listening) != clusterStores || sum(c.Cluster.Spread) != clusterStores || c.Cluster.Sending <= 0 {
		t.Errorf("a cluster that cannot be: %+v", c.Cluster)
	}
}
