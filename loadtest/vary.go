package main

import (
	"context"
	"fmt"
	"time"
)

// vary: one URL, several pages. Callers with different languages ask for it at
// one instant, and none must get the page of another language.
var vary = scenario{
	name:     "vary",
	about:    fmt.Sprintf("a page that no HTTP cache has, and that is another in each of %d languages, is asked for by all callers at one instant, and again", len(languages)),
	lifetime: longLife,
	prepare:  warmPages,
	round:    varyRound,
	promises: []promise{oneRunEach, rightPages},
}

var languages = []string{"de", "en", "fr", "pt-br"}

func varyRound(ctx context.Context, sh *show, n int) (r round, err error) {
	r = round{key: sh.key(n), keys: []string{}, paged: new(paged)}
	return r, r.countingUnanswered(ctx, sh, func() error { r.askInAllLanguages(ctx, sh); return nil })
}

// askInAllLanguages is the storm that finds nothing, and the one after it.
func (r *round) askInAllLanguages(ctx context.Context, sh *show) {
	runs := map[string]map[string]bool{}
	// The callers of one process are at every len(replicas)th place: each process
	// is asked for all languages.
	language := func(i int) string { return languages[i/len(sh.fleet.replicas)%len(languages)] }
	for i := range sh.callers {
		runs[language(i)] = map[string]bool{}
	}
	for range 2 {
		answers := askAtOnce(ctx, sh.callers, func(i int, at time.Time) []byte {
			return pageRequest(kindPath("language", r.key, sh.opts.load), at, "Accept-Language", language(i))
		})
		for i, a := range answers {
			who := language(i)
			page, err := readKind(a, "language", r.key, who, map[string]string{
				"Cache-Control": "max-age=60", "Content-Language": who, "Vary": "Accept-Language",
			})
			if err == nil {
				runs[who][page.Run] = true
			}
			r.judgePage(a, err)
		}
	}
	for _, made := range runs {
		r.paged.runs = append(r.paged.runs, int64(len(made)))
	}
}

var oneRunEach = promise{
	name: "P1", text: "the page's handler runs once for each language in both storms together, whatever the number of processes and callers",
	judge: oneRun.judge,
}
