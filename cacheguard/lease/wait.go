package lease

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

const (
	// A process that was granted a name share times has had its share: as long
	// as others want it too, it leaves each release to them for giveWay before
	// it asks. Without this, one that releases and acquires in a loop, or those
	// that are nearer to the store than the rest, would always be back before
	// the others have heard of the release. Who then went away empty patience
	// times has a new share: those who have had theirs race for a release, and
	// the one that is far from the store would lose each race. Counts and not
	// times: holds may last milliseconds or hours.
	share    = 8
	patience = 8 * share
	giveWay  = 15 * time.Millisecond

	// recent is how long a name is remembered after it was last used.
	recent = time.Second
)

// line is where the callers of this process who want one name stand. Only the
// first of them asks the store: a name that a thousand callers wait for costs
// one claim per process and release.
type line struct {
	turn chan struct{} // holds one: the first in line. Who blocks on it is served in order.
	wake chan struct{} // holds one: something happened to the name since the last claim

	// All of these are protected by lines.mu.
	users    int              // in line, or holding
	holding  int              // of those; more than one only where leases were lost
	mine     int              // grants to this process of its present share
	alone    int              // grants to it since another process was seen to hold the name
	others   int              // grants to others that were seen since the last to it
	wanted   bool             // a message said that the name's lease was waited for
	released time.Time        // the last time
	token    store.Token      // of the lease of another that was last seen
	holder   *store.HeldError // who was last seen to hold it, for how long
	seen     time.Time        // then
}

// lines are the lines of a locker, by name.
type lines struct {
	mu     sync.Mutex
	byName map[string]*line
	swept  time.Time // when those not in use were last removed
	deaf   bool      // no message is sure to be heard
}

func (ls *lines) init() { ls.byName, ls.deaf = make(map[string]*line), true }

// join returns the line for name with the caller counted in.
func (ls *lines) join(name string) *line {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.sweep(time.Now())
	ln := ls.byName[name]
	if ln == nil {
		ln = &line{turn: make(chan struct{}, 1), wake: make(chan struct{}, 1)}
		ls.byName[name] = ln
	}
	ln.users++
	return ln
}

// leave counts a caller out that got no lease.
func (ls *lines) leave(ln *line) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln.users--
}

// released counts a holder out.
func (ls *lines) released(ln *line) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ln.users--
	ln.holding--
	ln.released = time.Now()
}

// sweep forgets the names that nobody wants, at most once in a while.
func (ls *lines) sweep(now time.Time) {
	if now.Sub(ls.swept) < recent {
		return
	}
	ls.swept = now
	for name, ln := range ls.byName {
		if ln.users == 0 && now.Sub(ln.released) >= recent {
			delete(ls.byName, name)
		}
	}
}

// heard takes in a message of the store.
func (ls *lines) heard(e store.Event) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch e.Kind {
	case store.Down:
		ls.deaf = true
	case store.Up:
		// What happened before went unheard: everybody looks again.
		ls.deaf = false
		for _, ln := range ls.byName {
			ln.nudge()
		}
	default:
		if ln := ls.byName[e.ID]; ln != nil {
			ln.wanted = true
			ln.nudge()
		}
	}
}

func (ln *line) nudge() {
	select {
	case ln.wake <- struct{}{}:
	default:
	}
}

// taken notes who holds the name, as v says.
func (ls *lines) taken(ln *line, v store.Verdict) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln.holding == 0 && v.Token != ln.token {
		ln.token, ln.alone = v.Token, 0
		if ln.others++; ln.others >= patience {
			ln.mine = 0
		}
	}
	ln.holder, ln.seen = &store.HeldError{Holder: v.Holder, Left: v.Left}, time.Now()
}

// granted notes that this process got the name.
func (ls *lines) granted(ln *line) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln.mine >= share && ln.alone >= share {
		ln.mine, ln.wanted = 0, false // nobody else wanted it
	}
	ln.mine++
	ln.alone++
	ln.others = 0
	ln.holding++
	ln.holder = nil
}

// courtesy returns how long to let other processes go first.
func (ls *lines) courtesy(ln *line) time.Duration {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln.holding > 0 {
		return 0 // nothing to give way with
	}
	if ln.mine < share || !ln.wanted && !ls.deaf {
		return 0
	}
	return giveWay
}

// lastSeen returns who holds the name, as far as is known, or nil.
func (ls *lines) lastSeen(ln *line) *store.HeldError {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ln.holder == nil {
		return nil
	}
	return &store.HeldError{Holder: ln.holder.Holder, Left: max(0, ln.holder.Left-time.Since(ln.seen))}
}

// acquire waits for its turn and then for the lease. base is what the lease's
// context is made from.
func (l *Locker) acquire(ctx, base context.Context, name string) (*Lease, error) {
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.tasks.Done()
	// In line before the first claim, and with an ear to the store: no release
	// can fall between the claim that is refused and the wait.
	ln := l.lines.join(name)
	l.listen.Do(func() { l.stopListen = l.leases.Listen(l.opts.Namespace, l.lines.heard) })
	a := attempt{locker: l, claim: l.newClaim(name, true)}
	g, err := l.stand(ctx, ln, &a)
	if err != nil {
		held := l.lines.lastSeen(ln)
		l.lines.leave(ln)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = gaveUp(ctx, held)
		}
		return nil, err
	}
	return l.hold(base, g, a.sent, ln), nil
}

// stand waits until the caller is first in line, and then for a grant.
func (l *Locker) stand(ctx context.Context, ln *line, a *attempt) (store.Grant, error) {
	select {
	case ln.turn <- struct{}{}:
		defer func() { <-ln.turn }()
	case <-ctx.Done():
		return store.Grant{}, ctx.Err()
	case <-l.closing.Done():
		return store.Grant{}, ErrClosed
	}
	g, err := l.follow(ctx, ln, a)
	if err != nil {
		a.giveUp()
	}
	return g, err
}

// follow claims until the claim is granted: when a message says that something
// happened, when the lease that is in the way runs out, and, since a message is
// but a hint, every now and then.
func (l *Locker) follow(ctx context.Context, ln *line, a *attempt) (store.Grant, error) {
	answered := time.Now()
	for {
		if err := l.sleep(ctx, l.lines.courtesy(ln)); err != nil {
			return store.Grant{}, err
		}
		select {
		case <-ln.wake: // what it says, the claim will see
		default:
		}
		next := l.poll()
		v, err := a.ask(ctx)
		switch {
		case err != nil:
			if l.over(ctx) != nil || !transient(err) || time.Since(answered) >= l.opts.Length {
				return store.Grant{}, err
			}
		case v.Outcome == store.Granted:
			l.lines.granted(ln)
			return v.Grant, nil
		case v.Outcome == store.Held:
			answered = time.Now()
			l.lines.taken(ln, v)
			next = min(next, max(v.Left, 0)+time.Millisecond)
		default:
			return store.Grant{}, refusal(v)
		}
		select {
		case <-ln.wake:
		case <-time.After(next):
		case <-ctx.Done():
			return store.Grant{}, ctx.Err()
		case <-l.closing.Done():
			return store.Grant{}, ErrClosed
		}
	}
}

// poll is the time until the next look, half to one and a half PollInterval:
// the processes of a fleet do not look in step.
func (l *Locker) poll() time.Duration {
	return l.opts.PollInterval/2 + rand.N(l.opts.PollInterval)
}
