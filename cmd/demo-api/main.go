// Command demo-api serves a product catalogue through cacheguard.
//
// It needs nothing installed: without -redis it keeps its cache in its own
// memory, without -origin it invents the products. Started several times with
// the same -redis and -origin it is a fleet, which is what loadtest does.
//
//	go run ./cmd/demo-api
//	curl -i localhost:8080/products/1
//	curl -i localhost:8080/pages/products/1
//
// The first is cache-aside: the product is kept, through a guard. The second is
// kept as an HTTP answer, by package middleware. With -upstream it is instead
// that HTTP cache in front of any other server.
//
// The page at / shows it live, and can break it in many ways.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	redis.SetLogger(quietly{})
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "demo-api:", err)
		os.Exit(1)
	}
}

// run serves until ctx ends, then drains: first it stops being ready, then it
// stops serving, then it gives back the leases, and only then does it let go
// of the store that holds them.
func run(ctx context.Context, args []string, out io.Writer) (err error) {
	cfg, err := parseFlags(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}

	if cfg.loadtest {
		var stop context.CancelFunc
		ctx, stop = whileFed(ctx, os.Stdin)
		defer stop()
	}

	m := newMetrics()
	back, err := openBackend(ctx, cfg.redis, m.commandSent)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, back.Close()) }()
	m.logs.Advise(back.advice...)

	if cfg.upstream.url != "" {
		return runUpstream(ctx, cfg, back, m, out)
	}

	watch := new(leaseWatch)
	cat, err := newCatalogue(ctx, cfg, back.store, m, watch)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cat.Close()) }()

	site, err := newPages(cfg, cat, back.store, m)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.Close()) }()
	cat.tell = site.written

	show := newLive(cfg, cat, back, watch)
	defer func() { err = errors.Join(err, show.Close()) }()

	var draining atomic.Bool
	srv := &http.Server{
		Handler: newServer(cfg, show, site, m, &draining),

		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      answerLimit + 5*time.Second,
		IdleTimeout:       2 * time.Minute,
	}
	about := fmt.Sprintf("mode %s, store: %s, origin: %s", cfg.mode, back.name, cat.origin.name)
	return serve(ctx, cfg, srv, &draining, about, out)
}

// runUpstream does the same as run for the cache in front of another server.
func runUpstream(ctx context.Context, cfg config, back *backend, m *metrics, out io.Writer) (err error) {
	u, err := newUpstream(cfg.upstream, back.store, m)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, u.Close()) }()
	about := fmt.Sprintf("store: %s, in front of %s", back.name, cfg.upstream.url)
	var draining atomic.Bool
	if cfg.upstream.admin != "" {
		a, openErr := openAdmin(cfg.upstream.admin, back.store, m, &draining)
		if openErr != nil {
			return openErr
		}
		defer func() { err = errors.Join(err, a.Close()) }()
		about += ", metrics and readiness on " + a.url
	}
	srv := &http.Server{
		Handler: u,

		// No limit for a whole request or answer: uploads and streams have none.
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       2 * time.Minute,
	}
	return serve(ctx, cfg, srv, &draining, about, out)
}

// serve serves until ctx ends, and then lets what is under way end.
func serve(ctx context.Context, cfg config, srv *http.Server, draining *atomic.Bool, about string, out io.Writer) error {
	ln, err := net.Listen("tcp", cfg.addr)
	if err != nil {
		return fmt.Errorf("cannot listen on %s (%w); use -addr with a free port, such as -addr 127.0.0.1:8081", cfg.addr, err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(ln) }()
	fmt.Fprintf(out, "demo-api: serving on %s (%s)\n", baseURL(ln.Addr()), about)

	select {
	case err := <-served:
		return fmt.Errorf("serving: %w", err)
	case <-ctx.Done():
	}
	draining.Store(true)
	time.Sleep(cfg.drain) // load balancers look at /readyz meanwhile
	return shutdown(srv, out)
}

// shutdown lets requests that are under way end, for as long as drainLimit.
func shutdown(srv *http.Server, out io.Writer) error {
	fmt.Fprintln(out, "demo-api: draining")
	ctx, cancel := context.WithTimeout(context.Background(), drainLimit)
	defer cancel()
	if err := srv.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("requests were still under way after %v: %w", drainLimit, err), srv.Close())
	}
	return nil
}

// drainLimit bounds how long a request that is under way can hold up the end.
const drainLimit = 10 * time.Second

// baseURL is where a browser on this machine finds addr.
func baseURL(addr net.Addr) string {
	host, port, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port)
}
