package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// target is somebody's running service. What its origin is asked cannot be
// known here: no promise is judged, and only its answers are measured.
type target struct {
	urls []string
}

// targetRate is how many requests a second somebody's service gets unless -rate
// says otherwise, to all URLs in turn.
const targetRate = 100

// targetURLs reads the list of -target.
func targetURLs(list string) (urls []string, err error) {
	for text := range strings.SplitSeq(list, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("%q is no URL of a service; use one like http://localhost:8080/products/1", text)
		}
		urls = append(urls, u.String())
	}
	return urls, nil
}

// checkTarget refuses what a target cannot do.
func (o options) checkTarget(fs *flag.FlagSet) (err error) {
	fs.Visit(func(f *flag.Flag) {
		switch f.Name {
		case "scenario", "mode", "replicas", "load", "redis", "excuse":
			err = fmt.Errorf("-%s is about a fleet of our own; leave it out with -target", f.Name)
		}
	})
	switch {
	case err != nil:
		return err
	case o.clients < 1 || o.clients*len(o.target.urls) > maxCallers:
		return fmt.Errorf("-clients %d is out of range; use at least 1, and at most %d for all URLs together", o.clients, maxCallers)
	case o.rounds < 1 || o.rounds > maxRounds:
		return fmt.Errorf("-rounds %d is out of range; use 1 to %d", o.rounds, maxRounds)
	}
	return o.checkRate()
}

// targetReport is what -json writes for a target.
type targetReport struct {
	URLs   []string      `json:"urls"`
	Storms *targetResult `json:"storms"` // all callers at one instant, all rounds together
	Steady *targetResult `json:"steady"` // at a rate
}

// withoutPasswords are URLs as a report may show them: it is passed on.
func withoutPasswords(urls []string) (shown []string) {
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil {
			continue // they were parsed before
		}
		shown = append(shown, u.Redacted())
	}
	return shown
}

// targetResult is what the answers of a target were.
type targetResult struct {
	Requests  int            `json:"requests"`
	Rate      float64        `json:"rate,omitzero"` // a second, that were sent
	Late      int            `json:"late,omitzero"` // sent more than lateAfter after they were due
	Errors    int            `json:"errors"`        // no answer, or a status of 400 and above
	Error     string         `json:"error,omitzero"`
	Statuses  map[string]int `json:"statuses"`
	States    map[string]int `json:"states,omitzero"`     // what the answers say of the cache that they came from; see stateOf
	LatencyMS *quantiles     `json:"latency_ms,omitzero"` // of the answers, errors included

	latencies
	line *timeline // nil: not at a rate
}

func newTargetResult() *targetResult {
	return &targetResult{Statuses: map[string]int{}, latencies: newLatencies()}
}

// newSteadyResult is of answers that come at a rate.
func newSteadyResult(span time.Duration) *targetResult {
	r := newTargetResult()
	r.line, r.States = newTimeline(span), map[string]int{}
	return r
}

// addAt notes when an answer was due, and where it came from.
func (r *targetResult) addAt(due, latency time.Duration, state string) {
	r.States[state]++
	r.line.add(due, latency, state)
}

// add counts an answer. A status of 0 is none.
func (r *targetResult) add(latency time.Duration, status int, err string) {
	r.Requests++
	r.latencies.add(min(latency, 2*callLimit))
	if status > 0 {
		r.Statuses[fmt.Sprint(status)]++
	}
	if status == 0 || status >= http.StatusBadRequest {
		r.Errors++
		if r.Error == "" {
			if r.Error = err; err == "" {
				r.Error = fmt.Sprintf("status %d", status)
			}
		}
	}
}

func (r *targetResult) finish() {
	if r.Requests == 0 {
		return
	}
	r.LatencyMS = r.quantiles()
	if r.line != nil {
		r.LatencyMS.P999 = r.quantile(0.999)
	}
}

// askTarget runs storms against a target, and then asks it at a rate.
func askTarget(ctx context.Context, opts options, out io.Writer, progress *progress) error {
	progress.watch(nil, nil)
	rep := targetReport{URLs: withoutPasswords(opts.target.urls)}
	var err error
	if rep.Storms, err = targetStorms(ctx, opts, progress); err == nil {
		progress.say(fmt.Sprintf("%d requests a second for %v", opts.rate, opts.span))
		rep.Steady, err = steady(ctx, opts.target.urls, opts.rate, opts.span, progress)
	}
	progress.end()
	err = interrupted(ctx, err)
	printTarget(out, opts, rep)
	if opts.json != "" {
		err = errors.Join(err, writeJSON(opts.json, rep))
	}
	if opts.html != "" {
		err = errors.Join(err, writePage(opts.html, newTargetPage(opts, rep, time.Now())))
	}
	for _, r := range []*targetResult{rep.Storms, rep.Steady} {
		if r != nil && r.Errors > 0 {
			err = errors.Join(err, fmt.Errorf("%d of %d requests brought no good answer: %s", r.Errors, r.Requests, r.Error))
		}
	}
	return err
}

