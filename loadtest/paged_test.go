package main

import (
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

func TestPagesOnARealRedis(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		redistest.Need(t, redistest.ErrNoServer)
	}
	testPages(t, "guard")
}

func TestPagesOnTheEmbeddedRedis(t *testing.T) {
	withoutRedisServer(t)
	testPages(t, "guard,none")
}

func testPages(t *testing.T, modes string) {
	rep := storms(t, "-mode", modes, "-rounds", "1", "-replicas", "3", "-scenario", "http-storm,uncacheable,vary")
	for _, r := range rep.Results {
		if *r.Errors+*r.WrongValues != 0 {
			t.Errorf("%s, mode %s: %d errors, %d wrong", r.Scenario, r.Mode, *r.Errors, *r.WrongValues)
		}
		if r.Mode != "guard" {
			if r.Scenario == httpStorm.name && r.OriginLoads[0] != 30 {
				t.Errorf("mode %s: %d runs of the handler, want one for each caller, so that the storm is one", r.Mode, r.OriginLoads[0])
			}
			continue
		}
		// That those were kept that were judged is in the run's error.
		for _, name := range map[string][]string{
			httpStorm.name: {"P1", "P2", "answers"}, uncacheable.name: {"answers", "parallel"}, vary.name: {"P1", "answers"},
		}[r.Scenario] {
			if _, judged := r.Promises[name]; !judged {
				t.Errorf("%s: promise %s was not judged", r.Scenario, name)
			}
		}
	}
}

func TestAPageThatIsMeantForAnotherIsNoticed(t *testing.T) {
	header := func(pairs ...string) http.Header {
		h := http.Header{"X-Page-For": {"ann"}, "X-Page-Run": {"1-1"}, "Cache-Control": {"max-age=60"}}
		for i := 0; i < len(pairs); i += 2 {
			h.Set(pairs[i], pairs[i+1])
		}
		return h
	}
	body := func(kind, id, who, run string) []byte {
		return fmt.Appendf(nil, `{"kind":%q,"id":%q,"for":%q,"run":%q}`, kind, id, who, run)
	}
	right := body("set-cookie", "k", "ann", "1-1")
	good := header("Set-Cookie", "session=ann")
	for name, c := range map[string]struct {
		a     answer
		wrong string // "": nothing
	}{
		"right":            {answer{status: 200, header: good, body: right}, ""},
		"another's body":   {answer{status: 200, header: good, body: body("set-cookie", "k", "bob", "1-1")}, "got"},
		"another page":     {answer{status: 200, header: good, body: body("set-cookie", "l", "ann", "1-1")}, "got"},
		"another kind":     {answer{status: 200, header: good, body: body("private", "k", "ann", "1-1")}, "got"},
		"another's header": {answer{status: 200, header: header("Set-Cookie", "session=ann", "X-Page-For", "bob"), body: right}, "the header is that of bob"},
		"another run's":    {answer{status: 200, header: header("Set-Cookie", "session=ann", "X-Page-Run", "2-2"), body: right}, "run 2-2"},
		"another's cookie": {answer{status: 200, header: header("Set-Cookie", "session=bob"), body: right}, "Set-Cookie"},
		"no cookie":        {answer{status: 200, header: header(), body: right}, "Set-Cookie"},
		"a Vary":           {answer{status: 200, header: header("Set-Cookie", "session=ann", "Vary", "X"), body: right}, "Vary"},
		"half a body":      {answer{status: 200, header: good, body: right[:20]}, "not a page"},
		"no run":           {answer{status: 200, header: good, body: body("set-cookie", "k", "ann", "")}, "got"},
		"an error":         {answer{status: 502, header: good, body: right}, "502"},
	} {
		_, err := readKind(c.a, "set-cookie", "k", "ann", ownPages["set-cookie"]("ann"))
		if (err == nil) != (c.wrong == "") || err != nil && !strings.Contains(err.Error(), c.wrong) {
			t.Errorf("%s: %v, want %q", name, err, c.wrong)
		}
	}
}

func TestTheHeaderOfAPageIsLookedAt(t *testing.T) {
	good := http.Header{
		"Content-Type": {"application/json"}, "Etag": {`"x"`}, "Cache-Status": {"cacheguard; hit"},
		"Date": {time.Now().UTC().Format(http.TimeFormat)},
	}
	if err := pageHeader(good, "guard"); err != nil {
		t.Error(err)
	}
	if pageHeader(good, "none") == nil {
		t.Error("the header of another mode passes")
	}
	for name := range good {
		less := good.Clone()
		less.Del(name)
		if pageHeader(less, "guard") == nil {
			t.Errorf("without %s it passes", name)
		}
	}
}

// pagesOf is a tally of rounds in each of which the same was seen.
func pagesOf(p paged) tally {
	t := tally{opts: options{load: 100 * time.Millisecond}}
	for range minRounds {
		t.rounds = append(t.rounds, round{paged: &p})
	}
	return t
}

func TestPagePromisesAreBrokenByWhatTheyForbid(t *testing.T) {
	all := func(ms, private float64) map[string]float64 {
		m := map[string]float64{}
		for kind := range ownPages {
			m[kind] = ms
		}
		m["private"] = private
		return m
	}
	for name, c := range map[string]struct {
		p         promise
		good, bad paged
	}{
		"two runs in a storm":  {oneRun, paged{runs: []int64{1, 1}}, paged{runs: []int64{1, 2}}},
		"no run":               {oneRun, paged{runs: []int64{1, 1}}, paged{runs: []int64{0, 1}}},
		"a slow page":          {pageNearFloor, paged{behind: 19}, paged{behind: 21}},
		"a queue in a process": {ownRuns, paged{}, paged{alone: 1}},
		"one kind's queue":     {notQueued, paged{second: all(1, 4)}, paged{second: all(1, 6)}},
		"three runs in a row":  {firstNotQueued, paged{first: all(-5, 1)}, paged{first: all(-5, 99)}},
	} {
		if v := c.p.judge(pagesOf(c.good)); !v.Kept || !v.Judged {
			t.Errorf("%s: %+v for what is allowed", name, v)
		}
		if v := c.p.judge(pagesOf(c.bad)); v.Kept || !v.Judged {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

func TestAProcessThatDoesNotRunItsHandlersAtOnceIsCounted(t *testing.T) {
	one, two := new(replica), new(replica)
	callers := []*caller{{replica: one}, {replica: two}, {replica: one}, {replica: two}}
	at := func(most string) answer { return answer{header: http.Header{"X-Page-At-Once": {most}}} }
	for _, c := range []struct {
		answers []answer
		want    int64
	}{
		{[]answer{at("2"), at("1"), at("2"), at("2")}, 0},
		{[]answer{at("2"), at("1"), at("2"), at("1")}, 1},
		{[]answer{{}, at("1"), {}, at("1")}, 2}, // an answer without a header
	} {
		if got := notAtOnce(callers, c.answers); got != c.want {
			t.Errorf("%v: %d, want %d", c.answers, got, c.want)
		}
	}
}
