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
	st, err := newStage(server.Addr, t.Logf)
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
			for _, want := range []int{1, 2} {
				// Twice: the second is a hit.
				for range 2 {
					replies, err := on[KeysArgs, ReadReply](t.Context(), f.workers[:1], "Read", KeysArgs{keys})
					if err != nil {
						t.Fatal(err)
					}
					if got := replies[0].Versions; slices.ContainsFunc(got, func(v int) bool { return v != want }) {
						// rockscache answers once with what was deleted.
						if s.name != rocksCache.name || want == 1 {
							t.Fatalf("versions %v, want %d", got, want)
						}
					}
				}
				if want == 1 && len(f.loads(keys[0])) != 1 {
					t.Fatalf("%d loads for two reads", len(f.loads(keys[0])))
				}
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
	rep, err := withStage(t.Context(), io.Discard, func(st *stage, server *redistest.Server) (report, error) {
		return st.compare(t.Context(), o, server)
	})
	if err != nil {
		t.Fatal(err)
	}
	res := rep.of(guarded)
	for _, s := range res.Storms {
		if slices.Min(s.Loads) != 1 || slices.Max(s.Loads) != 1 || s.Errors+s.Wrong != 0 {
			t.Errorf("%v: loads %v, %d errors, %d wrong; want one load", s.Shape, s.Loads, s.Errors, s.Wrong)
		}
	}
	if f := res.Faults; f.StopStale+f.DeleteStale+f.LateStale != 0 || f.StopKeys == 0 || f.DeleteKeys == 0 || f.LateReads == 0 {
		t.Errorf("old values: %+v", *f)
	}
	if n := res.Outage.FailLoads; n == 0 || n > 2*(int(failFor/time.Second)+1) {
		t.Errorf("%d loads of a key that fails in %v, want at most two a second", n, failFor)
	}
	if res.Outage.Failed > 0 {
		t.Errorf("%d of %d calls got no value while Redis was stopped", res.Outage.Failed, res.Outage.Calls)
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
	if err := os.WriteFile(file, []byte("before\n"+docBegin+"old\n"+docEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (page{about: "today"}).writeInto(file); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(got)
	if !strings.HasPrefix(text, "before\n"+docBegin) || !strings.HasSuffix(text, docEnd+"after\n") ||
		!strings.Contains(text, "today") || strings.Contains(text, "old\n") {
		t.Errorf("%s", text)
	}
	if err := os.WriteFile(file, []byte("no section"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := (page{}).writeInto(file); err == nil {
		t.Error("a document without a section was accepted")
	}
	if err := (page{}).writeInto(file + ".missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v", err)
	}
}

func TestTheCostsAreCountedAndAddedUp(t *testing.T) {
	if testing.Short() {
		t.Skip("takes twenty seconds")
	}
	st := newTestStage(t)
	c, err := st.measureCapacity(t.Context(), options{short: true})
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
	if rows := c.projection().rows; len(rows) == 0 {
		t.Error("nothing was calculated")
	}
}
