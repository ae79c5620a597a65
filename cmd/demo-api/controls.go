package main

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// routes are the page's own: what it shows, and its controls.
func (l *live) routes(r chi.Router) {
	r.Get("/state", func(w http.ResponseWriter, r *http.Request) { l.answerState(w, r) })
	r.Group(func(r chi.Router) {
		// A page of another site must not press our buttons.
		r.Use(http.NewCrossOriginProtection().Handler, l.onlyForUs)
		for path, control := range map[string]func(*http.Request) error{
			"/expire":     func(r *http.Request) error { return l.expireHot(r.Context()) },
			"/invalidate": func(r *http.Request) error { return l.invalidateHot(r.Context()) },
			"/storm":      l.controlStorm,
			"/rate":       l.controlRate,
			"/mode":       l.controlMode,
			"/origin":     l.controlOrigin,
			"/store":      l.controlStore,
		} {
			r.Post(path, func(w http.ResponseWriter, r *http.Request) {
				if err := control(r); err != nil {
					refuse(w, err)
					return
				}
				l.answerState(w, r)
			})
		}
	})
}

func (l *live) answerState(w http.ResponseWriter, r *http.Request) {
	s := l.state(r.Context())
	s.Controls = l.mayControl(r)
	w.Header().Set("Cache-Control", "no-store")
	answer(w, s)
}

// refuse says why a control did nothing, or not all.
func refuse(w http.ResponseWriter, err error) {
	switch _, fault := errors.AsType[*store.Fault](err); {
	case fault:
		http.Error(w, "the store was not reached; with mode guard, it is tried again in the background", http.StatusServiceUnavailable)
	case errors.Is(err, errStorming), errors.Is(err, errEnding):
		http.Error(w, err.Error(), http.StatusConflict)
	default:
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
}

func (l *live) onlyForUs(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.mayControl(r) {
			http.Error(w, errNoControls.Error(), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// mayControl: the caller is on this machine and knows it by such a name. The
// name counts because a browser here can be led here by a name of elsewhere,
// and because a proxy on this machine makes every caller seem to be on it.
func (l *live) mayControl(r *http.Request) bool {
	return l.cfg.controls || isLoopback(r.RemoteAddr) && isLoopback(r.Host)
}

func isLoopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		host = strings.Trim(hostPort, "[]")
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}
	return host == "localhost"
}

func (l *live) controlStorm(r *http.Request) error {
	callers, err := number(r, "callers", 1, maxCallers)
	if err != nil {
		return err
	}
	when, err := oneOf(r, "when", stormTimes)
	if err != nil {
		return err
	}
	return l.startStorm(callers, when)
}

func (l *live) controlRate(r *http.Request) error {
	rate, err := number(r, "rate", 0, maxRate)
	if err != nil {
		return err
	}
	return l.setRate(rate)
}

func (l *live) controlMode(r *http.Request) error {
	mode, err := oneOf(r, "mode", modes)
	if err != nil {
		return err
	}
	return l.catalogue.switchTo(mode)
}

func (l *live) controlOrigin(r *http.Request) error {
	delay, err := number(r, "delay_ms", 0, int(maxDelay/time.Millisecond))
	if err != nil {
		return err
	}
	failing, err := oneOf(r, "failing", []string{"false", "true"})
	if err != nil {
		return err
	}
	u := l.catalogue.origin.unruly
	u.delay.Store(int64(time.Duration(delay) * time.Millisecond))
	u.failing.Store(failing == "true")
	return nil
}

// maxDelay is well below loadLimit, so that a slow origin still answers.
const maxDelay = 10 * time.Second

func (l *live) controlStore(r *http.Request) error {
	away, err := oneOf(r, "away", []string{"false", "true"})
	if err != nil {
		return err
	}
	l.back.plug.set(away == "true")
	return nil
}

func number(r *http.Request, name string, low, high int) (int, error) {
	text := r.URL.Query().Get(name)
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%s is %q; send a number from %d to %d", name, text, low, high)
	}
	return n, nil
}

func oneOf(r *http.Request, name string, values []string) (string, error) {
	v := r.URL.Query().Get(name)
	if !slices.Contains(values, v) {
		return "", fmt.Errorf("%s is %q; send one of: %s", name, v, strings.Join(values, ", "))
	}
	return v, nil
}
