package middleware

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/internal/tokenctx"
)

// fill is what a request leaves behind to have its key filled: everything that
// a run of the handler needs, owned by nobody else, so that the run can begin
// later, elsewhere, and outlive the request.
type fill struct {
	c      *Cache
	next   http.Handler
	req    *http.Request // a copy, without body, conditions and range; no handler has it
	body   *requestBody  // of each run; nil: none
	route  func(context.Context) context.Context
	policy *Policy
	adm    admission
	probe  bool // it finds out for its own request alone; see job.probing
	key    string
	above  *response   // the entry above, for a variant
	url    string      // key of the URL's entry
	trail  string      // what tells the variant from the URL's others
	epoch  store.Token // of the tags, when the run began; 0: not known
	away   bool        // the generation of the key is not known
	begun  uint64      // number of its last run among the arrivals
	outer  http.Header
	leader atomic.Pointer[job] // who is to be given the run as it goes; nil: nobody
	idle   atomic.Bool         // nobody waits for it: it runs in the background
	shape  http.ResponseWriter // what the handler's writer is to be like; never written to
	wait   *waitState          // of the one who is given the run

	filling filling // of its run; protected by c.fillings.mu
}

// What a loader answers when there is nothing to keep. Each knows its own
// cooldown: an answer that was not whole, or not for others, is no reason to
// leave the key alone.
type (
	// abortedError: the handler panicked or was cut. Those who waited ask
	// again.
	abortedError struct {
		cause    error
		cooldown time.Duration
	}

	// unsharedError: the answer is for its own client alone, and says nothing
	// about the next ones. Those who waited run their own at once.
	unsharedError struct {
		reason   string
		broken   bool // something is wrong with the handler
		cooldown time.Duration
	}

	// failedError: the handler answered with a failure, and what is kept is of
	// more use than that. Those who waited get what is kept, or the failure,
	// or, if it is not for them, run their own.
	failedError struct {
		status   int
		answer   *response // nil: it is for its own client alone
		cooldown time.Duration
	}
)

func (e *abortedError) Error() string           { return e.cause.Error() }
func (e *abortedError) Unwrap() error           { return e.cause }
func (e *abortedError) Cooldown() time.Duration { return e.cooldown }

// NotShared implements [cacheguard.Sharer]: nothing has failed if the request
// only found out for itself.
func (e *abortedError) NotShared() bool { return errors.Is(e.cause, errProbing) }

func (e *unsharedError) Error() string           { return "middleware: answer is not to be shared: " + e.reason }
func (e *unsharedError) Cooldown() time.Duration { return e.cooldown }

// NotShared implements [cacheguard.Sharer]: that an answer is for its own client
// is no failure.
func (e *unsharedError) NotShared() bool { return !e.broken }

func (e *failedError) Error() string {
	return fmt.Sprintf("middleware: handler answered %d", e.status)
}
func (e *failedError) Cooldown() time.Duration { return e.cooldown }

// failureCooldown is how long a process leaves a key alone whose handler
// failed, while a stale answer is served instead.
const failureCooldown = time.Second

// load runs the handler and says what is to be kept. It returns as soon as it
// is known that nothing is, and lets the handler go on for its own client.
func (f *fill) load(ctx context.Context, prev cacheguard.Entry[*response]) (*response, error) {
	if prev.State == cacheguard.Fresh && f.idle.Load() && !f.c.keys.selects(f.req, prev.Value.selecting) {
		// It is time to refresh this entry early, but this request is for
		// another variant, and would put that in its place.
		return nil, &unsharedError{reason: "variant"}
	}
	if f.probe && f.leader.Load() == nil && !f.idle.Load() {
		// Its request has gone past the cache, and finds out there. Those without
		// credentials who wait here begin again, without it.
		return nil, &abortedError{cause: errProbing}
	}
	if len(f.c.opts.TagHeaders) > 0 {
		// Without an epoch, what has tags is not kept: see tag.
		if epoch, err := f.c.marks.epoch(ctx); err == nil {
			f.epoch = epoch
		}
	}
	asked := time.Now()
	known := f.known(prev)
	t, err := f.run(ctx, known, prev, asked)
	if err == nil && known != nil && t.status == http.StatusNotModified {
		if sameValidator(known, t.sent) {
			return f.freshen(ctx, known, prev, t, asked)
		}
		// The handler vouches for something else than what is kept.
		known = nil
		t, err = f.run(ctx, nil, prev, asked)
	}
	if err == nil {
		_, failure := t.outcome()
		err = incomplete(ctx, failure)
	}
	if err != nil {
		return nil, f.cooled(prev, err)
	}
	v, _ := t.outcome()
	shared := v.class == classStore || v.class == classHandOver
	switch {
	case t.status >= 500 && prev.State != 0:
		// What is kept is not thrown away for a failure.
		e := &failedError{status: t.status}
		if shared {
			e.answer = f.keep(prev, v, t)
		}
		return nil, f.cooled(prev, e)
	case shared:
		p := f.keep(prev, v, t)
		f.settling(t, *p)
		if err := f.tag(ctx, p); err != nil {
			return p, err
		}
		f.settle(ctx, p)
		f.storing(ctx, t, *p)
		return p, nil
	}
	return nil, f.cooled(prev, f.notShared(v))
}

