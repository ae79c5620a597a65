package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

func TestStormsOnARealRedis(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		redistest.Need(t, redistest.ErrNoServer)
	}
	testStorms(t, kindServer, allModes...)
}

func TestStormsOnTheEmbeddedRedis(t *testing.T) {
	withoutRedisServer(t)
	testStorms(t, kindEmbedded, "guard")
}

func TestStormsOnARedisThatIsGiven(t *testing.T) {
	server, err := embeddedRedis()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	rep := storms(t, "-redis", "redis://"+server.addr+"/0", "-scenario", "cold", "-mode", "guard")
	if rep.Redis.Kind != kindGiven {
		t.Errorf("the Redis is called %q", rep.Redis.Kind)
	}
}

// TestStopsDoNotMakeLeasesLonger: were the time of a stop taken for that of a
// load, each would be longer than the one before.
func TestStopsDoNotMakeLeasesLonger(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		redistest.Need(t, redistest.ErrNoServer)
	}
	rep := storms(t, "-scenario", stopped.name, "-mode", "guard", "-rounds", "10", "-clients", "2")
	for _, p := range []string{"P3", "P4", shortRecovery.name} {
		if !rep.Results[0].Promises[p] {
			t.Errorf("promise %s was not judged to be kept", p)
		}
	}
}

// The rest of the scenarios, in the mode that promises something.
func TestFaultsOnARealRedis(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		redistest.Need(t, redistest.ErrNoServer)
	}
	testFaults(t, partition, redisHang, redisRestart, failingOrigin, manyKeys, deploy, atARate, soak)
}

func TestFaultsOnTheEmbeddedRedis(t *testing.T) {
	withoutRedisServer(t)
	testFaults(t, partition, redisRestart)
}

func testFaults(t *testing.T, what ...scenario) {
	var names []string
	for _, sc := range what {
		names = append(names, sc.name)
	}
	rep := storms(t, "-mode", "guard", "-rounds", "1", "-duration", "10s", "-for", "1s", "-rate", "200", "-scenario", strings.Join(names, ","))
	if len(rep.Results) != len(what) {
		t.Fatalf("%d results, want one for each of %v", len(rep.Results), names)
	}
	for i, r := range rep.Results {
		// That the promises were kept is in the run's error. Here: that they were
		// judged, but for those that need more rounds.
		judged := len(r.Promises)
		for _, p := range what[i].promises {
			if p.name == oneTimeout.name || p.name == noWaitForRedis.name || p.name == shortRecovery.name {
				judged++
			}
		}
		if r.Pass == nil || judged < len(what[i].promises) {
			t.Errorf("%s: %d promises were judged, of %d: %v", r.Scenario, len(r.Promises), len(what[i].promises), r.Promises)
		}
	}
}

func TestAnInterruptedRunShowsWhatItHasAndLeavesNothingRunning(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("what is running is looked up in /proc")
	}
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	log := writerFunc(func(p []byte) {
		if strings.Contains(string(p), "expiry, mode guard: waiting") {
			if len(running(t, dir)) < 2 {
				t.Error("no process of the fleet is seen: the look afterwards would see none either")
			}
			cancel()
		}
	})
	err := run(ctx, []string{"-replicas", "2", "-clients", "2", "-rounds", "1", "-load", "10ms", "-mode", "guard"}, &out, log)
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("run = %v, want that it was interrupted", err)
	}
	if !strings.Contains(out.String(), "cold  guard") {
		t.Errorf("what was measured before is not shown:\n%s", &out)
	}
	if left := running(t, dir); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("left in the folder for temporary files: %v, %v", files, err)
	}
}

type writerFunc func([]byte)

func (f writerFunc) Write(p []byte) (int, error) { f(p); return len(p), nil }

