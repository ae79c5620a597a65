package main

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// httpStorm: the cold storm, of HTTP answers. A page that is in no cache is
// asked for by everybody; then its product is written, and everybody asks again.
var httpStorm = scenario{
	name:     "http-storm",
	about:    "a page that no HTTP cache has is asked for by all callers of all processes at one instant, and again after its product was written",
	lifetime: longLife,
	prepare:  warmPages,
	round:    httpStormRound,
	promises: []promise{oneRun, noOldValue, rightPages, pageNearFloor},
}

func httpStormRound(ctx context.Context, sh *show, n int) (r round, err error) {
	r = round{key: sh.key(n), paged: new(paged), staleFor: true}
	sh.origin.create(r.key)
	floor, err := floorOf(ctx, sh, sh.callers, r.key)
	if err != nil {
		return r, err
	}
	return r, r.countingUnanswered(ctx, sh, func() error { return r.askAndWrite(ctx, sh, n, floor) })
}

// askAndWrite is the storm before the product is written, and the one after it.
func (r *round) askAndWrite(ctx context.Context, sh *show, n int, floor float64) error {
	for version := int64(1); version <= 2; version++ {
		if version == 2 {
			if _, err := sh.fleet.put(ctx, sh.fleet.replicas[n%len(sh.fleet.replicas)], productPath(r.key)); err != nil {
				return err
			}
		}
		sh.origin.forgetLoads(r.key)
		answers := askAtOnce(ctx, sh.callers, func(_ int, at time.Time) []byte { return pageRequest(pagePath(r.key), at) })
		if err := sh.origin.settle(ctx); err != nil {
			return err
		}
		if version == 1 {
			r.paged.behind = hundredth(slowest(answers) - floor)
		}
		r.paged.runs = append(r.paged.runs, sh.origin.loads(r.key))
		part := round{key: r.key, answers: answers}
		for i := range answers {
			answers[i].decode()
			if !answers[i].failed() && pageHeader(answers[i].header, sh.mode) != nil {
				part.wrong++
			}
		}
		part.judge(version, version)
		r.add(part)
	}
	return nil
}

// pageHeader says what is wrong with the header of a product's page.
func pageHeader(h http.Header, mode string) error {
	if got := strings.Join(h.Values("Content-Type"), ", "); got != "application/json" {
		return fmt.Errorf("Content-Type: %q", got)
	}
	if got := h.Get("Etag"); (got != "") != (mode == "guard") {
		return fmt.Errorf("Etag: %q in mode %s", got, mode)
	}
	if _, err := http.ParseTime(h.Get("Date")); err != nil {
		return fmt.Errorf("Date: %q", h.Get("Date"))
	}
	if status := h.Get("Cache-Status"); strings.HasPrefix(status, "cacheguard") != (mode == "guard") {
		return fmt.Errorf("Cache-Status: %q in mode %s", status, mode)
	}
	return nil
}

var oneRun = promise{
	name: "P1", text: "the page's handler runs once in each storm, whatever the number of processes and callers",
	judge: func(t tally) verdict {
		var most int64
		v := judgeRounds(t, "one run", func(r round) bool {
			most = max(most, slices.Max(r.paged.runs))
			return slices.Max(r.paged.runs) == 1 && slices.Min(r.paged.runs) == 1
		})
		if most > 1 {
			v.Why += fmt.Sprintf("; up to %d", most)
		}
		return v
	},
}

// pageOverFloor is how many milliseconds the slowest caller of a cold page may
// be behind the slowest at the floor.
const pageOverFloor = 20

var pageNearFloor = promise{
	name: "http-floor", text: fmt.Sprintf("the slowest caller of a page that nobody has is at most %d ms slower than the slowest of the floor", pageOverFloor),
	judge: func(t tally) verdict {
		var behind []float64
		for _, r := range t.rounds {
			behind = append(behind, r.paged.behind)
		}
		return judgeOver(behind, pageOverFloor)
	},
}
