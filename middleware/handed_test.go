package middleware

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// spoiling are handlers, or what stands in front of them behind the cache, that
// change the request that they were given.
var spoiling = map[string]func(r *http.Request){
	"deletes a field":     func(r *http.Request) { r.Header.Del("X-Lang") },
	"rewrites a field":    func(r *http.Request) { r.Header.Set("X-Lang", "xx") },
	"adds to a field":     func(r *http.Request) { r.Header["X-Lang"] = append(r.Header["X-Lang"], "xx") },
	"empties the header":  func(r *http.Request) { clear(r.Header) },
	"replaces the header": func(r *http.Request) { r.Header = http.Header{} },
	"rewrites the path":   func(r *http.Request) { r.URL.Path = "/other" },
	"rewrites the query":  func(r *http.Request) { r.URL.RawQuery = "other=1" },
	"rewrites the host":   func(r *http.Request) { r.Host, r.URL.Host = "other.test", "other.test" },
	"rewrites the method": func(r *http.Request) { r.Method = "GET" },
}

func TestAPageIsKeptForTheRequestAsItCameWhateverTheHandlerDoesToIt(t *testing.T) {
	for name, spoil := range spoiling {
		t.Run(name, func(t *testing.T) {
			inBubble(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
				lang := r.Header.Get("X-Lang")
				spoil(r)
				w.Header().Set("Cache-Control", "max-age=10, stale-while-revalidate=5")
				w.Header().Set("Etag", `"v1"`)
				w.Header().Set("Vary", "X-Lang")
				fmt.Fprintf(w, "in %q", lang)
			}, func(b *bench) {
				ask := func(method string, runs int64, more ...string) {
					t.Helper()
					defer b.wantRuns(runs)
					defer synctest.Wait() // for those in the background
					for _, lang := range []string{"de", "", "fr", "xx"} {
						pairs := more
						if lang != "" {
							pairs = append([]string{"X-Lang", lang}, more...)
						}
						a := b.do(method, "/p", pairs...)
						if want := fmt.Sprintf("in %q", lang); method == "GET" && a.body != want {
							t.Errorf("got %s, want %s", a.body, want)
						}
					}
				}
				ask("GET", 4)
				ask("GET", 4)
				// Those in the background, with conditions, as well.
				time.Sleep(11 * time.Second)
				ask("GET", 8)
				ask("GET", 8)
				// And runs for one request alone: a HEAD freshens what it selects.
				time.Sleep(8 * time.Second)
				ask("HEAD", 12, "Cache-Control", "no-cache")
				time.Sleep(8 * time.Second)
				ask("GET", 12)
			})
		})
	}
}

// Who reads along looks at the request of the run, to see whether its answer is
// for others; the race detector tells if that is the handler's.
func TestAHandlerMayChangeItsRequestWhileOthersReadAlong(t *testing.T) {
	const readers = 5
	var allRead atomic.Bool
	f := newFleet(t, 1, Options{}, func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(100 * time.Millisecond) // all have come: who comes when it has begun waits for its end
		w.Header().Set("Cache-Control", "max-age=60")
		w.Header().Set("Vary", "X-Lang")
		io.WriteString(w, "1")
		r.Header.Set("X-Lang", "not theirs")
		w.(http.Flusher).Flush()
		for n := 0; !allRead.Load(); n++ {
			r.Header.Set("X-Lang", fmt.Sprint(n))
		}
		io.WriteString(w, "2")
	})
	var begun, ended sync.WaitGroup
	begun.Add(readers)
	for range readers {
		ended.Go(func() {
			_, resp, err := f.firstByte(t.Context(), 0, "/p", "X-Lang", "de")
			begun.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "2" {
				t.Errorf("the rest is %q, %v", rest, err)
			}
		})
	}
	begun.Wait()
	allRead.Store(true)
	ended.Wait()
}

func TestAWriteInvalidatesTheURLThatItWasSentToWhateverTheHandlerDoesToIt(t *testing.T) {
	for name, spoil := range spoiling {
		for _, flushes := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, flushes %v", name, flushes), func(t *testing.T) {
				version := 1
				b := newBench(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
					w.Header().Set("Cache-Control", "max-age=60")
					if r.Method != "POST" {
						fmt.Fprintf(w, "version %d of %s", version, r.URL.Path)
						return
					}
					spoil(r)
					version++
					w.Header().Set("Location", "more/details")
					w.WriteHeader(http.StatusCreated)
					if flushes {
						w.(http.Flusher).Flush()
					}
				})
				for _, want := range []int{1, 2} {
					for _, path := range []string{"/shop/p?q=1", "/shop/more/details"} {
						if a := b.get(path); a.body != fmt.Sprintf("version %d of %s", want, a.body[len("version 1 of "):]) {
							t.Errorf("%s: got %q, want version %d", path, a.body, want)
						}
					}
					if want == 1 {
						b.do("POST", "/shop/p?q=1")
					}
				}
			})
		}
	}
}

// net/http removes the files of a form when the request is over, of the request
// that it has made: what the handler has is another one if fields are hidden.
func TestFilesOfAFormAreRemovedThoughFieldsAreHidden(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	b := newBench(t, Options{HideHeaders: []string{"X-Secret"}}, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(0); err != nil {
			t.Error(err)
		}
		if r.Header.Get("X-Secret") != "" {
			t.Error("the handler sees what is to be hidden")
		}
	})
	srv := httptest.NewServer(b.h)
	defer srv.Close()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	part, err := form.CreateFormFile("file", "big")
	if err == nil {
		_, err = part.Write(make([]byte, 11<<20)) // more than a form keeps in memory
	}
	if err = errors.Join(err, form.Close()); err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/upload", &body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", form.FormDataContentType())
	r.Header.Set("X-Secret", "1")
	resp, err := srv.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	srv.Close() // waits until the request is over
	b.wantRuns(1)
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}
