package promguard

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// series is what is counted for one guard. Every series is made when the guard
// is: it shows as zero before anything happens, and a hit only adds.
type series struct {
	f     *families
	guard string

	answers      [cacheguard.Absent + 1][cacheguard.ViaPass + 1]prometheus.Counter // nil: does not happen
	stale        [cacheguard.StaleError + 1]prometheus.Counter
	answerErrors map[string]prometheus.Counter
	avoidedHere  prometheus.Counter
	avoidedFleet prometheus.Counter
	lookups      prometheus.Counter
	waitTime     prometheus.Observer

	flights    [cacheguard.FlightFailed + 1]prometheus.Counter // begun by a caller
	refreshes  [cacheguard.FlightFailed + 1]prometheus.Counter // begun in the background
	follows    map[string]prometheus.Counter
	followTime prometheus.Observer

	loads      map[[2]string]prometheus.Counter // by cause and outcome
	unleased   prometheus.Counter
	duplicates prometheus.Counter
	loadTime   prometheus.Observer
	loadShare  prometheus.Observer

	claims         [store.Cooling + 1]prometheus.Counter
	takeovers      prometheus.Counter
	secondOpinions prometheus.Counter
	leaseLength    prometheus.Observer
	watchdogLate   prometheus.Observer
	renewals       map[string]prometheus.Counter

	fills     map[string]prometheus.Counter
	fillBytes prometheus.Observer

	calls         map[string]prometheus.Observer
	faults        map[store.Class]prometheus.Counter
	breakerOpened prometheus.Counter
	panics        map[string]prometheus.Counter

	mu   sync.Mutex
	open map[*cacheguard.GuardInfo]struct{} // the guards of this name; guarded by mu
}

// The values of labels that no type of the guard has a String method for.
var (
	errorReasons  = []string{"caller_left", "cooldown", "wait_limit", "load_limit", "load_failed", "panic", "store", "cycle", "closed", "not_shared", "not_cached"}
	followResults = []string{"value", "lease", "cooldown", "wait_limit", "failed"}
	loadCauses    = []string{"miss", "stale", "early"}
	loadOutcomes  = []string{"value", "absent", "not_shared", "failed", "load_limit", "panic", "overtaken", "closed"}
	renewOutcomes = []string{"extended", "lost", "overtaken", "failed", "lapsed"}
	fillOutcomes  = []string{"landed", "fenced", "overtaken", "failed"}
	panicPlaces   = []string{"loader", "hook", "other"}
	storeOps      = []string{"load", "claim", "renew", "release", "fill", "begin", "set", "invalidate", "expire"}
	faultClasses  = []store.Class{
		store.ClassTimeout, store.ClassConnection, store.ClassPool, store.ClassReadOnly, store.ClassFull, store.ClassLoading,
		store.ClassCluster, store.ClassDenied, store.ClassData, store.ClassCanceled, store.ClassOther, classRefused,
	}
)

// classRefused stands for a call that was not made, since the breaker was open.
const classRefused store.Class = "refused"

// answerKinds are the answers that happen: what each source can give.
var answerKinds = map[cacheguard.Via][]cacheguard.State{
	0:                    {0},
	cacheguard.ViaNear:   {cacheguard.Fresh, cacheguard.Stale, cacheguard.Absent},
	cacheguard.ViaStore:  {cacheguard.Fresh, cacheguard.Stale, cacheguard.Absent},
	cacheguard.ViaFlight: {0, cacheguard.Fresh, cacheguard.Stale, cacheguard.Rebuilt, cacheguard.Followed, cacheguard.Absent},
	cacheguard.ViaPass:   {0, cacheguard.Rebuilt, cacheguard.Absent},
}

