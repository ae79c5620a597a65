package main

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// kinds serves pages that are not for everybody, each kind for another reason,
// behind the HTTP cache. It is there only with -loadtest, which checks that
// nobody gets another's.
type kinds struct {
	runs atomic.Int64

	mu    sync.Mutex
	under map[string]*crowd // runs that are under way, by page; guarded by mu
}

// crowd is how many runs of one page there are at once.
type crowd struct{ now, most int }

// kindHeaders are what makes a page of a kind what it is.
var kindHeaders = map[string]func(h http.Header, who string){
	"private":       func(h http.Header, _ string) { h.Set("Cache-Control", "private, max-age=60") },
	"no-store":      func(h http.Header, _ string) { h.Set("Cache-Control", "no-store") },
	"authorization": func(h http.Header, _ string) { h.Set("Cache-Control", "max-age=60") },
	"set-cookie": func(h http.Header, who string) {
		h.Set("Cache-Control", "max-age=60")
		h.Set("Set-Cookie", "session="+who)
	},
	"vary": func(h http.Header, _ string) {
		h.Set("Cache-Control", "max-age=60")
		h.Set("Vary", "X-User")
	},
	"language": func(h http.Header, who string) {
		h.Set("Cache-Control", "max-age=60")
		h.Set("Vary", "Accept-Language")
		h.Set("Content-Language", who)
	},
}

// kindPage is the body. The header says the same, in X-Page-For and X-Page-Run.
type kindPage struct {
	Kind string `json:"kind"`
	ID   string `json:"id"`
	For  string `json:"for"` // who asked
	Run  string `json:"run"` // that made the page; no other has this name
}

// ServeHTTP takes as long as sleep says before it says anything: so long nobody
// can know that others must not have the answer.
func (k *kinds) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	kind, id := r.PathValue("kind"), r.PathValue("id")
	headers := kindHeaders[kind]
	d, err := time.ParseDuration(r.URL.Query().Get("sleep"))
	if headers == nil || err != nil || d < 0 || d > loadLimit {
		http.Error(w, "ask for one of the kinds, with a sleep from 0s to "+loadLimit.String(), http.StatusBadRequest)
		return
	}
	leave := k.enter(id)
	err = sleep(r.Context(), d)
	most := leave()
	if err != nil {
		return // nobody is there to read an answer
	}
	p := kindPage{Kind: kind, ID: id, For: asker(kind, r), Run: fmt.Sprintf("%d-%d", os.Getpid(), k.runs.Add(1))}
	headers(w.Header(), p.For)
	w.Header().Set("X-Page-For", p.For)
	w.Header().Set("X-Page-Run", p.Run)
	w.Header().Set("X-Page-At-Once", fmt.Sprint(most))
	answer(w, p)
}

// asker is what a handler knows its client by.
func asker(kind string, r *http.Request) string {
	switch kind {
	case "authorization":
		return strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
	case "language":
		return r.Header.Get("Accept-Language")
	}
	return r.Header.Get("X-User")
}

// enter counts a run of a page; leave returns how many there were at once.
func (k *kinds) enter(id string) (leave func() (most int)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.under[id]
	if c == nil {
		c = new(crowd)
		if k.under == nil {
			k.under = map[string]*crowd{}
		}
		k.under[id] = c
	}
	c.now++
	c.most = max(c.most, c.now)
	return func() int {
		k.mu.Lock()
		defer k.mu.Unlock()
		if c.now--; c.now == 0 {
			delete(k.under, id)
		}
		return c.most
	}
}