// settling says what would be kept of a run's answer, which p is a copy of, and
// lets its client go if it takes long to find out how.
func (f *fill) settling(t *run, p response) {
	t.storing.Store(&storing{shown: p, wait: f.wait})
	f.letGoAfter(settlePatience)
}

// storing says what is kept, and lets the client go if it takes long to be
// written. Without a lease it is not.
func (f *fill) storing(ctx context.Context, t *run, p response) {
	s := &storing{shown: p, wait: f.wait}
	t.storing.Store(s)
	if token, leased := tokenctx.FromContext(ctx); leased {
		f.c.fillings.expect(f, token, s)
	}
}

// letGoAfter has the client that this is a run for answered with what the handler
// said, if it still waits by then for what becomes of that.
func (f *fill) letGoAfter(patience time.Duration) {
	if f.leader.Load() != nil {
		time.AfterFunc(patience, func() { f.wait.end(errFilling) })
	}
}

// notShared is what the loader answers when the answer is for its own client
// alone.
func (f *fill) notShared(v verdict) error {
	if v.class == classPass {
		// A little shorter each time, so that what was marked together does not
		// lapse together.
		d := f.c.opts.PassFor
		return &cacheguard.PassError{For: d - rand.N(d/5+1)}
	}
	return &unsharedError{reason: v.reason}
}

// cooled gives an error its cooldown: if something stale is served instead, or
// nobody waits, the handler is left alone for a moment.
func (f *fill) cooled(prev cacheguard.Entry[*response], err error) error {
	if !f.idle.Load() && !f.servesStale(prev) {
		return err
	}
	switch e := err.(type) { // made here: nothing wraps it
	case *abortedError:
		e.cooldown = failureCooldown
	case *unsharedError:
		e.cooldown = failureCooldown
	case *failedError:
		e.cooldown = failureCooldown
	}
	return err
}

func (f *fill) servesStale(prev cacheguard.Entry[*response]) bool {
	return prev.State != 0 && f.c.opts.decideOnError(&f.adm, prev.Value, standingOf(prev))
}

// run starts the handler and waits until it has ended or is not to be waited
// for. The error is then what the loader returns.
func (f *fill) run(ctx context.Context, known *response, prev cacheguard.Entry[*response], asked time.Time) (*run, error) {
	if !f.c.enter() {
		return nil, cacheguard.ErrClosed
	}
	f.begun = f.c.audience.curtain()
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	leader := f.leader.Load()
	t := newRun(f.c.opts.MaxBody, leader, cancel, f.judge(known, prev, asked))
	t.req = f.req
	if leader != nil && !leader.adopt(t) {
		t.leave(leader) // it has gone while the lease was waited for
		leader = nil
	}
	go func() {
		defer f.c.runs.Done()
		defer context.AfterFunc(f.c.ctx, func() { cancel(cacheguard.ErrClosed) })()
		defer cancel(nil)
		var failure error
		defer func() { t.finish(failure) }() // also if the handler calls runtime.Goexit
		f.handle(own, t, known, &failure)
	}()
	for streaming := t.streaming; ; {
		select {
		case <-streaming:
			streaming = nil
			if t.isAlone() {
				continue
			}
			if leader != nil {
				leader.wake(errStreaming)
			}
			defer f.c.audience.invite(f.key, f.begun, t)()
		case <-t.decided:
			// From here on the run is its client's, and ends with it.
			stop()
			v, _ := t.outcome()
			return nil, f.notShared(v)
		case <-t.done:
			stop()
			return t, nil
		case <-ctx.Done():
			return nil, &abortedError{cause: context.Cause(ctx)}
		}
	}
}

