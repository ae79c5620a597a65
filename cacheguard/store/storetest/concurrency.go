package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

var concurrencyChecks = []Check{
	{"concurrency/of many claims one is granted", oneOfManyIsGranted},
	{"concurrency/of many takeovers one is granted", oneOfManyTakesOver},
	{"concurrency/of many claims in a cooldown one gives the second opinion", oneSecondOpinion},
	{"concurrency/no two tokens are the same", tokensAreUnique},
	{"concurrency/nothing older than an invalidate is read after it", nothingOlderAfterInvalidate},
	{"concurrency/overlapping begun sets leave the last value or none", overlappingBegunSets},
}

const crowd = 16

// race runs the same function many times at once, on the store and its peer.
func (t *trial) race(n int, run func(i int, st store.Store)) {
	stores := []store.Store{t.st, t.Peer()}
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			<-start
			run(i, stores[i%len(stores)])
		})
	}
	close(start)
	all.Wait()
}

// outcomes lets many processes claim at once, and returns how often each
// outcome came. What seemed to be granted must be one lease.
func (t *trial) outcomes(claim func(h store.Holder) store.Claim) map[store.Outcome]int {
	t.Helper()
	verdicts := make([]store.Verdict, crowd)
	t.race(crowd, func(i int, st store.Store) {
		v, err := st.Claim(t.ctx, claim(store.Holder(fmt.Sprintf("P%d/1", i))))
		if err != nil {
			t.Errorf("claim: %v", err)
		}
		verdicts[i] = v
	})
	count := make(map[store.Outcome]int)
	for _, v := range verdicts {
		count[v.Outcome]++
	}
	return count
}

func oneOfManyIsGranted(t *trial) {
	for round := range 20 {
		k := t.key(strconv.Itoa(round))
		count := t.outcomes(func(h store.Holder) store.Claim { return waiting(t.ask(k, h)) })
		if count[store.Granted] != 1 || count[store.Held] != crowd-1 {
			t.Fatalf("round %d: %v, want one granted and the others held", round, count)
		}
	}
}

func oneOfManyTakesOver(t *trial) {
	k := t.key("k")
	for round := range 3 {
		t.granted(t.askShort(k, "crashed/"+store.Holder(strconv.Itoa(round))))
		t.outlast()
		count := t.outcomes(func(h store.Holder) store.Claim { c := t.ask(k, h); c.Length = t.short; return c })
		if count[store.Granted] != 1 || count[store.Held] != crowd-1 {
			t.Fatalf("round %d: %v, want one granted and the others held", round, count)
		}
		t.outlast()
	}
}

func oneSecondOpinion(t *trial) {
	k := t.key("k")
	t.failed(k, "broken/1")
	count := t.outcomes(func(h store.Holder) store.Claim { return t.ask(k, h) })
	if count[store.Granted] != 1 || count[store.Held] != crowd-1 {
		t.Fatalf("%v, want one granted and the others held", count)
	}
}

func tokensAreUnique(t *trial) {
	k := t.key("k")
	const each = 25
	tokens := make([][]store.Token, crowd)
	t.race(crowd, func(i int, st store.Store) {
		for n := range each {
			if i%2 == 0 {
				b, err := st.Begin(t.ctx, k, t.long)
				if err != nil {
					t.Errorf("begin: %v", err)
					return
				}
				tokens[i] = append(tokens[i], b.Token)
				continue
			}
			h := store.Holder(fmt.Sprintf("P%d/%d", i, n))
			v, err := st.Claim(t.ctx, t.ask(k, h))
			if err != nil {
				t.Errorf("claim: %v", err)
				return
			}
			if v.Outcome == store.Granted {
				tokens[i] = append(tokens[i], v.Grant.Token)
				_ = st.Release(t.ctx, v.Grant, nil)
			}
		}
	})
	for i, mine := range tokens {
		if !slices.IsSorted(mine) {
			t.Errorf("the tokens that one caller got do not grow: %v", tokens[i])
		}
	}
	all := slices.Concat(tokens...)
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != len(all) {
		t.Errorf("%d tokens, but only %d different ones", len(all), n)
	}
	if len(all) < crowd/2*each {
		t.Errorf("%d tokens, want at least those of %d begins", len(all), crowd/2*each)
	}
}

// origin is a source of truth whose versions are counted.
type origin struct{ version atomic.Int64 }

func (o *origin) load() string   { return strconv.FormatInt(o.version.Load(), 10) }
func (o *origin) commit() string { return strconv.FormatInt(o.version.Add(1), 10) }

// Loads, commits and invalidations overlap at will; some holders release before
// they fill, so that grants overlap too. After an invalidate has returned,
// nothing that was committed before it may be read.
func nothingOlderAfterInvalidate(t *trial) {
	k := t.key("k")
	var o origin
	t.race(crowd, func(i int, st store.Store) {
		for n := range 40 {
			if i%4 == 0 {
				mine := o.version.Add(1)
				if errs := st.Invalidate(t.ctx, []store.Key{k}); errs != nil {
					t.Errorf("invalidate: %v", errs)
				}
				t.notOlder(st, k, mine)
				continue
			}
			c := t.ask(k, store.Holder(fmt.Sprintf("P%d/%d", i, n)))
			v, err := st.Claim(t.ctx, c)
			if err != nil {
				t.Errorf("claim: %v", err)
			}
			if v.Outcome != store.Granted {
				continue
			}
			value := o.load()
			if n%3 == 0 {
				_ = st.Release(t.ctx, v.Grant, nil)
			}
			if err := st.Fill(t.ctx, v.Grant, t.value(value)); err != nil && !errors.Is(err, store.ErrFenced) {
				t.Errorf("fill: %v", err)
			}
			_ = st.Release(t.ctx, v.Grant, nil)
		}
	})
}

func (t *trial) notOlder(st store.Store, k store.Key, least int64) {
	e, err := st.Load(t.ctx, k)
	if err != nil || e.Fault != nil {
		t.Errorf("load: %v, %v", err, e.Fault)
	}
	if e.Kind == store.None {
		return
	}
	if got, err := strconv.ParseInt(string(e.Payload), 10, 64); err != nil || got < least {
		t.Errorf("read %s after version %d was invalidated", show(e), least)
	}
}

// Writers take a token, commit, and set, overlapping at will, while others load
// and fill. What is there in the end is what was committed last, or nothing.
func overlappingBegunSets(t *trial) {
	var landed atomic.Int32
	for round := range 10 {
		k := t.key(strconv.Itoa(round))
		var o origin
		t.race(crowd, func(i int, st store.Store) {
			if i%4 == 0 {
				if v, err := st.Claim(t.ctx, t.ask(k, store.Holder(fmt.Sprintf("P%d/1", i)))); err == nil && v.Outcome == store.Granted {
					_ = st.Fill(t.ctx, v.Grant, t.value(o.load()))
				}
				return
			}
			b, err := st.Begin(t.ctx, k, t.long)
			if err != nil {
				t.Errorf("begin: %v", err)
				return
			}
			w := store.Write{Key: k, Content: t.value(o.commit()), Begun: &b}
			switch err := st.Set(t.ctx, w); {
			case err == nil:
				landed.Add(1)
			case !errors.Is(err, store.ErrFenced):
				t.Errorf("set: %v", err)
			}
		})
		if e := t.load(k); e.Kind != store.None && string(e.Payload) != o.load() {
			t.Errorf("round %d: %s is there, but the origin is at version %s", round, show(e), o.load())
		}
	}
	// In one round a fill of a claim that came after all begins can refuse them all.
	if landed.Load() == 0 {
		t.Errorf("of many begun sets none landed in any round")
	}
}
