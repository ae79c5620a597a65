// Package redisstore keeps entries and leases in Redis or Valkey, shared by a
// whole fleet of processes.
//
// It works on any client of go-redis v9 that talks to primaries: one server,
// Sentinel, or Redis Cluster. It needs a server of version 6.2 or newer, EVAL
// and EVALSHA, and one pub/sub connection for each Store that listens; see
// [Store.Check] for the exact commands. Every call has a bound of its own
// ([Options.Timeout]) whatever the client's options are.
//
// For each key there are two names in Redis, in one cluster slot: the entry
// (a string) and the lease record (a hash that a human can read):
//
//	GET     products:{42}
//	HGETALL products:{42}:lease
package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Store is a [store.Store] in Redis. Make one with [New]; it is safe for
// concurrent use. One Store for a client and process is enough: it serves any
// number of spaces with one subscription.
type Store struct {
	client   redis.UniversalClient
	opts     Options
	run      *runner
	clock    *clock
	events   *listener
	pipeline *pipeline // nil if off

	closing sync.Once
	closed  error
}

var _ store.Store = (*Store)(nil)

// New returns a store on client, which stays the caller's: the store never
// closes it. It sends nothing. A client that cannot keep the contract (nil, a
// Ring, one that reads from replicas or from a cache of its own) and an option
// out of range are errors.
//
// A client with the option ContextTimeoutEnabled is the best choice. On a
// *redis.Client without it the store works on a copy that shares its
// connections and does look at deadlines, but that go-redis makes without the
// client's hooks (tracing). On other clients each call costs two switches of
// goroutines more.
func New(client redis.UniversalClient, opts Options) (*Store, error) {
	several, err := refuse(client)
	if err != nil {
		return nil, err
	}
	if opts, err = opts.withDefaults(); err != nil {
		return nil, err
	}
	fast, here := bounded(client, opts.Timeout)
	s := &Store{client: fast, opts: opts, run: newRunner(opts.Timeout, opts.MaxCalls, here), clock: newClock(several)}
	if opts.ReadPipelines > 0 && here {
		s.pipeline = newPipeline(fast, s.run, opts.ReadPipelines)
	}
	s.events = newListener(client, opts.OnFault, s.primeClock)
	s.events.decode = s.carried
	return s, nil
}

// Close ends the subscription and waits for the commands under way. After it
// every method returns a fault whose cause is [ErrClosed]. It may be called
// more than once. The client stays open. An error says that commands of the
// client have not come back after twice Options.Timeout: they end when the
// client lets them.
func (s *Store) Close() error {
	s.closing.Do(func() {
		wait := 2 * s.opts.Timeout
		s.closed = errors.Join(s.events.close(wait), s.run.close(wait))
	})
	return s.closed
}

// maxLife bounds what a time span of a caller counts for, so that no sum of
// them leaves the range of a script's numbers.
const maxLife = 101 * 365 * 24 * time.Hour

// micro writes a duration for a script.
func micro(d time.Duration) int64 { return min(d, maxLife).Microseconds() }

// Claim implements [store.Leases].
func (s *Store) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	if err := checkClaim(c); err != nil {
		return store.Verdict{}, err
	}
	r, err := s.invoke(ctx, "claim", claimInvocation(c))
	if err != nil {
		return store.Verdict{}, err
	}
	v, ok := readVerdict(r, c)
	if !ok {
		return store.Verdict{}, fault("claim", errReply)
	}
	return v, nil
}

func checkClaim(c store.Claim) error {
	if c.Length <= 0 || c.Length > c.Keep {
		return fault("claim", fmt.Errorf("the lease's length %v must be above zero and at most Keep, which is %v", c.Length, c.Keep))
	}
	return nil
}

func claimInvocation(c store.Claim) invocation {
	wait := 0
	if c.Wait {
		wait = 1
	}
	return invocation{script: claimScript, keys: names(entryName(c.Key)),
		args: []any{int64(c.Seen), string(c.Holder), micro(c.Length), micro(c.Keep), wait, random()}}
}