// targetStorms lets all callers ask at one instant, in each round.
func targetStorms(ctx context.Context, opts options, progress *progress) (*targetResult, error) {
	callers := opts.clients * len(opts.target.urls)
	transport := &http.Transport{MaxIdleConnsPerHost: callers, MaxConnsPerHost: callers}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: callLimit, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r := newTargetResult()
	defer r.finish()
	for n := range opts.rounds {
		progress.say(fmt.Sprintf("storm %d of %d: %d callers", n+1, opts.rounds, callers))
		begin := time.Now().Add(stormLead + time.Duration(callers)*stormLeadEach)
		var mu sync.Mutex // guards r
		var all sync.WaitGroup
		for i := range callers {
			all.Go(func() {
				if pause(ctx, time.Until(begin)) != nil {
					return
				}
				status, err := fetchStatus(ctx, client, opts.target.urls[i%len(opts.target.urls)])
				took := time.Since(begin)
				if ctx.Err() != nil && status == 0 {
					return // that there is no answer is our doing
				}
				progress.answered.Add(1)
				mu.Lock()
				defer mu.Unlock()
				r.add(took, status, err)
			})
		}
		all.Wait()
		if err := ctx.Err(); err != nil {
			return r, err
		}
	}
	return r, nil
}

// fetchStatus gets a URL and reads all of it.
func fetchStatus(ctx context.Context, client *http.Client, url string) (status int, problem string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err.Error()
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return 0, err.Error()
	}
	return resp.StatusCode, ""
}

// steady asks at a rate.
func steady(ctx context.Context, urls []string, rate int, span time.Duration, progress *progress) (*targetResult, error) {
	r := newSteadyResult(span)
	var requests []vegeta.Target
	for _, u := range urls {
		requests = append(requests, vegeta.Target{Method: http.MethodGet, URL: u})
	}
	client, end := newOpenClient(ctx)
	defer end()
	loop := openLoop{rate: perSecond(rate), span: span, client: client}
	var err error
	r.Rate, err = loop.run(ctx, vegeta.NewStaticTargeter(requests...), func(a reply) {
		if a.late > lateAfter {
			r.Late++
		}
		r.add(a.latency, int(a.Code), a.Error)
		r.addAt(a.due, a.latency, stateOf(int(a.Code), a.Headers))
		progress.answered.Add(1)
	})
	r.finish()
	return r, err
}

func printTarget(out io.Writer, opts options, rep targetReport) {
	fmt.Fprintf(out, "\n%s: %d storms of %d callers for each URL, then %d requests a second for %v.\n\n",
		strings.Join(rep.URLs, ", "), opts.rounds, opts.clients, opts.rate, opts.span)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, strings.Join(append(slices.Clone(targetHead), ""), "\t"))
	for _, cells := range rep.rows() {
		fmt.Fprintln(w, strings.Join(append(cells, ""), "\t"))
	}
	w.Flush()
	fmt.Fprintf(out, "\n%s\n", targetLegend)
	if rep.Steady != nil && rep.Steady.Requests > 0 {
		fmt.Fprintf(out, "The answers at a rate: %s.\n", counts(rep.Steady.States))
	}
}

var (
	targetHead   = []string{"what", "requests", "rate", "late", "p50", "p90", "p99", "p99.9", "max", "errors"}
	targetLegend = fmt.Sprintf("Milliseconds count from the instant of the storm, and from when a request was due; late: sent more than %v after that.", lateAfter)
)

// rows are those of the table. What does not apply is a dash.
func (rep targetReport) rows() (rows [][]string) {
	add := func(name string, r *targetResult) {
		if r == nil || r.LatencyMS == nil {
			return
		}
		q, rate, late, p999 := r.LatencyMS, "-", "-", "-"
		if r.line != nil {
			rate, late, p999 = fmt.Sprintf("%.1f", r.Rate), fmt.Sprint(r.Late), ms(q.P999)
		}
		rows = append(rows, []string{name, fmt.Sprint(r.Requests), rate, late, ms(q.P50), ms(q.P90), ms(q.P99), p999, ms(q.Max), fmt.Sprint(r.Errors)})
	}
	add("storms", rep.Storms)
	add("steady", rep.Steady)
	return rows
}

// counts lists what was counted, the most first.
func counts(of map[string]int) string {
	names := slices.Sorted(maps.Keys(of))
	slices.SortStableFunc(names, func(a, b string) int { return of[b] - of[a] })
	for i, name := range names {
		names[i] = fmt.Sprintf("%d %s", of[name], name)
	}
	return strings.Join(names, ", ")
}
