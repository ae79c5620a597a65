package cacheguard

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// A line is first in, first out, whoever leaves it.
func TestALineKeepsItsOrder(t *testing.T) {
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		var l line[string]
		var want []*waiter[string]
		for range 40 {
			switch n := len(want); {
			case n == 0 || rnd.IntN(2) == 0:
				w := new(waiter[string])
				l.push(w)
				want = append(want, w)
			case rnd.IntN(2) == 0:
				i := rnd.IntN(n)
				l.remove(want[i])
				want = slices.Delete(want, i, i+1)
			default:
				if l.pop() != want[0] {
					t.Fatalf("seed %d: not the first one was popped", seed)
				}
				want = want[1:]
			}
			var got []*waiter[string]
			for w := l.head; w != nil; w = w.next {
				got = append(got, w)
			}
			if !slices.Equal(got, want) || (l.head == nil) != (l.tail == nil) || l.tail != nil && l.tail != want[len(want)-1] {
				t.Fatalf("seed %d: %d waiters stand there, want %d others", seed, len(got), len(want))
			}
		}
	}
}

// Nobody is told before those who came earlier.
func TestWaitersAreToldInTheOrderInWhichTheyCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l line[string]
		var told released[string]
		var all []*waiter[string]
		for range 10 {
			w := new(waiter[string])
			l.push(w.comes())
			w.told = make(chan struct{}) // holds nothing: telling waits for the one who is told
			all = append(all, w)
		}
		for w := l.pop(); w != nil; w = l.pop() {
			told.add(w)
		}
		go told.tell()
		for i, w := range all {
			synctest.Wait()
			for _, later := range all[i+1:] {
				select {
				case <-later.told:
					t.Fatalf("told before number %d", i)
				default:
				}
			}
			<-w.told
		}
	})
}

// nobodyFound is a shard whose read of "k" found nothing for n callers, of whom
// the first is to be asked, and those that have been told.
func nobodyFound(t *testing.T, n int) (sh *shard[string], all []*waiter[string], told released[string]) {
	t.Helper()
	sh = newShards[string]().of("k")
	r := new(reading[string])
	for len(all) < n {
		var stays Loader[string]
		if len(all) > 0 {
			stays = func(context.Context, string) (string, error) { return "", nil }
		}
		all = append(all, r.share(t.Context(), stays))
	}
	told, lead := sh.nothing("k", r, time.Second)
	if lead != nil {
		t.Fatal("somebody who stays leads, although another came before")
	}
	return sh, all, told
}

// Who is woken to begin the flight, and whose context ends at the same time,
// must not leave: the others count on it.
//
//	A: reads; B: waits for the next read
//	A's read finds nothing: A is to begin the flight, B waits for that
//	A's context ends
func TestWhoIsToldToBeginAFlightDoesNotLeaveUnheard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sh, all, told := nobodyFound(t, 2)
		gone, leave := context.WithCancel(t.Context())
		leave()
		heard := make(chan error, 1)
		go func() { heard <- sh.await(gone, all[0]) }()
		synctest.Wait()
		told.tell()
		if err := <-heard; err != nil || all[0].leads == nil {
			t.Errorf("await = %v, leads %v; want that it is told to lead", err, all[0].leads != nil)
		}
		if err := sh.await(gone, all[1]); err != context.Canceled {
			t.Errorf("await of the other = %v, want %v", err, context.Canceled)
		}
	})
}

// A caller that was to begin the flight and does not come to it lets the next
// one do so, and the last one leaves nothing behind.
func TestWhoDoesNotBeginTheFlightPassesItOn(t *testing.T) {
	sh, all, told := nobodyFound(t, 3)
	told.tell()
	for i, w := range all {
		select {
		case <-w.told:
		default:
			t.Fatalf("number %d was not told", i)
		}
		if w.leads == nil {
			t.Fatalf("number %d does not lead", i)
		}
		if !sh.missing("k", 0) {
			t.Errorf("whoever comes while number %d leads reads", i)
		}
		sh.passOn("k", w.leads)
	}
	if sh.missing("k", 0) || len(sh.joiners) != 0 {
		t.Error("the key waits for a flight that nobody begins")
	}
}

// What a read did not find may have been written since: whoever comes after the
// write looks, although others wait for a flight.
func TestWhoComesAfterAWriteLooksAlthoughOthersWait(t *testing.T) {
	sh, _, told := nobodyFound(t, 2)
	told.tell()
	if !sh.missing("k", 0) {
		t.Fatal("whoever comes before the write reads, although the key is known to be missing")
	}
	sh.overtake(new(Guard[string]), "k")
	if sh.missing("k", 0) {
		t.Error("whoever comes after the write does not look")
	}
}

// Whoever has read is to begin the flight for a caller who stays. Should another
// begin it before, that one is the flight of all of them; and when it has landed
// none is needed any more.
func TestAFlightThatAnotherHasBegunIsNotBegunForWhoStays(t *testing.T) {
	sh := newShards[string]().of("k")
	r := new(reading[string])
	w := r.share(t.Context(), func(context.Context, string) (string, error) { return "", nil })
	_, lead := sh.nothing("k", r, time.Second)
	if lead != w {
		t.Fatal("who stays does not lead")
	}
	mine, others := &flight[string]{key: "k"}, &flight[string]{key: "k"}
	asker := new(waiter[string])
	if begin, ok := sh.joins("k", asker, others, time.Second); !begin || !ok {
		t.Fatal("a caller that was asked cannot begin the flight")
	}
	if sh.begins("k", lead, mine) {
		t.Error("two flights of a key were begun")
	}
	out := outcome[string]{answers: true, by: others}
	sh.landed(others, &out)
	for _, w := range []*waiter[string]{w, asker} {
		select {
		case <-w.told:
		default:
			t.Fatal("somebody was not told what the flight has brought")
		}
	}
	if w.flew() || !asker.flew() {
		t.Errorf("who stayed flew: %v, who was asked: %v; want it the other way round", w.flew(), asker.flew())
	}
	if sh.begins("k", lead, mine) {
		t.Error("a flight was begun for a caller who has been answered")
	}
}