func readVerdict(r reply, c store.Claim) (v store.Verdict, ok bool) {
	third, ok3 := r.number(2)
	if third < 0 || third >= 2*tokenLimit {
		return v, false // no token, and no time of ours
	}
	switch outcome := r.outcome(); outcome {
	case int64(store.Granted), int64(store.Changed), int64(store.Held), int64(store.Cooling):
		v.Outcome = store.Outcome(outcome)
	}
	switch v.Outcome {
	case store.Granted:
		birth, okB := r.text(3)
		takeover, okT := r.number(4)
		second, okS := r.number(5)
		same, okE := r.number(6)
		v.Grant = store.Grant{Key: c.Key, Holder: c.Holder, Token: store.Token(third), Birth: birth, Time: r.now(),
			Length: c.Length, Takeover: takeover == 1, SecondOpinion: second == 1}
		v.Same = same == 1
		return v, ok3 && okB && okT && okS && okE && third > 0
	case store.Changed:
		return v, true
	case store.Held:
		holder, okH := r.text(3)
		token, okT := r.number(4)
		same, okE := r.number(5)
		v.Left, v.Holder, v.Token = time.Duration(third)*time.Microsecond, store.Holder(holder), store.Token(token)
		v.Same = same == 1
		return v, ok3 && okH && okT && okE
	case store.Cooling:
		holder, okH := r.text(3)
		reason, okR := r.text(4)
		v.Left, v.Holder, v.Reason = time.Duration(third)*time.Microsecond, store.Holder(holder), reason
		return v, ok3 && okH && okR
	}
	return v, false
}

// Renew implements [store.Leases]: all renewals are one pipeline.
func (s *Store) Renew(ctx context.Context, renewals []store.Renewal) []error {
	invocations := make([]invocation, len(renewals))
	for n, r := range renewals {
		invocations[n] = invocation{script: renewScript, keys: names(entryName(r.Grant.Key)),
			args: []any{r.Grant.Birth, string(r.Grant.Holder), micro(r.Length)}}
	}
	replies, errs := s.invokeAll(ctx, "renew", invocations)
	for n, r := range replies {
		if errs[n] == nil && r.outcome() != 1 {
			errs[n] = store.ErrLost
		}
	}
	return nilIfNone(errs)
}

// maxReason bounds what a failure may write into the record.
const maxReason = 512

// Release implements [store.Leases].
func (s *Store) Release(ctx context.Context, g store.Grant, failure *store.Failure) error {
	cooldown, reason := int64(-1), ""
	if failure != nil {
		cooldown, reason = micro(failure.Cooldown), failure.Reason[:min(len(failure.Reason), maxReason)]
	}
	_, err := s.invoke(ctx, "release", invocation{script: releaseScript, keys: names(entryName(g.Key)),
		args: []any{g.Birth, string(g.Holder), cooldown, reason, channelName(g.Key.Space), g.Key.ID}})
	return err
}

// Begin implements [store.Store].
func (s *Store) Begin(ctx context.Context, key store.Key, keep time.Duration) (store.Begun, error) {
	if keep <= 0 {
		return store.Begun{}, fault("begin", fmt.Errorf("keep is %v: it must be above zero", keep))
	}
	r, err := s.invoke(ctx, "begin", invocation{script: beginScript, keys: names(entryName(key)), args: []any{micro(keep), random()}})
	if err != nil {
		return store.Begun{}, err
	}
	token, okT := r.number(2)
	birth, okB := r.text(3)
	if !okT || !okB || token <= 0 {
		return store.Begun{}, fault("begin", errReply)
	}
	return store.Begun{Token: store.Token(token), Birth: birth}, nil
}

// Fill implements [store.Store].
func (s *Store) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	w, err := s.filling(g, c)
	if err != nil {
		return err
	}
	return s.write(ctx, "fill", w)
}

// filling is a fill as it is sent.
func (s *Store) filling(g store.Grant, c store.Content) (content, error) {
	if err := s.checkContent(c); err != nil {
		return content{}, fault("fill", err)
	}
	if c.HandOver <= 0 {
		return content{}, fault("fill", fmt.Errorf("Content.HandOver is %v: it must be above zero", c.HandOver))
	}
	return content{
		entry: entryName(g.Key), holder: string(g.Holder), token: g.Token, content: c, script: fillScript, granted: true, asked: g.Time,
		args: []any{g.Birth, string(g.Holder), int64(g.Token), g.Time, micro(c.TTL), micro(c.Grace), micro(c.HandOver),
			channelName(g.Key.Space), g.Key.ID, s.carries(c)},
	}, nil
}

// Set implements [store.Store].
func (s *Store) Set(ctx context.Context, w store.Write) error {
	if err := s.checkContent(w.Content); err != nil {
		return fault("set", err)
	}
	begun, birth := "", ""
	var token store.Token
	if w.Begun != nil {
		token = w.Begun.Token
		begun, birth = strconv.FormatInt(int64(token), 10), w.Begun.Birth
	}
	return s.write(ctx, "set", content{
		entry: entryName(w.Key), holder: random(), token: token, content: w.Content, script: setScript,
		args: []any{begun, birth, micro(w.Content.TTL), micro(w.Content.Grace), channelName(w.Key.Space), w.Key.ID},
	})
}