// handle runs the handler on the recording. failure is set if it did not end
// well.
func (f *fill) handle(ctx context.Context, t *run, known *response, failure *error) {
	// Its own, to the last field: what it does to its request (a header that it
	// deletes, a path that it rewrites) must not change what the answer is kept
	// as, nor be seen by another run.
	r := f.req.Clone(f.route(ctx))
	if f.body != nil {
		f.body.restore(r)
	}
	if known != nil {
		setConditions(r.Header, known)
	}
	returned := false
	defer func() {
		if !returned {
			*failure = f.c.handlerPanicked(recover())
		} else if cause := context.Cause(ctx); cause != nil {
			*failure = cause
		}
	}()
	f.next.ServeHTTP(t.writerFor(f.shape), r)
	returned = true
}

// handlerPanicked makes the failure of a handler that did not return. recovered
// is nil if it called runtime.Goexit.
func (c *Cache) handlerPanicked(recovered any) *handlerPanic {
	p := &handlerPanic{value: recovered, stack: debug.Stack(), goexit: recovered == nil}
	if hook := c.opts.Hooks.Panic; hook != nil && recovered != http.ErrAbortHandler {
		hook(cacheguard.PanicInfo{Where: "handler", Value: recovered, Stack: p.stack})
	}
	return p
}

// judge returns the judgement on the answers of this fill. What was set on the
// writer in front of the cache counts if the handler says nothing itself.
func (f *fill) judge(known *response, prev cacheguard.Entry[*response], asked time.Time) func(int, http.Header) verdict {
	return func(status int, h http.Header) verdict {
		if status == http.StatusNotModified && known != nil {
			return verdict{class: classStore}
		}
		if outer := f.outer["Cache-Control"]; outer != nil && h["Cache-Control"] == nil {
			h = maps.Clone(h)
			h["Cache-Control"] = outer
		}
		now := time.Now()
		v := f.c.opts.judge(question{
			credentialed: f.adm.credentialed,
			origin:       f.req.Header.Get("Origin"),
			now:          now,
			delay:        now.Sub(asked),
			policy:       *f.policy,
		}, status, h)
		if v.class == classPass && f.adm.credentialed {
			v.class = classUnshared // it says nothing about requests without
		}
		if v.class == classStore && !storable(h) {
			v = refuse(status, "field")
		}
		// With something stale to serve, a failure is not streamed to the one
		// who asked, whatever it says about its keeping.
		v.held = status >= 500 && f.servesStale(prev)
		return v
	}
}

// incomplete turns the failure of a run into what the loader answers, or nil.
func incomplete(ctx context.Context, failure error) error {
	var missing errIncomplete
	switch {
	case errors.As(failure, &missing):
		return &unsharedError{reason: "incomplete", broken: true}
	case failure != nil:
		return &abortedError{cause: failure}
	case ctx.Err() != nil:
		return &abortedError{cause: context.Cause(ctx)}
	}
	return nil
}

// known returns what is kept of the answer that the request selects, if the
// handler can be asked whether it still holds.
func (f *fill) known(prev cacheguard.Entry[*response]) *response {
	if f.body != nil { // a condition would mean another thing there (RFC 9110 13.1.2)
		return nil
	}
	if prev.State == 0 || !prev.Value.validator() || !f.c.keys.selects(f.req, prev.Value.selecting) {
		return nil
	}
	return prev.Value
}

// keep makes what is kept of a run's answer.
func (f *fill) keep(prev cacheguard.Entry[*response], v verdict, t *run) *response {
	p := f.response(prev, v, t.sent)
	p.status = t.status
	p.body = slices.Clip(t.buf)
	p.trailer = t.trailer
	if f.c.opts.AutoETag && p.status == http.StatusOK && !v.rules.has(ruleTransform) && p.header["Etag"] == nil {
		p.header["Etag"] = []string{etagOf(p.body)}
	}
	if v.class != classStore {
		p.lifetime, p.grace = 0, 0
	}
	return p.ready()
}

// settle finds a seat for what is to be kept, and has it audited if it is.
func (f *fill) settle(ctx context.Context, p *response) {
	f.seat(ctx, p)
	if !p.handOver() {
		f.audit(p)
	}
}