func newSeries(f *families, guard string) *series {
	s := &series{
		f: f, guard: guard,
		answerErrors:   counters(f.answerErrors, guard, errorReasons),
		avoidedHere:    f.loadsAvoided.WithLabelValues(guard, "process"),
		avoidedFleet:   f.loadsAvoided.WithLabelValues(guard, "fleet"),
		lookups:        f.lookupsAvoided.WithLabelValues(guard),
		waitTime:       f.waitTime.WithLabelValues(guard),
		follows:        counters(f.follows, guard, followResults),
		followTime:     f.followTime.WithLabelValues(guard),
		loads:          make(map[[2]string]prometheus.Counter),
		unleased:       f.unleased.WithLabelValues(guard),
		duplicates:     f.duplicates.WithLabelValues(guard),
		loadTime:       f.loadTime.WithLabelValues(guard),
		loadShare:      f.loadShare.WithLabelValues(guard),
		takeovers:      f.takeovers.WithLabelValues(guard),
		secondOpinions: f.secondOpinions.WithLabelValues(guard),
		leaseLength:    f.leaseLength.WithLabelValues(guard),
		watchdogLate:   f.watchdogLate.WithLabelValues(guard),
		renewals:       counters(f.renewals, guard, renewOutcomes),
		fills:          counters(f.fills, guard, fillOutcomes),
		fillBytes:      f.fillBytes.WithLabelValues(guard),
		calls:          make(map[string]prometheus.Observer),
		faults:         counters(f.faults, guard, faultClasses),
		breakerOpened:  f.breakerOpened.WithLabelValues(guard),
		panics:         counters(f.panics, guard, panicPlaces),
		open:           make(map[*cacheguard.GuardInfo]struct{}),
	}
	for via, states := range answerKinds {
		for _, state := range states {
			s.answers[state][via] = f.answers.WithLabelValues(guard, state.String(), via.String())
		}
	}
	for r := cacheguard.StaleGrace; r <= cacheguard.StaleError; r++ {
		s.stale[r] = f.stale.WithLabelValues(guard, r.String())
	}
	for e := cacheguard.FlightLed; e <= cacheguard.FlightFailed; e++ {
		s.flights[e] = f.flights.WithLabelValues(guard, "caller", e.String())
		s.refreshes[e] = f.flights.WithLabelValues(guard, "refresh", e.String())
	}
	for o := store.Granted; o <= store.Cooling; o++ {
		s.claims[o] = f.claims.WithLabelValues(guard, o.String())
	}
	for _, cause := range loadCauses {
		for _, outcome := range loadOutcomes {
			s.loads[[2]string{cause, outcome}] = f.loads.WithLabelValues(guard, cause, outcome)
		}
	}
	for _, op := range storeOps {
		s.calls[op] = f.callTime.WithLabelValues(guard, op)
	}
	return s
}

func counters[L ~string](vec *prometheus.CounterVec, guard string, values []L) map[L]prometheus.Counter {
	m := make(map[L]prometheus.Counter, len(values))
	for _, v := range values {
		m[v] = vec.WithLabelValues(guard, string(v))
	}
	return m
}

func (s *series) hooks() cacheguard.Hooks {
	return cacheguard.Hooks{
		Opened: s.opened,
		Answer: s.answer,
		Claim:  s.claim,
		Load:   s.load,
		Fill:   s.fill,
		Follow: s.follow,
		Flight: s.flight,
		Renew:  s.renew,
		Woken:  func(late time.Duration) { s.watchdogLate.Observe(late.Seconds()) },
		Call:   s.call,
		Breaker: func(open bool) {
			if open {
				s.breakerOpened.Inc()
			}
		},
		Fault: s.fault,
		Panic: func(p cacheguard.PanicInfo) { s.panics[panicPlace(p)].Inc() },
	}
}

func (s *series) answer(a cacheguard.AnswerInfo) {
	if c := s.answers[a.State][a.Via]; c != nil {
		c.Inc()
	} else {
		s.f.answers.WithLabelValues(s.guard, a.State.String(), a.Via.String()).Inc()
	}
	if a.Stale != 0 {
		s.stale[a.Stale].Inc()
	}
	if a.Coalesced {
		if a.Via == cacheguard.ViaFlight {
			s.avoidedHere.Inc()
		} else {
			s.lookups.Inc()
		}
	}
	if a.Waited > 0 {
		s.waitTime.Observe(a.Waited.Seconds())
	}
	if a.Err != nil {
		if reason := errorReason(a); reason != "" {
			s.answerErrors[reason].Inc()
		}
	}
}

// errorReason sorts the errors that callers get; "" is none.
func errorReason(a cacheguard.AnswerInfo) string {
	var panicked *cacheguard.PanicError
	var fault *store.Fault
	switch err := a.Err; {
	case errors.Is(err, cacheguard.ErrNotFound):
		return ""
	case a.Left:
		return "caller_left"
	case errors.Is(err, cacheguard.ErrCooldown):
		return "cooldown"
	case errors.Is(err, cacheguard.ErrWaitLimit):
		return "wait_limit"
	case errors.Is(err, cacheguard.ErrCycle):
		return "cycle"
	case errors.Is(err, cacheguard.ErrClosed):
		return "closed"
	case errors.Is(err, cacheguard.ErrNotCached):
		return "not_cached"
	case cacheguard.NotShared(err):
		return "not_shared"
	case errors.Is(err, cacheguard.ErrLoadLimit):
		return "load_limit"
	case errors.As(err, &panicked):
		return "panic"
	case errors.As(err, &fault):
		return "store"
	}
	return "load_failed"
}