// checkContent refuses what no entry can be made of.
func (s *Store) checkContent(c store.Content) error {
	switch {
	case c.Kind != store.Value && c.Kind != store.Absent && c.Kind != store.Pass:
		return fmt.Errorf("nothing of kind %v can be written", c.Kind)
	case c.TTL < 0 || c.Grace < 0:
		return fmt.Errorf("TTL %v and Grace %v must not be negative", c.TTL, c.Grace)
	case len(c.Payload) > s.opts.MaxValue:
		return fmt.Errorf("%w: %d bytes", errTooLarge, len(c.Payload))
	}
	return nil
}

// Invalidate implements [store.Store]: all keys are one pipeline.
func (s *Store) Invalidate(ctx context.Context, keys []store.Key) []error {
	return s.each(ctx, "invalidate", invalidateScript, keys)
}

// Expire implements [store.Store]: all keys are one pipeline.
func (s *Store) Expire(ctx context.Context, keys []store.Key) []error {
	return s.each(ctx, "expire", expireScript, keys)
}

func (s *Store) each(ctx context.Context, op string, sc *script, keys []store.Key) []error {
	invocations := make([]invocation, len(keys))
	for n, key := range keys {
		invocations[n] = invocation{script: sc, keys: names(entryName(key)), args: []any{channelName(key.Space), key.ID}}
	}
	_, errs := s.invokeAll(ctx, op, invocations)
	return nilIfNone(errs)
}

// Listen implements [store.Leases]. All spaces share one connection, which is
// opened by the first Listen and closed when nobody listens any more.
func (s *Store) Listen(space string, fn func(store.Event)) (stop func()) {
	return s.events.listen(space, fn)
}

// invoke runs one script within the bound.
func (s *Store) invoke(ctx context.Context, op string, i invocation) (reply, error) {
	return s.bounded(ctx, op, i.keys[0], func(ctx context.Context) (reply, error) { return i.run(ctx, s.client) })
}

// bounded runs something that ends with one script's reply.
func (s *Store) bounded(ctx context.Context, op, entry string, run func(context.Context) (reply, error)) (reply, error) {
	began := time.Now()
	var r reply
	err, abandoned := s.run.do(ctx, began, func(ctx context.Context) (err error) {
		r, err = run(ctx)
		return err
	})
	if abandoned {
		return nil, s.fault(op, entry, err) // r is still run's
	}
	if err != nil {
		return nil, s.fault(op, entry, err)
	}
	s.clock.learn(entry, r.now(), began)
	return r, nil
}

// invokeAll runs many scripts within one bound.
func (s *Store) invokeAll(ctx context.Context, op string, invocations []invocation) ([]reply, []error) {
	if len(invocations) == 0 {
		return nil, nil
	}
	began := time.Now()
	var replies []reply
	var errs []error
	err, abandoned := s.run.do(ctx, began, func(ctx context.Context) error {
		replies, errs = runAll(ctx, s.client, invocations)
		return nil
	})
	if abandoned || err != nil {
		all := make([]error, len(invocations))
		for n, i := range invocations {
			all[n] = s.fault(op, i.keys[0], err)
		}
		return make([]reply, len(invocations)), all
	}
	for n, i := range invocations {
		if errs[n] != nil {
			errs[n] = s.fault(op, i.keys[0], errs[n])
			continue
		}
		s.clock.learn(i.keys[0], replies[n].now(), began)
	}
	return replies, errs
}

// fault makes err a method's error, and forgets the clock of a server that may
// not be the one that answers next.
func (s *Store) fault(op, entry string, err error) error {
	f := fault(op, err)
	switch store.ClassOf(f) {
	case store.ClassConnection, store.ClassReadOnly, store.ClassLoading, store.ClassTimeout, store.ClassCluster:
		s.clock.forget(entry)
	}
	return f
}

// primeClock brings a first sample of the server's time when the subscription
// connects, so that the first read of a process need not ask for it. A cluster's
// servers are asked when they are read.
func (s *Store) primeClock(ctx context.Context) {
	if s.clock.slots != nil {
		return
	}
	began := time.Now()
	var server int64
	err, abandoned := s.run.do(ctx, began, func(ctx context.Context) (err error) {
		cmd := once{redis.NewCmd(ctx, "time")}
		_ = s.client.Process(ctx, cmd) // its error is Result's
		v, err := cmd.Result()
		if err == nil {
			server, err = readTime(v)
		}
		return err
	})
	if !abandoned && err == nil {
		s.clock.learn("", server, began)
	}
}

// names are the keys of a script.
func names(entry string) []string { return []string{entry, leaseName(entry)} }

// random is new for every sending.
func random() string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], rand.Uint64())
	return fmt.Sprintf("%x", b)
}

func nilIfNone(errs []error) []error {
	for _, err := range errs {
		if err != nil {
			return errs
		}
	}
	return nil
}
