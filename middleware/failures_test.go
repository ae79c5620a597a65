package middleware

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/slogguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// watched returns hooks that log as slogguard does and keep the errors of loads.
func watched() (hooks cacheguard.Hooks, lines func() string, loads func() []error) {
	var (
		mu  sync.Mutex
		out bytes.Buffer
		all []error
	)
	logs := slogguard.New(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})), slogguard.Options{})
	hooks = cacheguard.JoinHooks(logs.Hooks("pages"), cacheguard.Hooks{Load: func(l cacheguard.LoadInfo) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, l.Err)
	}})
	return hooks, func() string { return out.String() }, func() []error {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

func TestAnswersThatAreNotToBeSharedAreNoFailuresInTheLog(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"bad request": func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", 400) },
		"private":     page("private"),
		"no-store":    page("no-store"),
		"forbidden":   func(w http.ResponseWriter, r *http.Request) { http.Error(w, "no", 403) },
	} {
		hooks, lines, loads := watched()
		inBubble(t, Options{Hooks: hooks}, handler, func(b *bench) {
			b.get("/p")
			b.get("/p")
			if len(loads()) == 0 {
				t.Errorf("%s: no load was told", name)
			}
			for _, err := range loads() {
				if !cacheguard.NotShared(err) {
					t.Errorf("%s: told as a load that failed: %v", name, err)
				}
			}
			if text := lines(); text != "" {
				t.Errorf("%s: logged %s", name, text)
			}
		})
	}
}

// A request with credentials that waits for another process's run gives that up
// after a moment, and finds out by itself. What it had prepared is run when the
// lease falls to it, for nobody: that is not a failure of the handler.
func TestFindingOutAboutCredentialsIsNoFailureInTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.Options{})
		slow := func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			http.Error(w, "no", 400) // nothing that others can use
		}
		hooks, lines, loads := watched()
		one, other := benchOver(t, s, Options{}, slow), benchOver(t, s, Options{Hooks: hooks}, slow)
		var wg sync.WaitGroup
		wg.Go(func() { one.get("/p") })
		synctest.Wait()
		wg.Go(func() { other.get("/p", "Authorization", "Bearer me") })
		wg.Wait()
		time.Sleep(time.Minute)
		probed := false
		for _, err := range loads() {
			probed = probed || errors.Is(err, errProbing)
			if !cacheguard.NotShared(err) {
				t.Errorf("told as a load that failed: %v", err)
			}
		}
		if !probed {
			t.Errorf("nothing was run for nobody: %v", loads())
		}
		if text := lines(); text != "" {
			t.Errorf("logged %s", text)
		}
	})
}

func TestAHandlerThatBreaksOffIsAFailureInTheLog(t *testing.T) {
	for name, handler := range map[string]http.HandlerFunc{
		"aborted": func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
		"short": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Cache-Control", "max-age=60")
			w.Header().Set("Content-Length", "10")
			io.WriteString(w, "short")
		},
	} {
		hooks, lines, _ := watched()
		inBubble(t, Options{Hooks: hooks}, handler, func(b *bench) {
			func() {
				defer func() { _ = recover() }()
				b.get("/p")
			}()
			if text := lines(); !bytes.Contains([]byte(text), []byte("a load failed")) {
				t.Errorf("%s: logged %q", name, text)
			}
		})
	}
}
