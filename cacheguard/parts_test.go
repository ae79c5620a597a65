package cacheguard

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// The small parts that keep count of something: pauses, waits, tasks.

func TestPauseEndsByItselfOrWithResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShards[string]().of("k")
		why := errors.New("why")
		s.rest("k", time.Second, why)
		if p, left, ok := s.resting("k"); !ok || p.err != why || left != time.Second {
			t.Errorf("resting = %v, %v, %t", p.err, left, ok)
		}
		time.Sleep(time.Second)
		if _, _, ok := s.resting("k"); ok {
			t.Error("a pause is not over at its end")
		}
		s.rest("k", time.Second, why)
		s.resume("k")
		if _, _, ok := s.resting("k"); ok {
			t.Error("a pause goes on after it was ended")
		}
		s.rest("k", 0, why)
		s.rest("k", -1, why)
		if len(s.pauses) != 0 {
			t.Errorf("%d pauses are remembered, want none", len(s.pauses))
		}
	})
}

func TestPausesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShards[string]().of("k")
		for i := range 10 * maxPauses {
			s.rest(fmt.Sprint(i), time.Minute, nil)
			if len(s.pauses) > maxPauses {
				t.Fatalf("%d pauses are remembered, want at most %d", len(s.pauses), maxPauses)
			}
			if _, _, ok := s.resting(fmt.Sprint(i)); !ok {
				t.Fatal("the newest pause was forgotten")
			}
		}
		// The ones that are over go first.
		time.Sleep(time.Minute)
		s.pauses = map[string]pause{"long": {until: time.Now().Add(time.Hour)}}
		for i := range maxPauses - 1 {
			s.rest(fmt.Sprint(i), time.Second, nil)
		}
		time.Sleep(2 * time.Second)
		s.rest("new", time.Second, nil)
		if _, _, ok := s.resting("long"); !ok || len(s.pauses) != 2 {
			t.Errorf("%d pauses are remembered (the long one: %t), want the long one and the new one", len(s.pauses), ok)
		}
	})
}

func TestArrivalsAreOrdered(t *testing.T) {
	s := newShards[string]().of("k")
	first := s.arrive()
	sent := s.sofar()
	second := s.arrive()
	if !(first <= sent && sent < second) {
		t.Errorf("arrivals %d and %d, question sent at %d", first, second, sent)
	}
}

func TestWaitGraphFindsCycles(t *testing.T) {
	id := func(key string) loadID { return loadID{guard: t, key: key} }
	asker := func(parent *link, keys ...string) *link {
		l := &link{parent: parent}
		for _, k := range keys {
			l.ids = append(l.ids, id(k))
		}
		return l
	}
	w := waitGraph{edges: make(map[loadID]map[loadID]int)}
	a, b, c := asker(nil, "a"), asker(nil, "b"), asker(nil, "c")
	must := func(want error, l *link, key string) {
		t.Helper()
		if err := w.add(l, id(key)); err != want {
			t.Errorf("%v waits for %s: %v, want %v", l.ids, key, err, want)
		}
	}
	must(ErrCycle, a, "a") // itself
	must(nil, a, "b")
	must(nil, a, "b") // twice, as two calls of one load
	must(nil, b, "c")
	must(ErrCycle, c, "a") // a -> b -> c -> a
	must(ErrCycle, c, "b")
	must(nil, c, "d") // a refused one leaves nothing behind
	w.done(a, id("b"))
	must(ErrCycle, c, "a") // one of the two still waits
	w.done(a, id("b"))
	must(nil, c, "a")
	w.done(c, id("a"))
	w.done(c, id("d"))
	w.done(b, id("c"))
	if len(w.edges) != 0 {
		t.Errorf("%d loads are remembered, want none", len(w.edges))
	}
	// By its chain: y was asked for by x.
	y := asker(asker(nil, "x"), "y")
	must(ErrCycle, y, "x")
	must(nil, y, "z")
	must(ErrCycle, asker(nil, "z"), "y")
	// The same key of another guard is another load.
	if err := w.add(y, loadID{guard: "other", key: "x"}); err != nil {
		t.Errorf("%v for another guard's key", err)
	}
}

