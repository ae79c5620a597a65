package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// What the scenarios of the HTTP cache share. They look at the header and the
// body of each answer, and ask under one host, as clients of a load balancer do.

// pageHost is that host.
const pageHost = "shop.example"

// paged is what a round over the HTTP cache brought. Latencies are those of the
// slowest caller.
type paged struct {
	runs   []int64 // of the handler in the whole fleet, in each storm that one should be enough for
	behind float64 // ms that the slowest caller of the cold storm was behind the floor's

	// For each kind of page that is not for everybody, in ms: how much longer
	// than two runs the first storm took, and than one run the second.
	first, second map[string]float64
	alone         int64 // processes that did not run a second storm's handlers all at once
}

// pageRequest asks for path at an instant, with header fields given as name and
// value in turn.
func pageRequest(path string, at time.Time, fields ...string) []byte {
	b := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nLoadtest-At: %d\r\n", path, pageHost, at.UnixNano())
	for i := 0; i < len(fields); i += 2 {
		b = fmt.Appendf(b, "%s: %s\r\n", fields[i], fields[i+1])
	}
	return append(b, "\r\n"...)
}

func pagePath(key string) string { return "/pages" + productPath(key) }

func kindPath(kind, key string, sleep time.Duration) string {
	return "/pages/kinds/" + kind + "/" + url.PathEscape(key) + "?sleep=" + sleep.String()
}

// kindPage is the body of a page that is not for everybody.
type kindPage struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	For  string `json:"for"`
	Run  string `json:"run"` // of the handler, that made the page
}

// readKind returns the page of an answer, if it is the one that was asked for,
// by who, down to the header: the fields in want, with each value, and no other
// of those that tell pages apart.
func readKind(a answer, kind, key, who string, want map[string]string) (p kindPage, err error) {
	switch {
	case a.err != nil:
		return p, a.err
	case a.status != http.StatusOK:
		return p, fmt.Errorf("status %d: %.100s", a.status, a.body)
	}
	if err := json.Unmarshal(a.body, &p); err != nil {
		return p, fmt.Errorf("the answer is not a page: %w", err)
	}
	if p != (kindPage{Kind: kind, ID: key, For: who, Run: p.Run}) || p.Run == "" {
		return p, fmt.Errorf("%s asked for the page %s, %s, and got %+v", who, kind, key, p)
	}
	if got, run := a.header.Get("X-Page-For"), a.header.Get("X-Page-Run"); got != who || run != p.Run {
		return p, fmt.Errorf("the header is that of %s, run %s; the body that of %s, run %s", got, run, who, p.Run)
	}
	for _, name := range []string{"Cache-Control", "Content-Language", "Set-Cookie", "Vary"} {
		if got := strings.Join(a.header.Values(name), ", "); got != want[name] {
			return p, fmt.Errorf("%s: %q, want %q", name, got, want[name])
		}
	}
	return p, nil
}

// judgePage counts what is wrong with one answer.
func (r *round) judgePage(a answer, err error) {
	r.answers = append(r.answers, a)
	switch {
	case a.err != nil || a.status != http.StatusOK:
		r.errors++
	case err != nil:
		r.wrong++
	}
}

// warmPages has each process ask, and each caller read, a page before the first
// round, with headers from here on.
func warmPages(ctx context.Context, sh *show) error {
	for _, c := range sh.callers {
		c.headers = true
	}
	key := "warm-" + sh.key(0)
	sh.origin.create(key)
	for range 2 {
		if err := firstError(storm(ctx, sh.callers, pagePath(key))); err != nil {
			return fmt.Errorf("rehearsal of the pages: %w", err)
		}
	}
	return sh.origin.settle(ctx)
}

// countingUnanswered runs the storms of a round, and counts the calls of the
// fleet that Redis did not answer in time meanwhile.
func (r *round) countingUnanswered(ctx context.Context, sh *show, storms func() error) error {
	before, err := sh.fleet.counters(ctx)
	if err != nil {
		return err
	}
	if err := storms(); err != nil {
		return err
	}
	after, err := sh.fleet.counters(ctx)
	for i := range after {
		r.unanswered += after[i].unanswered - before[i].unanswered
	}
	return errors.Join(err, ctx.Err())
}

// slowest is the latency of the last answer, in ms.
func slowest(answers []answer) float64 {
	last := slices.MaxFunc(answers, func(a, b answer) int { return int(a.latency - b.latency) })
	return milliseconds(last.latency)
}

// floorOf is the slowest of the callers at the floor.
func floorOf(ctx context.Context, sh *show, callers []*caller, key string) (float64, error) {
	answers := storm(ctx, callers, floorPath(key, sh.opts.load))
	if err := firstError(answers); err != nil {
		return 0, fmt.Errorf("floor: %w", err)
	}
	return slowest(answers), nil
}

// rightPages is rightAnswers where there is more than a product to be right.
var rightPages = promise{
	name: "answers", text: "each caller gets the page that is meant for it, body and header, and no error",
	judge: rightAnswers.judge,
}
