package promguard

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// HTTPOutcome is what middleware.Outcome says of an answer, in a type of this
// package's own, so that metrics do not need the middleware. One converts to
// the other:
//
//	answered := metrics.HTTP("http")
//	pages, err := middleware.New(store, middleware.Options{
//		Hooks:   metrics.Hooks("http"),
//		Observe: func(o middleware.Outcome) { answered(promguard.HTTPOutcome(o)) },
//	})
type HTTPOutcome struct {
	Hit       bool
	Stale     bool
	Collapsed bool
	Stored    bool
	Forwarded string
	Detail    string
	Status    int
}

// result says in one word how a request was answered.
func (o HTTPOutcome) result() string {
	switch {
	case o.Hit && o.Stale:
		return "stale"
	case o.Hit:
		return "hit"
	case o.Collapsed:
		return "collapsed"
	case o.Stored:
		return "stored"
	case o.Forwarded == "":
		return "refused"
	}
	return "forwarded"
}

// maxReasons bounds the values of the labels that the middleware chooses: its
// texts are few, and should they ever not be, the rest counts as "other".
const maxReasons = 64

// HTTP returns what an HTTP cache of that name is to tell its answers to. The
// name becomes the label "guard", as that of [Collector.Hooks] does.
func (c *Collector) HTTP(cache string) func(HTTPOutcome) {
	s := &site{vec: c.httpAnswers, guard: labelValue(cache), counters: make(map[siteKey]prometheus.Counter)}
	for _, result := range []string{"hit", "stale", "collapsed", "stored", "forwarded", "refused"} {
		s.counter(siteKey{result: result})
	}
	return func(o HTTPOutcome) {
		s.counter(siteKey{o.result(), o.Forwarded, o.Detail}).Inc()
	}
}

// site counts the answers of one HTTP cache.
type site struct {
	vec   *prometheus.CounterVec
	guard string

	mu       sync.RWMutex
	counters map[siteKey]prometheus.Counter // at most maxReasons, and those of "other"; guarded by mu
}

type siteKey struct{ result, forwarded, detail string }

func (s *site) counter(k siteKey) prometheus.Counter {
	s.mu.RLock()
	c := s.counters[k]
	s.mu.RUnlock()
	if c != nil {
		return c
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c = s.counters[k]; c != nil {
		return c
	}
	if len(s.counters) >= maxReasons {
		return s.with(siteKey{k.result, "other", "other"})
	}
	c = s.with(k)
	s.counters[k] = c
	return c
}

func (s *site) with(k siteKey) prometheus.Counter {
	return s.vec.WithLabelValues(s.guard, k.result, orNone(k.forwarded), orNone(k.detail))
}

func orNone(text string) string {
	if text == "" {
		return "none"
	}
	return labelValue(text)
}