func TestTasks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &tasks{idle: make(chan struct{})}
		if !n.enter() {
			t.Fatal("refused before it was closed")
		}
		n.another()
		n.close()
		n.close()
		if n.enter() {
			t.Error("taken after it was closed")
		}
		begin := time.Now()
		if err := n.wait(time.Second); err == nil || time.Since(begin) != time.Second {
			t.Errorf("wait = %v after %v, want an error after 1s", err, time.Since(begin))
		}
		n.leave()
		n.another() // from within the one that is left
		n.leave()
		go n.leave()
		if err := n.wait(time.Second); err != nil {
			t.Error(err)
		}
		if n.enter() {
			t.Error("taken after all have left")
		}
		if err := n.wait(time.Second); err != nil {
			t.Error(err)
		}
	})
}

func TestTasksThatEnterWhileItCloses(t *testing.T) {
	for range 200 {
		n := &tasks{idle: make(chan struct{})}
		var inside atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 20 {
					if n.enter() {
						inside.Add(1)
						inside.Add(-1)
						n.leave()
					}
				}
			})
		}
		n.close()
		if err := n.wait(time.Minute); err != nil {
			t.Fatal(err)
		}
		if n := inside.Load(); n != 0 {
			t.Fatalf("%d tasks are inside after wait", n)
		}
		wg.Wait()
	}
}

// A hold-off that is forgotten would let an old value in: beyond the bound, all
// keys are held off.
func TestHoldOffsAreBoundedAndNoneIsForgotten(t *testing.T) {
	now := time.Now()
	var h holdOffs
	for i := range 3 * maxHoldOffs {
		h.begin(fmt.Sprint(i), now, time.Second)
		if len(h.until) > maxHoldOffs {
			t.Fatalf("%d keys are remembered, want at most %d", len(h.until), maxHoldOffs)
		}
		if !h.has(fmt.Sprint(i), now.Add(time.Second-1)) {
			t.Fatalf("key %d is not held off", i)
		}
	}
	if h.has("0", now.Add(time.Second)) || h.has("another", now.Add(time.Second)) {
		t.Error("a key is held off past the end")
	}
	later := now.Add(time.Minute)
	h.begin("new", later, time.Second)
	h.begin("newer", later, time.Second)
	if !h.has("new", later) || !h.has("newer", later) || h.has("another", later) || len(h.until) != 2 {
		t.Errorf("%d keys are remembered when all but two are over", len(h.until))
	}
}

// A million keys are as large as one, and leave most of the others alone.
func TestDistrustedKeysAreBoundedAndEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d distrusted
		if d.has("k") {
			t.Error("a key is distrusted that was not added")
		}
		const n = 1_000_000
		for i := range n {
			d.add(fmt.Sprint("in", i), time.Now().Add(time.Minute))
		}
		needless := 0
		for i := range n / 10 {
			if !d.has(fmt.Sprint("in", i*10)) {
				t.Fatalf("key %d was forgotten", i*10)
			}
			if d.has(fmt.Sprint("out", i)) {
				needless++
			}
		}
		if needless > n/10*15/100 {
			t.Errorf("%d of %d other keys are distrusted", needless, n/10)
		}
		if size := len(d.bits) * 8; size != 1<<20 {
			t.Errorf("it takes %d bytes, want a MiB", size)
		}
		time.Sleep(time.Minute + 1)
		if d.has("in0") || d.bits != nil {
			t.Error("it does not end with its time")
		}
		d.add("again", time.Now().Add(time.Second))
		if !d.has("again") || d.has("in0") && d.has("in1") && d.has("in2") {
			t.Error("it does not begin anew")
		}
	})
}
