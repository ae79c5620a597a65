package middleware

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// exchange is a request and the writer of its answer.
type exchange struct {
	c *Cache
	w http.ResponseWriter
	r *http.Request
}

// job is one request on its way through the cache, unless it is answered from
// the near cache at once.
type job struct {
	exchange
	next    http.Handler
	policy  *Policy // of its route
	adm     admission
	arrived time.Time
	url     string       // key of its URL's entry
	body    *requestBody // that is part of its key; nil: none is
	away    bool         // the generation of its key is not known
	client  client

	// The walk from the URL's entry down to the variant that r selects.
	key          string
	trail        string // of its variant parts, those of the keys' that do not change with the branch
	depth        int
	above        *response // the entry above, for a variant
	aboveKey     string    // of it
	aboveExpired bool      // that was made stale by hand
	oneOff       bool      // the variant is likely to be asked for this once: see oneOffs

	// What the last Do has found.
	seen   sight
	aged   bool // the answer that was taken is stale
	forced bool // a stored answer was turned down although it is fresh
	stale  bool // a stored answer was turned down because it is not

	fill    *fill
	run     atomic.Pointer[run] // that r has begun, and is waiting for
	along   atomic.Pointer[run] // that r may read along
	retried bool
	probing bool   // it has credentials, and it is not known whether they matter
	crowded bool   // too many wait already
	number  uint64 // of its arrival among those who wait; zero: it has not waited

	patience *time.Timer
	late     atomic.Bool // what it waits for streams, and it came too late for it

	mu   sync.Mutex // protects left, and a run's adoption
	left bool       // the request is over

	wait    waitState // of the first Do
	waiting atomic.Pointer[waitState]
}

// sight is what became of the answer that was last offered.
type sight uint8

const (
	sightNone   sight = iota // none was: what came is r's own
	sightTaken               // it is the answer
	sightOther               // it is another variant's: the answer is further down
	sightReload              // it is not good enough
)

// maxDepth bounds the walk: each step is a Vary that the one before did not
// name.
const maxDepth = 4

// The reasons for which a waiting request stops waiting.
var (
	errStreaming  = errors.New("middleware: the answer is streaming")
	errFilling    = errors.New("middleware: the answer is being stored")
	errTooLate    = errors.New("middleware: the answer streams to those who came earlier")
	errWaitedLong = errors.New("middleware: waited too long for another request's run")
	errProbing    = errors.New("middleware: another process's run may not be for this request")
)

// serve finds the answer. Every step ends with one, or leads further.
func (j *job) serve() {
	for {
		e, err := j.ask()
		if t := j.along.Swap(nil); t != nil {
			done := errors.Is(err, errStreaming) && j.readAlong(t)
			t.leave(j)
			switch {
			case done:
				return
			case errors.Is(err, errStreaming):
				continue // it is not for this request: wait on
			}
		}
		if !j.answer(e, err) {
			return
		}
	}
}

// ask asks the guard for the answer under the present key.
func (j *job) ask() (cacheguard.Entry[*response], error) {
	j.seen, j.fill = sightNone, nil
	if t := j.run.Load(); t != nil {
		j.run.Store(nil)
		t.leave(j) // of a step before, which somebody else's answer has overtaken
	}
	a := cacheguard.Ask[*response]{Accept: j.accept}
	j.crowded = j.c.waiting.Add(1) > int64(j.c.opts.MaxWaiting)
	defer j.c.waiting.Add(-1)
	if j.mayRun() && !j.crowded && !j.oneOff {
		a.Prepare = j.prepare
	}
	wait := &j.wait
	if j.depth > 0 || j.number > 0 {
		wait = new(waitState)
	}
	wait.parent = j.r.Context()
	j.waiting.Store(wait)
	e, err := j.c.guard.Do(wait, j.key, a)
	j.waiting.Store(nil)
	wait.end(context.Canceled)
	if j.fill != nil {
		j.fill.leader.Store(nil) // a run that begins from now on is not this request's
		j.c.fillings.forget(j.fill)
		j.patience.Stop()
		j.c.audience.leave(j.key, j)
	}
	return e, err
}

