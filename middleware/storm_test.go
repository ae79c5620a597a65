package middleware

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// The page of a random site says whom it was made for, by what it depends on:
// whoever gets it can tell whether it is theirs.
func randomPage(w http.ResponseWriter, r *http.Request) {
	kind, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	user, lang := r.Header.Get("X-User"), r.Header.Get("Accept-Language")
	made := fmt.Sprintf("%s|-|-|", r.URL.Path)
	h := w.Header()
	h.Set("Cache-Control", "max-age=1, stale-while-revalidate=1")
	if rand.IntN(4) == 0 {
		time.Sleep(time.Duration(rand.IntN(5)) * time.Millisecond)
	}
	switch kind {
	case "private", "nostore", "cookie", "silent", "stream":
		made = fmt.Sprintf("%s|%s|-|", r.URL.Path, user)
		h.Set("X-Made-For", user)
	case "vary", "varybig":
		made = fmt.Sprintf("%s|-|%s|", r.URL.Path, lang)
		h.Set("Vary", "Accept-Language")
	}
	switch kind {
	case "private":
		h.Set("Cache-Control", "private, max-age=60")
	case "nostore":
		h.Set("Cache-Control", "no-store")
	case "cookie":
		h.Set("Set-Cookie", "user="+user)
	case "silent":
		h.Del("Cache-Control")
	case "stream":
		h.Set("Content-Type", "text/event-stream")
	case "expires":
		h.Set("Cache-Control", "max-age=0")
	}
	size := 10
	if kind == "big" || kind == "varybig" {
		size = 20_000
	}
	body := strings.Repeat(made, size)
	h.Set("X-Length", fmt.Sprint(len(body)))
	cut := len(body) / 2
	switch rand.IntN(12) {
	case 0:
		if kind != "cookie" { // which would be cut off by its header alone
			http.Error(w, "500|"+r.URL.Path, 500)
			return
		}
	case 1:
		io.WriteString(w, body[:cut])
		panic(http.ErrAbortHandler)
	case 2:
		io.WriteString(w, body[:cut])
		w.(http.Flusher).Flush()
		io.WriteString(w, body[cut:])
		return
	}
	io.WriteString(w, body)
}

// wrong says what is wrong with an answer to a request for path, or "".
func wrong(a answer, path, user, lang string) string {
	switch {
	case a.err != nil: // broken off, which says so
		return ""
	case a.status == 500 && (a.body == "500|"+path+"\n"), a.status == 502, a.status == 503:
		return ""
	case a.status != 200:
		return fmt.Sprintf("status %d, body %.80q", a.status, a.body)
	case a.header.Get("X-Length") != fmt.Sprint(len(a.body)):
		return fmt.Sprintf("%d bytes look whole, made were %s", len(a.body), a.header.Get("X-Length"))
	}
	kind, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	for _, piece := range strings.Split(strings.TrimSuffix(a.body, "|"), "|"+path+"|") {
		piece = strings.TrimPrefix(piece, path+"|")
		want := "-|-"
		switch kind {
		case "private", "nostore", "cookie", "silent", "stream":
			want = user + "|-"
		case "vary", "varybig":
			want = "-|" + lang
		}
		if piece != want {
			return fmt.Sprintf("made for %q, not for %q", piece, want)
		}
	}
	if made := a.header.Get("X-Made-For"); made != "" && made != user {
		return "the header is made for " + made
	}
	if cookie := a.header.Get("Set-Cookie"); cookie != "" && cookie != "user="+user {
		return "the cookie is " + cookie
	}
	return ""
}

func TestNobodyGetsWhatIsAnothersInARandomStorm(t *testing.T) {
	t.Run("memory", func(t *testing.T) { randomStorm(t, inMemory(), Options{}) })
	t.Run("near", func(t *testing.T) {
		randomStorm(t, inMemory(), Options{Near: cacheguard.Near{MaxEntries: 100}})
	})
	t.Run("tags", func(t *testing.T) { randomStorm(t, inMemory(), tagOptions) })
	t.Run("redis", func(t *testing.T) {
		onReadPaths(t, func(t *testing.T, opts redisstore.Options) {
			randomStorm(t, overRedis(t, redistest.Start(t).Addr, nil, opts), Options{})
		})
	})
}

func randomStorm(t *testing.T, stores func() store.Store, opts Options) {
	opts.MaxBody, opts.PassFor, opts.StaleIfError = 100<<10, time.Second, time.Second
	f := newFleetOver(t, stores, 3, opts, randomPage, nil)
	kinds := []string{"plain", "private", "nostore", "cookie", "silent", "stream", "vary", "varybig", "big", "expires"}
	end := time.Now().Add(2 * time.Second)
	var wg sync.WaitGroup
	for i := range 60 {
		wg.Go(func() {
			user := fmt.Sprintf("u%d", i)
			for n := 0; time.Now().Before(end); n++ {
				path := fmt.Sprintf("/%s/%d", kinds[rand.IntN(len(kinds))], rand.IntN(3))
				lang := []string{"de", "en", "fr"}[rand.IntN(3)]
				pairs := []string{"X-User", user, "Accept-Language", lang}
				switch rand.IntN(10) {
				case 0:
					pairs = append(pairs, "Cache-Control", []string{"no-cache", "max-age=0", "no-store", "max-stale", "min-fresh=1"}[rand.IntN(5)])
				case 1:
					pairs = append(pairs, "Authorization", "Basic "+user)
				case 2:
					pairs = append(pairs, "Cookie", "a=b")
				}
				ctx, leave := t.Context(), context.CancelFunc(func() {})
				if rand.IntN(10) == 0 {
					ctx, leave = context.WithTimeout(ctx, time.Duration(rand.IntN(4000))*time.Microsecond)
				}
				method := "GET"
				if rand.IntN(50) == 0 {
					method = "POST"
				}
				a := f.askContext(ctx, i%3, method, path, pairs...)
				leave()
				if text := wrong(a, path, user, lang); text != "" {
					t.Errorf("%s %s by %s (%s): %s; %v", method, path, user, lang, text, a.header["Cache-Status"])
					return
				}
				if a.err != nil && !errors.Is(a.err, context.DeadlineExceeded) && !errors.Is(a.err, io.ErrUnexpectedEOF) && !errors.Is(a.err, io.EOF) {
					t.Errorf("%s: %v", path, a.err)
					return
				}
			}
		})
	}
	wg.Wait()
	if f.runs.Load() < 100 {
		t.Errorf("only %d runs: this was no storm", f.runs.Load())
	}
}

func TestTheConformanceListNamesEveryTestAndNoOther(t *testing.T) {
	list, err := os.ReadFile("../docs/http-conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	for _, name := range regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z0-9]+)`").FindAllSubmatch(list, -1) {
		listed[string(name[1])] = true
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	written := make(map[string]bool)
	for _, file := range files {
		if !strings.HasSuffix(file.Name(), "_test.go") {
			continue
		}
		source, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Za-z0-9]+)\(`).FindAllSubmatch(source, -1) {
			written[string(name[1])] = true
		}
	}
	delete(written, "TestMain")
	for name := range written {
		if !listed[name] {
			t.Errorf("%s is not in the list", name)
		}
	}
	for name := range listed {
		if !written[name] {
			t.Errorf("%s is in the list and does not exist", name)
		}
	}
}
