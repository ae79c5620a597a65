package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// faults is what a strategy made of a holder that was killed or stopped, and of
// a key that was deleted in mid-load.
type faults struct {
	// Of some keys whose load has begun in one process, which is then killed:
	// how long after that the slowest of the others was answered, in ms, and how
	// often the origin was asked in all.
	KillWait   []float64
	KillLoads  []int
	KillErrors int // of the others' callers

	// Of keys whose holder was stopped in its load, until another process had
	// stored the new version, and then went on: how many were old in the end.
	StopKeys, StopStale int

	// Of keys that were written and deleted in the middle of their load: how
	// many were old in the end. Of others: how many reads that began after the
	// delete had returned were answered with the old version.
	DeleteKeys, DeleteStale int
	LateReads, LateStale    int

	// Of those others, which were read again while the old load went on: how
	// many were old in the end.
	ReadKeys, ReadStale int
}

// faultsAtOnce is how many strategies have their faults at one time, each with
// a Redis and an origin of its own. Faults are about tenths of seconds, and
// about what is stored in the end.
const faultsAtOnce = 3

// runFaults runs the faults of all strategies.
func runFaults(ctx context.Context, r *run) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(faultsAtOnce)
	for _, s := range r.fleets() {
		group.Go(func() error {
			r.progress.step("faults: %s", s.name)
			return r.miss(ctx, s, "fault", attempt(ctx, r.progress, s, maxFleet, func(f *fleet) error {
				out, err := f.fault(ctx, r.keys)
				if err == nil {
					r.report.of(s).Faults = &out // each writes to its own
				}
				return err
			}))
		})
	}
	return group.Wait()
}

// inLoad is how far a load is when something happens to it.
const inLoad = 100 * time.Millisecond

// fault runs the three. The last is for other processes than the first two: one
// that was stopped in a load takes loads for slow, and one that is killed is of
// no more use.
func (f *fleet) fault(ctx context.Context, keys int) (out faults, err error) {
	first := &fleet{f.stage, f.strategy, f.workers[:faultFleet]}
	second := &fleet{f.stage, f.strategy, f.workers[faultFleet : 2*faultFleet]}
	if err = first.deleted(ctx, &out, 2*keys); err != nil {
		return out, fmt.Errorf("delete in mid-load: %w", err)
	}
	if err = first.stopped(ctx, &out, keys); err != nil {
		return out, fmt.Errorf("holder stopped: %w", err)
	}
	if err = second.killed(ctx, &out, keys); err != nil {
		return out, fmt.Errorf("holder killed: %w", err)
	}
	return out, nil
}

const faultFleet = maxFleet / 2

// make makes keys.
func (f *fleet) make(what string, n int, service time.Duration) (keys []string) {
	for i := range n {
		key := fmt.Sprintf("%s-%s-%d", what, f.strategy.name, i)
		f.create(key, service, false)
		keys = append(keys, key)
	}
	return keys
}

// hold lets the first process begin to load keys. Its calls are under way when
// hold returns.
func (f *fleet) hold(ctx context.Context, keys []string) (*waiting[ReadReply], time.Time, error) {
	calls := begin[KeysArgs, ReadReply](f.workers[:1], "Read", KeysArgs{keys})
	err := f.awaitLoads(ctx, keys)
	return calls, time.Now(), err
}

// follow lets the others ask for keys, all at once.
func (f *fleet) follow(keys []string) (calls []*waiting[StormReply], at time.Time) {
	at = time.Now().Add(30 * time.Millisecond)
	for _, key := range keys {
		calls = append(calls, begin[StormArgs, StormReply](f.workers[1:], "Storm",
			StormArgs{Key: key, Callers: 10, At: at.UnixNano()}))
	}
	return calls, at
}