func (s *series) claim(c cacheguard.ClaimInfo) {
	s.claims[c.Outcome].Inc()
	if c.Outcome != store.Granted {
		return
	}
	s.leaseLength.Observe(c.Length.Seconds())
	if c.Takeover {
		s.takeovers.Inc()
	}
	if c.SecondOpinion {
		s.secondOpinions.Inc()
	}
}

func (s *series) load(l cacheguard.LoadInfo) {
	cause := "miss"
	switch {
	case l.Early:
		cause = "early"
	case l.Background:
		cause = "stale"
	}
	outcome := loadOutcome(l)
	s.loads[[2]string{cause, outcome}].Inc()
	switch {
	case outcome == "overtaken":
		s.duplicates.Inc()
	case outcome == "value" || outcome == "absent":
		s.loadTime.Observe(l.Took.Seconds())
	}
	switch {
	case l.Length == 0:
		s.unleased.Inc()
	case outcome != "overtaken":
		s.loadShare.Observe(float64(l.Took) / float64(l.Length))
	}
}

func loadOutcome(l cacheguard.LoadInfo) string {
	var panicked *cacheguard.PanicError
	switch err := l.Err; {
	case err == nil:
		return "value"
	case errors.Is(err, cacheguard.ErrNotFound):
		return "absent"
	case cacheguard.NotShared(err):
		return "not_shared"
	case errors.Is(err, store.ErrLost):
		return "overtaken"
	case errors.Is(err, cacheguard.ErrClosed):
		return "closed"
	case errors.Is(err, cacheguard.ErrLoadLimit):
		return "load_limit"
	case errors.As(err, &panicked):
		return "panic"
	}
	return "failed"
}

func (s *series) fill(f cacheguard.FillInfo) {
	s.fillBytes.Observe(float64(f.Size))
	switch {
	case f.Err == nil:
		s.fills["landed"].Inc()
	case !errors.Is(f.Err, store.ErrFenced):
		s.fills["failed"].Inc()
	case f.Overtaken:
		s.fills["overtaken"].Inc()
	default:
		s.fills["fenced"].Inc()
		s.duplicates.Inc()
	}
}

func (s *series) follow(f cacheguard.FollowInfo) {
	s.followTime.Observe(f.Waited.Seconds())
	switch {
	case f.Granted:
		s.follows["lease"].Inc()
	case f.Err == nil, cacheguard.NotShared(f.Err):
		s.follows["value"].Inc()
	case errors.Is(f.Err, cacheguard.ErrCooldown):
		s.follows["cooldown"].Inc()
	case errors.Is(f.Err, cacheguard.ErrWaitLimit):
		s.follows["wait_limit"].Inc()
	default:
		s.follows["failed"].Inc()
	}
}

func (s *series) flight(f cacheguard.FlightInfo) {
	if f.Background {
		s.refreshes[f.End].Inc()
	} else {
		s.flights[f.End].Inc()
	}
	if f.End == cacheguard.FlightFollowed || f.End == cacheguard.FlightYielded {
		s.avoidedFleet.Inc()
	}
}

func (s *series) renew(r cacheguard.RenewInfo) {
	switch {
	case r.Err == nil:
		s.renewals["extended"].Inc()
	case r.Lapsed:
		s.renewals["lapsed"].Inc()
	case !errors.Is(r.Err, store.ErrLost):
		s.renewals["failed"].Inc()
	case r.Overtaken:
		s.renewals["overtaken"].Inc()
	default:
		s.renewals["lost"].Inc()
	}
}

func (s *series) call(c cacheguard.CallInfo) {
	if o := s.calls[c.Op]; o != nil {
		o.Observe(c.Took.Seconds())
	}
}

func (s *series) fault(f cacheguard.FaultInfo) {
	class := f.Class
	if f.Refused {
		class = classRefused
	}
	c := s.faults[class]
	if c == nil {
		c = s.faults[store.ClassOther] // a backend's own class: the set is fixed
	}
	c.Inc()
}

func panicPlace(p cacheguard.PanicInfo) string {
	switch {
	case p.Hook:
		return "hook"
	case strings.HasPrefix(p.Where, "loader"):
		return "loader"
	}
	return "other"
}