// mayRun tells whether the request is one that the handler is run for, with an
// answer that others may get.
func (j *job) mayRun() bool { return j.r.Method != http.MethodHead && !j.adm.cc.onlyIfCached }

// wake ends the wait of a request, for a cause of ours. The run that it waits
// for goes on.
func (j *job) wake(cause error) {
	if wait := j.waiting.Load(); wait != nil {
		wait.end(cause)
	}
}

// hurry cuts the wait for a run that has begun to stream.
func (j *job) hurry() {
	j.late.Store(true)
	j.patience.Reset(streamPatience)
}

// accept judges a stored answer, or one that another request's run has brought.
func (j *job) accept(e cacheguard.Entry[*response]) cacheguard.Use {
	p := e.Value
	if !j.c.keys.selects(j.r, p.selecting) {
		j.seen = sightOther
		if expiredByHand(e) {
			// Nobody may ever ask for that variant again. Whoever comes brings
			// the entry that the others are measured by up to date.
			j.unlead()
			return cacheguard.TakeAndRefresh
		}
		if fromFlight(e) {
			j.weigh(p)
		}
		return cacheguard.Take
	}
	s := j.standing(e)
	use := useReload
	if j.tagsStand(e, &s) {
		use = j.c.opts.decide(&j.adm, p, s)
	}
	j.aged = !s.fresh
	switch use {
	case useTake:
		j.take()
		if fromFlight(e) {
			j.share(p)
		}
		return cacheguard.Take
	case useRefresh:
		if j.oneOff {
			break // it is kept, so it is none
		}
		j.take()
		if j.aboveExpired {
			return cacheguard.Take // the entry above is being refreshed by this very variant
		}
		return cacheguard.TakeAndRefresh
	}
	j.seen = sightReload
	j.forced, j.stale = s.fresh, !s.fresh
	return cacheguard.Reload
}

// take: whatever is loaded from now on is nobody's answer but the next ones'.
func (j *job) take() {
	j.seen = sightTaken
	j.unlead()
}

func (j *job) unlead() {
	if j.fill != nil {
		j.fill.leader.Store(nil)
		j.fill.idle.Store(true)
	}
}

// adopt takes the run that the request's fill has begun, to be read as it goes.
// It reports false if the request is over.
func (j *job) adopt(t *run) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.left {
		return false
	}
	j.run.Store(t)
	return true
}

func (j *job) standing(e cacheguard.Entry[*response]) standing {
	s := standingOf(e)
	if !s.fresh || !j.adm.plain || e.Value.rules.has(ruleValidate) { // else it makes no difference
		s.forMe = j.askedSince(e)
	}
	if j.above != nil && (j.aboveExpired || e.Value.parentEpoch != j.above.epoch) {
		s.fresh = false // made stale by hand, with the entry above
	}
	return s
}

// askedSince tells whether the handler was asked after the request arrived. In
// the process that asked, the order is known; from elsewhere come durations,
// and what is too close to tell counts as before. The answer to a no-cache
// must not be older than it in any case.
func (j *job) askedSince(e cacheguard.Entry[*response]) bool {
	p := e.Value
	here := p.madeBy == j.c
	switch {
	case p.rules.has(ruleOlder), p.rules.has(ruleHere) && !here:
		return false
	case p.handOver() && !j.adm.cc.noCache && (p.status >= 500 || !here):
		// The guard gives it only to those who were waiting when it came. Of a
		// failure that is all there is to know; how long they had been waiting,
		// another process cannot say.
		return true
	case here:
		return j.number != 0 && p.curtain > j.number
	}
	return e.Age+tooClose <= time.Since(j.arrived)
}

const tooClose = 2 * time.Millisecond

