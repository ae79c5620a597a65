package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

func TestPromisesAtARateAreBrokenByWhatTheyForbid(t *testing.T) {
	seen := func(change func(r *round)) tally {
		t := atARateIn("guard", 1)
		change(&t.rounds[0])
		return t
	}
	for name, c := range map[string]struct {
		p      promise
		change func(r *round)
	}{
		"two loads of a product at once":     {oneLoadAtOnce, func(r *round) { r.steady.atOnce = 2 }},
		"no load at all":                     {oneLoadAtOnce, func(r *round) { r.steady.atOnce = 0 }},
		"more loads than expiries":           {oneLoadAtOnce, func(r *round) { r.steady.most = r.steady.limit + 1 }},
		"a caller who waits beside a value":  {nobodyWaitsAtARate, func(r *round) { r.waited = 1 }},
		"an answer that is of another thing": {rightAnswers, func(r *round) { r.wrong = 1 }},
	} {
		if v := c.p.judge(seen(func(*round) {})); !v.Kept || !v.Judged {
			t.Errorf("%s: %+v for what is allowed", name, v)
		}
		if v := c.p.judge(seen(c.change)); v.Kept || !v.Judged {
			t.Errorf("%s: %+v", name, v)
		}
	}
	away := seen(func(r *round) { r.steady.atOnce, r.waited, r.unanswered = 4, 9, 1 })
	for _, p := range []promise{oneLoadAtOnce, nobodyWaitsAtARate} {
		if v := p.judge(away); v.Judged {
			t.Errorf("%s, when Redis left calls unanswered: %+v, want that it cannot be told", p.name, v)
		}
	}
}

func TestAPromiseThatPresumesRedisIsNotJudgedWithoutIt(t *testing.T) {
	p := ifRedisAnswers(rightAnswers)
	bad := round{answers: make([]answer, 3), errors: 1}
	if v := p.judge(tally{rounds: []round{bad}}); !v.Judged || v.Kept {
		t.Errorf("an error while Redis answers: %+v", v)
	}
	bad.unanswered = 2
	if v := p.judge(tally{rounds: []round{bad}}); v.Judged || !strings.Contains(v.Why, "Redis left 2 calls unanswered") {
		t.Errorf("an error while Redis does not answer: %+v", v)
	}
	bad.errors = 0
	if v := p.judge(tally{rounds: []round{bad}}); !v.Judged || !v.Kept {
		t.Errorf("no error: %+v", v)
	}
}

func TestResultsAtARateTellItAndTheirTail(t *testing.T) {
	data, err := json.Marshal(atARateIn("guard", 100).result(true))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"rate":500`, `"late":0`, `"p999":100.03`, `"floor_ms"`, `"origin_loads"`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("%s lacks %s", data, want)
		}
	}
	if strings.Contains(string(data), "commands_sent") {
		t.Errorf("%s has what does not apply", data)
	}
}

// The promise on loads is of as many expiries as there are: short runs of long
// lives would have none.
func TestEachProductExpiresInTheTimeForWhichItIsAskedFor(t *testing.T) {
	o := options{span: 10 * time.Second}
	if got := steadySpan(o, 2*time.Second); got != o.span {
		t.Errorf("%v, want what was asked for", got)
	}
	if got := steadySpan(o, time.Minute); got != 2*time.Minute {
		t.Errorf("%v for products that live for a minute", got)
	}
}

func TestProductsAreAskedForUnequallyAndAtAllProcesses(t *testing.T) {
	sh := &show{fleet: &fleet{replicas: []*replica{{addr: "a:1"}, {addr: "b:2"}}}}
	asks := sh.newAsks([]string{"x", "y", "z"}, productPath)
	turn := asks.inTurn()
	var urls []string
	for range 3 {
		var target vegeta.Target
		if err := turn(&target); err != nil {
			t.Fatal(err)
		}
		urls = append(urls, target.URL)
	}
	if got := strings.Join(urls, " "); got != "http://a:1/products/x http://b:2/products/y http://a:1/products/z" {
		t.Errorf("in turn: %s", got)
	}
	count := map[string]int{}
	first, again := asks.zipf(), asks.zipf()
	for range 600 {
		var one, same vegeta.Target
		if err := first(&one); err != nil {
			t.Fatal(err)
		}
		if err := again(&same); err != nil || one.URL != same.URL {
			t.Fatalf("%s and then %s (%v): modes would not be asked for the same", one.URL, same.URL, err)
		}
		count[asks.keyOf[one.URL]]++
	}
	if count["x"] <= count["y"] || count["y"] <= count["z"] || count["z"] == 0 {
		t.Errorf("asked for %v, want the first most", count)
	}
}

func TestAPasswordInAURLIsNotInTheReport(t *testing.T) {
	if got := withoutPasswords([]string{"http://me:secret@host/x?y=1"}); len(got) != 1 || strings.Contains(got[0], "secret") || !strings.Contains(got[0], "host/x?y=1") {
		t.Errorf("shown: %q", got)
	}
}