// response makes a response of an answer's header: what is kept of it, and how
// it may be reused.
func (f *fill) response(prev cacheguard.Entry[*response], v verdict, sent http.Header) *response {
	names, _ := varyNames(sent["Vary"])
	p := &response{
		header:    f.c.opts.kept(sent, v.omit),
		selecting: f.c.keys.selectors(f.req, names),
		branch:    newBranch(),
		epoch:     newBranch(),
		base:      v.base,
		lifetime:  v.lifetime,
		swr:       v.swr,
		sie:       v.sie,
		grace:     v.grace,
		rules:     v.rules,
		madeBy:    f.c,
		curtain:   f.begun,
	}
	if prev.State != 0 {
		// The other variants stay where they are, unless this entry was made
		// stale by hand: then they are stale too.
		p.branch = prev.Value.branch
		if !expiredByHand(prev) {
			p.epoch = prev.Value.epoch
		}
	}
	if f.above != nil {
		p.parent, p.parentEpoch = f.above.branch, f.above.epoch
	}
	return p
}

// freshen makes a response of what is kept and a 304 that says it still holds
// (RFC 9111 3.2, 4.3.4).
func (f *fill) freshen(ctx context.Context, known *response, prev cacheguard.Entry[*response], t *run, asked time.Time) (*response, error) {
	merged := f.merge(known, t.sent)
	v := f.judge(nil, prev, asked)(known.status, merged)
	p := f.response(prev, v, merged)
	p.status, p.body, p.trailer = known.status, known.body, known.trailer
	p.ready()
	f.settling(t, *p) // its client gets this, not the 304, whatever becomes of it
	switch v.class {
	case classStore:
		err := f.tag(ctx, p)
		if err == nil {
			f.settle(ctx, p)
		}
		return p, err
	case classHandOver:
		p.lifetime, p.grace = 0, 0
		return p, nil
	}
	return p, f.notShared(v)
}

// merge returns the header of what is kept with the fields of an answer that
// vouches for it (RFC 9111 3.2), to be judged: with the Age of that answer, which
// is not kept.
func (f *fill) merge(known *response, sent http.Header) http.Header {
	merged := cloneHeader(known.header)
	for name, values := range f.c.opts.kept(sent, nil) {
		if !fixedBy304[name] {
			merged[name] = values
		}
	}
	if age := sent["Age"]; age != nil {
		merged["Age"] = age
	}
	return merged
}

// fixedBy304 are fields that describe the stored bytes: a 304 does not change
// them.
var fixedBy304 = map[string]bool{
	"Content-Encoding": true, "Content-Length": true, "Content-Range": true, "Transfer-Encoding": true,
}

// expiredByHand tells an entry that Expire has made stale from one whose
// lifetime is over.
func expiredByHand(e cacheguard.Entry[*response]) bool {
	return e.State == cacheguard.Stale && e.Age < e.TTL
}

// standingOf says where an entry stands in its life.
func standingOf(e cacheguard.Entry[*response]) standing {
	s := standing{fresh: e.Left > 0 && e.State != cacheguard.Stale, since: e.Age}
	switch {
	case s.fresh:
	case e.Keep > 0: // what is gone of its grace
		s.staleness = max(e.Value.grace-e.Keep, 0)
	default:
		s.staleness = max(e.Age-e.TTL, 0)
	}
	return s
}

// kept returns the part of an answer's header that may be given to others.
func (o *Options) kept(sent http.Header, omit []string) http.Header {
	h := make(http.Header, len(sent))
	for name, values := range sent {
		name = canonical(name)
		h[name] = append(h[name], values...)
	}
	deleteConnectionFields(h)
	for _, list := range [][]string{leaderOnly, o.Strip, omit} {
		for _, name := range list {
			delete(h, name)
		}
	}
	if o.SetCookie != SetCookieKeep {
		delete(h, "Set-Cookie")
		delete(h, "Set-Cookie2")
	}
	if o.StripTargets {
		for _, name := range o.Targets {
			delete(h, name)
		}
	}
	return h
}

// storable tells whether every field of h can be sent again as it is.
func storable(h http.Header) bool {
	for name, values := range h {
		if !isToken(name) || !all(values, isFieldValue) {
			return false
		}
	}
	return true
}

func all(values []string, is func(string) bool) bool {
	return !slices.ContainsFunc(values, func(v string) bool { return !is(v) })
}