// prepare makes what a run of the handler needs, before the request can end.
func (j *job) prepare() cacheguard.Reloader[*response] {
	r := j.r.Clone(context.WithoutCancel(j.r.Context()))
	r.Body, r.GetBody, r.ContentLength = http.NoBody, nil, 0
	dropConditions(r.Header)
	for _, name := range j.c.opts.HideHeaders {
		delete(r.Header, name)
	}
	j.fill = &fill{
		c: j.c, next: j.next, req: r, route: ownRoute(j.r.Context()),
		policy: j.policy, adm: j.adm, body: j.body, probe: j.probing, key: j.key, above: j.above, away: j.away,
		url: j.url, trail: j.trail,
		outer: http.Header{"Cache-Control": j.w.Header()["Cache-Control"]},
		shape: j.w, wait: j.waiting.Load(),
	}
	if j.seen == sightTaken || j.seen == sightOther {
		j.fill.idle.Store(true)
	} else {
		j.fill.leader.Store(j)
	}
	j.late.Store(false)
	limit := j.c.opts.WaitLimit
	if j.probing {
		limit = min(limit, probePatience)
	}
	j.patience = time.AfterFunc(limit, func() {
		switch {
		case j.run.Load() != nil: // who has a run of its own does not wait for another's
		case j.probing:
			j.wake(errProbing)
		case j.late.Load():
			j.wake(errTooLate)
		default:
			j.wake(errWaitedLong)
		}
	})
	number := j.c.audience.join(j.key, j)
	if j.number == 0 {
		j.number = number
	}
	return j.fill.load
}

// answer turns what Do has said into an answer. It reports whether to go on.
func (j *job) answer(e cacheguard.Entry[*response], err error) (again bool) {
	own := j.run.Load()
	switch {
	case err != nil:
		return j.answerWithout(e, err, own)
	case j.seen == sightOther:
		return j.descend(e)
	case j.seen == sightTaken:
		j.learn(e.Value.rules.has(rulePublic))
		j.reply(e.Value, e)
	case own != nil:
		j.learn(true)
		j.replyOwn(own, e, !e.Value.handOver())
	default:
		j.reply(e.Value, e) // another's, that it did not have to be asked about
	}
	return false
}

// answerWithout is answer for when there is nothing to share: err says why. e
// is what is kept and was not good enough.
func (j *job) answerWithout(e cacheguard.Entry[*response], err error, own *run) (again bool) {
	var (
		pass     *cacheguard.PassError
		aborted  *abortedError
		unshared *unsharedError
		failed   *failedError
		cooling  *cacheguard.CooldownError
	)
	switch {
	case errors.Is(err, errFilling) && own != nil && own.storing.Load() != nil:
		s := own.storing.Load()
		j.learn(true)
		j.replyOwn(own, cacheguard.Entry[*response]{Value: &s.shown}, s.stored.Load() && !s.shown.handOver())
	case own != nil && !errors.As(err, &failed) && !errors.As(err, &aborted) && !isCut(err):
		if !errors.Is(err, errProbing) { // else its run began at the last moment, and has said nothing yet
			j.learn(!errors.As(err, &unshared) && !errors.As(err, &pass))
		}
		j.stream(own, true)
	case errors.As(err, &pass), errors.As(err, &unshared):
		j.forward(fwdMiss, "pass")
	case errors.Is(err, cacheguard.ErrNotCached) && j.oneOff && !j.crowded:
		return j.notStored(e)
	case errors.Is(err, cacheguard.ErrNotCached):
		j.notCached(e)
	case errors.Is(err, errTooLate):
		j.forward(j.fwd(), "stream")
	case errors.Is(err, errProbing):
		j.forward(fwdMiss, "authorization")
	case errors.Is(err, cacheguard.ErrCycle):
		j.forward(fwdBypass, "cycle")
	case errors.Is(err, cacheguard.ErrClosed):
		j.forward(fwdBypass, "closed")
	case j.r.Context().Err() != nil:
		// Nobody is there to be answered.
	case j.mayServeStale(e):
		j.reply(e.Value, e)
	case own != nil:
		j.stream(own, true)
	case errors.As(err, &failed):
		j.replyFailure(failed.answer)
	case errors.As(err, &cooling):
		j.refuse(http.StatusServiceUnavailable, cooling.Left, "cooldown")
	case errors.As(err, &aborted) && !j.retried:
		j.retried = true
		return true
	case errors.Is(err, errWaitedLong), errors.Is(err, cacheguard.ErrWaitLimit):
		j.escape()
	case errors.As(err, &aborted):
		j.refuse(http.StatusBadGateway, 0, "aborted")
	default:
		j.refuse(http.StatusGatewayTimeout, 0, "failed")
	}
	return false
}

