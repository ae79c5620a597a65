package memstore

import (
	"context"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// record is the lease record of a key: who may load, the fence below which
// nothing may be written, and the last failures.
type record struct {
	item
	birth string
	fence store.Token
	keep  time.Duration // the longest asked for

	holder  store.Holder // of the lease that was neither filled nor released; empty: none
	token   store.Token  // of that lease
	lease   span
	waiting bool // somebody wants to hear when the lease ends

	failures []failure // the last two at most, oldest first
	cooldown span
}

type failure struct {
	holder store.Holder
	reason string
}

// maxReason bounds what is kept of a failure's reason, in bytes.
const maxReason = 256

// span is a time with an end that is kept with its length: an end further ahead
// than that means that the clock has stepped back, and counts as passed.
// (Schedule: the holder crashes, and the server that takes over is 8 s behind.)
type span struct {
	until  int64
	length time.Duration
}

func spanFrom(now int64, length time.Duration) span { return span{later(now, length), length} }

// left is how much of the span is left; zero if it has passed.
func (sp span) left(now int64) time.Duration {
	if d := time.Duration(sp.until - now); d > 0 && d <= sp.length {
		return d
	}
	return 0
}

// Claim implements [store.Leases].
func (s *Store) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	if err := ended(ctx, "claim"); err != nil {
		return store.Verdict{}, err
	}
	if c.Holder == "" || c.Length <= 0 || c.Keep < c.Length {
		return store.Verdict{}, misuse("claim", "a claim needs a holder, a length above zero, and a keep that is not below it")
	}
	sh, now := s.lock(c.Key)
	v := s.claim(sh, now, c)
	sh.mu.Unlock()
	s.makeRoom(sh)
	return v, nil
}

// claim decides; the order of its questions is the contract's.
func (s *Store) claim(sh *shard, now int64, c store.Claim) store.Verdict {
	e := sh.entry(c.Key, now)
	there := e != nil && e.token != 0
	if there && e.token != c.Seen {
		return store.Verdict{Outcome: store.Changed}
	}
	r := sh.record(c.Key, now)
	if r == nil {
		r = s.create(sh, now, c.Key, c.Keep)
	}
	leaseLeft := r.lease.left(now)
	own := leaseLeft > 0 && r.holder == c.Holder
	if leaseLeft > 0 && !own {
		r.waiting = r.waiting || c.Wait
		sh.use(r, now, c.Keep)
		return store.Verdict{Outcome: store.Held, Left: leaseLeft, Holder: r.holder, Token: r.token, Same: there}
	}
	cooling := r.cooldown.left(now)
	bound := cooling > 0 && r.binds(c.Holder.Process())
	if bound && !own {
		last := r.failures[len(r.failures)-1]
		return store.Verdict{Outcome: store.Cooling, Left: cooling, Holder: last.holder, Reason: last.reason}
	}
	takeover := r.holder != "" && r.holder != c.Holder
	r.holder, r.token, r.lease = c.Holder, s.nextToken(now), spanFrom(now, c.Length)
	sh.use(r, now, c.Keep)
	return store.Verdict{Outcome: store.Granted, Same: there, Grant: store.Grant{
		Key:           c.Key,
		Holder:        c.Holder,
		Token:         r.token,
		Birth:         r.birth,
		Time:          now,
		Length:        c.Length,
		Takeover:      takeover,
		SecondOpinion: cooling > 0 && !bound,
	}}
}

// Renew implements [store.Leases].
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal) []error {
	return each(ctx, "renew", renewals, func(rn store.Renewal) error {
		if rn.Length <= 0 {
			return misuse("renew", "a renewal needs a length above zero")
		}
		sh, now := s.lock(rn.Grant.Key)
		defer sh.mu.Unlock()
		r := sh.record(rn.Grant.Key, now)
		if r == nil || r.birth != rn.Grant.Birth || r.holder == "" || r.holder != rn.Grant.Holder {
			return store.ErrLost
		}
		r.lease = spanFrom(now, rn.Length)
		sh.use(r, now, 0)
		return nil
	})
}

