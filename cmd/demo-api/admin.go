package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// admin serves operators where every path of the main address is another
// server's: /metrics, /readyz and /healthz, on an address of its own, which
// nobody shadows.
type admin struct {
	url   string
	srv   *http.Server
	ended chan error
}

// openAdmin serves on addr until Close.
func openAdmin(addr string, s store.Store, m *metrics, draining *atomic.Bool) (*admin, error) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthy)
	mux.Handle("GET /readyz", readiness{s, draining})
	mux.Handle("GET /metrics", m.handler())
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on %s (%w); use -admin with a free port, such as -admin 127.0.0.1:8081", addr, err)
	}
	a := &admin{url: baseURL(ln.Addr()), ended: make(chan error, 1), srv: &http.Server{
		Handler:           limitTime(mux),
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       2 * time.Minute,
	}}
	go func() { a.ended <- a.srv.Serve(ln) }()
	return a, nil
}

// Close ends it; a scrape that is under way has a second.
func (a *admin) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := a.srv.Shutdown(ctx); err != nil {
		_ = a.srv.Close()
	}
	if err := <-a.ended; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving -admin: %w", err)
	}
	return nil
}

func healthy(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok\n") }

// readiness says whether to send requests here: not while draining, nor while
// the store is out of reach.
type readiness struct {
	store    store.Store
	draining *atomic.Bool
}

func (s readiness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.draining.Load() {
		http.Error(w, "draining", http.StatusServiceUnavailable)
		return
	}
	if _, err := s.store.Load(r.Context(), store.Key{Space: "demo-ready"}); err != nil {
		http.Error(w, "the store does not answer", http.StatusServiceUnavailable)
		return
	}
	io.WriteString(w, "ready\n")
}
