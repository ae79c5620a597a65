package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/url"
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
	rate int           // requests a second, to all URLs in turn
	span time.Duration // for which they are sent
}

const (
	maxRate = 10_000
	maxSpan = 10 * time.Minute
)

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
		case "scenario", "mode", "replicas", "load", "redis", "html", "excuse":
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
	case o.target.rate < 1 || o.target.rate > maxRate:
		return fmt.Errorf("-rate %d is out of range; use 1 to %d", o.target.rate, maxRate)
	case o.target.span < time.Second || o.target.span > maxSpan:
		return fmt.Errorf("-for %v is out of range; use 1s to %v", o.target.span, maxSpan)
	}
	return nil
}

// targetReport is what -json writes for a target.
type targetReport struct {
	URLs   []string      `json:"urls"`
	Storms *targetResult `json:"storms"` // all callers at one instant, all rounds together
	Steady *targetResult `json:"steady"` // at a rate
}

// targetResult is what the answers of a target were.
type targetResult struct {
	Requests  int            `json:"requests"`
	Rate      float64        `json:"rate,omitzero"` // a second, that were sent
	Late      int            `json:"late,omitzero"` // sent more than lateAfter after they were due
	Errors    int            `json:"errors"`        // no answer, or a status of 400 and above
	Error     string         `json:"error,omitzero"`
	Statuses  map[string]int `json:"statuses"`
	LatencyMS *quantiles     `json:"latency_ms,omitzero"` // of the answers, errors included

	latencies
}

// lateAfter is how late a request may be sent; latency counts from when it was
// due in any case.
const lateAfter = 10 * time.Millisecond

func newTargetResult() *targetResult {
	return &targetResult{Statuses: map[string]int{}, latencies: newLatencies()}
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
	if r.Requests > 0 {
		r.LatencyMS = &quantiles{P50: r.quantile(0.5), P90: r.quantile(0.9), P99: r.quantile(0.99), Max: r.max()}
	}
}

// askTarget runs storms against a target, and then asks it at a rate.
func askTarget(ctx context.Context, opts options, out io.Writer, progress *progress) error {
	rep := targetReport{URLs: opts.target.urls}
	var err error
	if rep.Storms, err = targetStorms(ctx, opts, progress); err == nil {
		progress.say(fmt.Sprintf("%d requests a second for %v", opts.target.rate, opts.target.span))
		rep.Steady, err = steady(ctx, opts.target)
	}
	progress.end()
	err = interrupted(ctx, err)
	printTarget(out, opts, rep)
	if opts.json != "" {
		err = errors.Join(err, writeJSON(opts.json, rep))
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
	r.finish()
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

// steady asks at a rate, whatever the answers do: each request is sent when it
// is due, so that a service that stalls is not asked less often meanwhile, and
// its latency counts from then, so that one that was sent late waited longer,
// not shorter.
func steady(ctx context.Context, t target) (*targetResult, error) {
	r := newTargetResult()
	var requests []vegeta.Target
	for _, u := range t.urls {
		requests = append(requests, vegeta.Target{Method: http.MethodGet, URL: u})
	}
	attacker := vegeta.NewAttacker(vegeta.Timeout(callLimit), vegeta.MaxWorkers(maxCallers), vegeta.MaxBody(0),
		vegeta.Connections(maxCallers), vegeta.Redirects(vegeta.NoFollow))
	stop := context.AfterFunc(ctx, func() { attacker.Stop() })
	defer stop()
	rate := vegeta.Rate{Freq: t.rate, Per: time.Second}
	begin := time.Now()
	var last time.Time
	for result := range attacker.Attack(vegeta.NewStaticTargeter(requests...), rate, t.span, "steady") {
		due := begin.Add(time.Duration(result.Seq) * time.Second / time.Duration(t.rate))
		late := max(0, result.Timestamp.Sub(due))
		if late > lateAfter {
			r.Late++
		}
		if result.Timestamp.After(last) {
			last = result.Timestamp
		}
		r.add(late+result.Latency, int(result.Code), result.Error)
	}
	if r.Requests > 1 {
		r.Rate = hundredth(float64(r.Requests-1) / last.Sub(begin).Seconds())
	}
	r.finish()
	return r, ctx.Err()
}

func printTarget(out io.Writer, opts options, rep targetReport) {
	fmt.Fprintf(out, "\n%s: %d storms of %d callers for each URL, then %d requests a second for %v.\n\n",
		strings.Join(rep.URLs, ", "), opts.rounds, opts.clients, opts.target.rate, opts.target.span)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "what\trequests\trate\tlate\tp50\tp90\tp99\tmax\terrors\t")
	row := func(name string, r *targetResult) {
		if r == nil || r.LatencyMS == nil {
			return
		}
		rate := "-"
		if r.Rate > 0 {
			rate = fmt.Sprintf("%.1f", r.Rate)
		}
		q := r.LatencyMS
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%s\t%s\t%s\t%s\t%d\t\n", name, r.Requests, rate, r.Late, ms(q.P50), ms(q.P90), ms(q.P99), ms(q.Max), r.Errors)
	}
	row("storms", rep.Storms)
	row("steady", rep.Steady)
	w.Flush()
	fmt.Fprintf(out, "\nMilliseconds count from the instant of the storm, and from when a request was due; late: sent more than %v after that.\n", lateAfter)
}