// Release implements [store.Leases].
func (s *Store) Release(ctx context.Context, g store.Grant, f *store.Failure) error {
	if err := ended(ctx, "release"); err != nil {
		return err
	}
	sh, now := s.lock(g.Key)
	events := sh.release(now, g, f)
	sh.mu.Unlock()
	s.makeRoom(sh) // a reason may be longer than the one before it
	s.hub.publish(g.Key.Space, events...)
	return nil
}

func (sh *shard) release(now int64, g store.Grant, f *store.Failure) (events []store.Event) {
	r := sh.record(g.Key, now)
	if r == nil || g.Birth != "" && g.Birth != r.birth {
		return nil
	}
	if g.Holder != "" && r.holder == g.Holder {
		if r.endLease() {
			events = []store.Event{{Kind: store.Released, ID: g.Key.ID}}
		}
	}
	if f != nil {
		r.fail(now, g.Holder, *f)
	}
	sh.use(r, now, 0)
	return events
}

// Begin implements [store.Store].
func (s *Store) Begin(ctx context.Context, key store.Key, keep time.Duration) (store.Begun, error) {
	if err := ended(ctx, "begin"); err != nil {
		return store.Begun{}, err
	}
	if keep <= 0 {
		return store.Begun{}, misuse("begin", "a keep must be above zero")
	}
	sh, now := s.lock(key)
	r := sh.record(key, now)
	if r == nil {
		r = s.create(sh, now, key, keep)
	}
	sh.use(r, now, keep)
	b := store.Begun{Token: s.nextToken(now), Birth: r.birth}
	sh.mu.Unlock()
	s.makeRoom(sh)
	return b, nil
}

// create adds a record. Its birth mark is random, so that no other record of
// this or another store ever had it.
func (s *Store) create(sh *shard, now int64, key store.Key, keep time.Duration) *record {
	r := &record{birth: strconv.FormatUint(rand.Uint64(), 36), keep: keep}
	r.slot = sh.slot(key)
	r.end = later(now, keep)
	r.size = r.bytes()
	r.slot.record = r
	sh.add(&r.item, now)
	return r
}

// use says that a record was used now. It lives for its keep past that, past
// its lease and past its cooldown; nothing shortens its life.
func (sh *shard) use(r *record, now int64, keep time.Duration) {
	r.keep = max(r.keep, keep)
	sh.moveEnd(&r.item, max(r.end, later(max(now, r.lease.until, r.cooldown.until), r.keep)))
	sh.resize(&r.item, r.bytes())
	sh.touch(&r.item, now)
}

// bytes is what a record counts for.
func (r *record) bytes() int64 {
	n := recordOverhead + len(r.slot.key.Space) + len(r.slot.key.ID) + len(r.birth) + len(r.holder)
	for _, f := range r.failures {
		n += len(f.holder) + len(f.reason)
	}
	return int64(n)
}

// endLease ends the lease, whoever holds it, and takes off the mark of being
// waited for. It tells whether the mark was there.
func (r *record) endLease() (waited bool) {
	waited = r.waiting
	r.holder, r.token, r.lease, r.waiting = "", 0, span{}, false
	return waited
}

// fail counts a failure, unless this attempt's has been counted: a release whose
// reply was lost is sent again.
func (r *record) fail(now int64, holder store.Holder, f store.Failure) {
	if slices.ContainsFunc(r.failures, func(old failure) bool { return old.holder == holder }) {
		return
	}
	if len(f.Reason) > maxReason {
		f.Reason = strings.ToValidUTF8(f.Reason[:maxReason], "")
	}
	last := failure{holder, strings.Clone(f.Reason)}
	r.failures = append(r.failures[max(0, len(r.failures)-1):], last)
	// A cooldown is not cut short by a failure with a shorter one.
	if f.Cooldown > r.cooldown.left(now) {
		r.cooldown = spanFrom(now, f.Cooldown)
	}
}

// binds tells whether a running cooldown binds a process. Two processes that
// failed in a row mean that it is the origin: all are bound. Otherwise it may be
// the one process' fault, and any other may give a second opinion.
func (r *record) binds(process string) bool {
	last := r.failures[len(r.failures)-1].holder.Process()
	return last == process || last != r.failures[0].holder.Process()
}