// deleted: the key is written and deleted while it is loaded. Nobody reads the
// keys that count in the end meanwhile: a late read that loads the new version
// would hide that the old one was stored.
func (f *fleet) deleted(ctx context.Context, out *faults, n int) error {
	quiet, read := f.make("deleted", n, faultLoad), f.make("read", n, faultLoad)
	keys := slices.Concat(quiet, read)
	loading, begun, err := f.hold(ctx, keys)
	if err != nil {
		return err
	}
	if err := pause(ctx, time.Until(begun.Add(inLoad))); err != nil {
		return err
	}
	if err := f.writeAll(ctx, keys); err != nil {
		return err
	}
	late, err := on[KeysArgs, ReadReply](ctx, f.workers[:2], "Read", KeysArgs{read})
	if err != nil {
		return err
	}
	for _, r := range late {
		out.LateReads += len(r.Versions)
		out.LateStale += countOld(r)
	}
	if _, err := loading.end(ctx); err != nil {
		return err
	}
	out.DeleteKeys, out.ReadKeys = n, n
	if out.DeleteStale, err = f.oldInTheEnd(ctx, quiet); err != nil {
		return err
	}
	out.ReadStale, err = f.oldInTheEnd(ctx, read)
	return err
}

// writeAll writes keys in the origin and tells the second process' cache.
func (f *fleet) writeAll(ctx context.Context, keys []string) error {
	for _, key := range keys {
		f.write(key)
	}
	_, err := on[KeysArgs, struct{}](ctx, f.workers[1:2], "Delete", KeysArgs{keys})
	return err
}

func countOld(r ReadReply) (n int) {
	for _, v := range r.Versions {
		if v != 2 {
			n++
		}
	}
	return n
}

// oldInTheEnd is how many keys some process still answers with an old version
// when all is quiet and no copy in memory is left.
func (f *fleet) oldInTheEnd(ctx context.Context, keys []string) (n int, err error) {
	if err := f.settle(ctx); err != nil {
		return 0, err
	}
	if err := pause(ctx, memoryLife+100*time.Millisecond); err != nil {
		return 0, err
	}
	replies, err := on[KeysArgs, ReadReply](ctx, f.workers, "Read", KeysArgs{keys})
	if err != nil {
		return 0, err
	}
	for i := range keys {
		for _, r := range replies {
			if r.Versions[i] != 2 {
				n++
				break
			}
		}
	}
	return n, nil
}

// stopped: the holder is stopped in its load and sleeps past any lease; then the
// key is written and deleted, another process stores the new version, and the
// holder goes on with the old one in hand.
func (f *fleet) stopped(ctx context.Context, out *faults, n int) error {
	keys := f.make("stopped", n, faultLoad)
	holder := f.workers[0]
	loading, _, err := f.hold(ctx, keys)
	if err != nil {
		return err
	}
	others, _ := f.follow(keys)
	if err := pause(ctx, inLoad); err != nil {
		return err
	}
	if err := holder.freeze(); err != nil {
		return err
	}
	defer holder.thaw() // whatever happens
	for _, calls := range others {
		if _, err := calls.end(ctx); err != nil {
			return err
		}
	}
	if err := f.writeAll(ctx, keys); err != nil {
		return err
	}
	if _, err := on[KeysArgs, ReadReply](ctx, f.workers[1:2], "Read", KeysArgs{keys}); err != nil {
		return err
	}
	if err := f.settle(ctx); err != nil {
		return err
	}
	if err := holder.thaw(); err != nil {
		return err
	}
	// What it says does not matter: that its lock was lost is an answer too.
	_, _ = loading.end(ctx)
	out.StopKeys = n
	out.StopStale, err = f.oldInTheEnd(ctx, keys)
	return err
}

// killed: the holder is killed in its load.
func (f *fleet) killed(ctx context.Context, out *faults, n int) error {
	keys := f.make("killed", n, faultLoad)
	_, begun, err := f.hold(ctx, keys)
	if err != nil {
		return err
	}
	others, at := f.follow(keys)
	if err := pause(ctx, time.Until(begun.Add(inLoad))); err != nil {
		return err
	}
	kill := time.Now()
	f.workers[0].Kill()
	for i, calls := range others {
		replies, err := calls.end(ctx)
		if err != nil {
			return err
		}
		var slowest time.Duration
		for _, r := range replies {
			out.KillErrors += r.Errors
			for _, l := range r.Latencies {
				slowest = max(slowest, at.Add(l).Sub(kill))
			}
		}
		out.KillWait = append(out.KillWait, ms(slowest))
		out.KillLoads = append(out.KillLoads, len(f.loads(keys[i])))
	}
	return nil
}