// running returns the processes that run a program below dir, or were told
// something below it (as the Redis was).
func running(t *testing.T, dir string) (found []string) {
	t.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range lines {
		args, _ := os.ReadFile(line) // of one that is gone by now: none
		if bytes.Contains(args, []byte(dir)) {
			found = append(found, strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return found
}

// withoutRedisServer makes a PATH that has everything but a redis-server.
func withoutRedisServer(t *testing.T) {
	t.Helper()
	bin := t.TempDir()
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		files, _ := os.ReadDir(dir) // a folder of PATH may not be there
		for _, f := range files {
			if strings.HasPrefix(f.Name(), "redis-server") {
				continue
			}
			// The first of a name counts, as on PATH.
			if err := os.Symlink(filepath.Join(dir, f.Name()), filepath.Join(bin, f.Name())); err != nil && !os.IsExist(err) {
				t.Skip("SKIPPED, NOT TESTED: this system has no symbolic links:", err)
			}
		}
	}
	t.Setenv("PATH", bin)
}

// storms runs the load test small and returns its report. An error of the run
// is one of the test: a promise was broken, or something would not go.
func storms(t *testing.T, args ...string) report {
	t.Helper()
	file := filepath.Join(t.TempDir(), "results.json")
	var out, log bytes.Buffer
	args = append([]string{"-replicas", "2", "-clients", "10", "-rounds", "2", "-load", "50ms", "-json", file}, args...)
	if err := run(t.Context(), args, &out, &log); err != nil {
		t.Fatalf("%v\n%s%s", err, &log, &out)
	}
	t.Logf("%s", &out)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rep report
	if err := json.Unmarshal(data, &rep); err != nil {
		t.Fatal(err)
	}
	return rep
}

func testStorms(t *testing.T, kind string, modes ...string) {
	names := []string{cold.name, expiry.name, invalidate.name, crash.name, stopped.name}
	rep := storms(t, "-mode", strings.Join(modes, ","), "-scenario", strings.Join(names, ","))
	if rep.Redis.Kind != kind || !strings.Contains(rep.Redis.Version, ".") {
		t.Errorf("redis %+v, want kind %s and its version", rep.Redis, kind)
	}
	byName := map[string]result{}
	for _, r := range rep.Results {
		byName[r.Scenario+" "+r.Mode] = r
	}
	if len(byName) != len(names)*len(modes) {
		t.Fatalf("%d results, want each scenario in each mode", len(byName))
	}
	// That the promises of mode guard were kept is in the run's error. Here:
	// that the others show what they are there to show, so that the storm is one.
	for _, mode := range modes {
		want := map[string]int64{"guard": 1, "local": 2, "none": 20}[mode]
		for _, name := range []string{cold.name, expiry.name} {
			for n, loads := range byName[name+" "+mode].OriginLoads {
				if loads != want {
					t.Errorf("%s, mode %s, round %d: %d loads, want %d", name, mode, n, loads, want)
				}
			}
		}
	}
	for _, mode := range modes {
		// Without a fence what the stopped process brings is stored in the end,
		// for both processes in both rounds.
		want := map[string]int64{"guard": 0, "local": 4, "none": 4}[mode]
		if got := byName[stopped.name+" "+mode].StaleValues; got == nil || *got != want {
			t.Errorf("pause, mode %s: %s stale values, want %d", mode, count(got), want)
		}
		for _, name := range []string{crash.name, stopped.name} {
			if got := byName[name+" "+mode].RecoveryMS; len(got) != 2 || slices.Min(got) <= 0 {
				t.Errorf("%s, mode %s: recovery %v, want a time for each round", name, mode, got)
			}
		}
	}
	for key, r := range byName {
		if r.Mode == "guard" && (r.Pass == nil || !*r.Pass || len(r.Promises) < 2) {
			t.Errorf("%s: pass %v, promises %v", key, r.Pass, r.Promises)
		}
		if r.Mode != "guard" && (r.Pass != nil || r.Promises != nil) {
			t.Errorf("%s: pass %v, promises %v; that mode makes none", key, r.Pass, r.Promises)
		}
		if r.Rounds != 2 || len(r.OriginLoads) != 2 || *r.Errors != 0 || *r.WrongValues != 0 {
			t.Errorf("%s: %+v", key, r)
		}
	}
}