// isCut tells whether a load was ended by its limit rather than by its handler.
func isCut(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

// descend goes to the variant that r selects.
func (j *job) descend(e cacheguard.Entry[*response]) (again bool) {
	key, err := j.c.keys.variant(j.key, j.r, e.Value)
	if j.depth++; err != nil || j.depth > maxDepth {
		j.forward(fwdBypass, "variants")
		return false
	}
	j.trail += key[len(j.key)+branchPart:]
	j.aboveKey, j.key = j.key, key
	j.above, j.aboveExpired = e.Value, expiredByHand(e)
	j.forced, j.stale = false, false
	return !j.passOneOff(e)
}

// notCached answers a request that does not run the handler for others: a HEAD,
// or one that is only to be answered by what is stored. e is what is kept and was
// not good enough.
func (j *job) notCached(e cacheguard.Entry[*response]) {
	switch {
	case j.adm.cc.onlyIfCached:
		j.refuse(http.StatusGatewayTimeout, 0, "only-if-cached")
	case j.crowded && j.r.Method != http.MethodHead:
		j.refuse(http.StatusServiceUnavailable, time.Second, "crowded")
	default:
		j.forwardHead(e)
	}
}

// escape runs the handler for a request that has waited too long, unless too
// many do so already.
func (j *job) escape() {
	select {
	case j.c.escapes <- struct{}{}:
		defer func() { <-j.c.escapes }()
		j.forward(fwdMiss, "waited")
	default:
		j.refuse(http.StatusServiceUnavailable, time.Second, "waited")
	}
}

func (j *job) mayServeStale(e cacheguard.Entry[*response]) bool {
	if e.State == 0 || !j.c.keys.selects(j.r, e.Value.selecting) {
		return false
	}
	s := j.standing(e)
	stand := j.tagsStand(e, &s)
	j.aged = !s.fresh
	return stand && j.c.opts.decideOnError(&j.adm, e.Value, s)
}

// refuse answers in the handler's place.
func (j *job) refuse(status int, retryAfter time.Duration, detail string) {
	h := j.w.Header()
	h.Set("Cache-Control", "no-store")
	if retryAfter > 0 {
		h.Set("Retry-After", strconv.FormatInt(int64((retryAfter+time.Second-1)/time.Second), 10))
	}
	j.c.addStatus(h, cacheStatus{detail: detail})
	http.Error(j.w, http.StatusText(status), status)
}

// fwd says why the request was not answered by what is stored (RFC 9211 2.2).
func (j *job) fwd() string {
	switch {
	case j.forced:
		return fwdRequest
	case j.stale:
		return fwdStale
	case j.above != nil:
		return fwdVaryMiss
	}
	return fwdURIMiss
}

// leave ends the request's part in everything that goes on without it.
func (j *job) leave() {
	j.client.leave()
	j.mu.Lock()
	j.left = true
	j.mu.Unlock()
	if t := j.run.Load(); t != nil {
		t.leave(j)
	}
}

// raise does in the request's own goroutine what the handler did in the run's:
// the server and the middlewares in front see what they would have seen.
func raise(failure error) {
	var p *handlerPanic
	switch {
	case !errors.As(failure, &p):
		panic(http.ErrAbortHandler)
	case p.goexit:
		runtime.Goexit()
	}
	panic(p.value)
}
