package middleware

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

const handlerTime = 200 * time.Millisecond

// cacheable answers with a page that tells its run, after handlerTime.
func cacheable(w http.ResponseWriter, r *http.Request) {
	time.Sleep(handlerTime)
	w.Header().Set("Cache-Control", "max-age=60")
	fmt.Fprintf(w, "page %s", r.URL.Path)
}

func TestColdRequestsOfOneProcessRunTheHandlerOnce(t *testing.T) {
	f := newFleet(t, 1, Options{}, cacheable)
	f.warm(50)
	answers := f.storm(50, func(int) answer { return f.ask(0, "GET", "/p") })
	f.wantRuns(1)
	collapsed := 0
	for _, a := range answers {
		if a.err != nil || a.status != 200 || a.body != "page /p" {
			t.Fatalf("got %d %q %v", a.status, a.body, a.err)
		}
		if hasStatus(a, "; collapsed") {
			collapsed++
		}
	}
	if collapsed != 49 {
		t.Errorf("%d answers say collapsed, want the 49 followers", collapsed)
	}
	if d := slowest(answers); d > handlerTime*2 {
		t.Errorf("slowest took %v, want about %v", d, handlerTime)
	}
	if a := f.get("/p"); !a.cached() || a.header.Get("Age") == "" {
		t.Errorf("next is no hit: %v", a.header)
	}
	f.wantRuns(1)
}

func TestColdRequestsOfAFleetRunTheHandlerOnce(t *testing.T) {
	f := newFleet(t, 3, Options{}, cacheable)
	f.warm(50)
	answers := f.storm(150, func(i int) answer { return f.ask(i%3, "GET", "/p") })
	f.wantRuns(1)
	for _, a := range answers {
		if a.err != nil || a.status != 200 || a.body != "page /p" {
			t.Fatalf("got %d %q %v", a.status, a.body, a.err)
		}
	}
}

func TestAnswersForOneUserReachNobodyElse(t *testing.T) {
	for name, set := range map[string]func(h http.Header, user string){
		"private":  func(h http.Header, _ string) { h.Set("Cache-Control", "private, max-age=60") },
		"no-store": func(h http.Header, _ string) { h.Set("Cache-Control", "no-store") },
		"set-cookie": func(h http.Header, user string) {
			h.Set("Cache-Control", "max-age=60")
			h.Set("Set-Cookie", "sid="+user)
		},
		"vary":      func(h http.Header, _ string) { h.Set("Cache-Control", "max-age=60"); h.Set("Vary", "X-User") },
		"vary-star": func(h http.Header, _ string) { h.Set("Cache-Control", "max-age=60"); h.Set("Vary", "Accept, *") },
		"silent":    func(h http.Header, _ string) {},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 2, Options{}, func(w http.ResponseWriter, r *http.Request) {
				time.Sleep(handlerTime)
				set(w.Header(), r.Header.Get("X-User"))
				w.Header().Set("X-For", r.Header.Get("X-User"))
				fmt.Fprintf(w, "hello %s", r.Header.Get("X-User"))
			})
			f.warm(5)
			for round, limit := range []time.Duration{handlerTime * 2, handlerTime} {
				answers := f.storm(10, func(i int) answer {
					return f.ask(i%2, "GET", "/me", "X-User", fmt.Sprint(round, i))
				})
				for i, a := range answers {
					user := fmt.Sprint(round, i)
					if a.err != nil || a.body != "hello "+user || a.header.Get("X-For") != user {
						t.Errorf("round %d: user %s got %q, X-For %q, %v", round, user, a.body, a.header.Get("X-For"), a.err)
					}
				}
				if d := slowest(answers); d > limit+handlerTime/2 {
					t.Errorf("round %d took %v, want at most %v", round, d, limit)
				}
			}
		})
	}
}
