package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/child"
	"github.com/cacheguard-go/cacheguard/internal/faultproxy"
)

// fleet is a number of demo-api processes that share a Redis and an origin.
type fleet struct {
	replicas []*replica
	client   *http.Client  // for what is not measured
	answered *atomic.Int64 // of its callers; nil: nobody counts

	binary string    // of demo-api
	args   fleetArgs // of each process
}

// replica is one process.
type replica struct {
	*child.Child
	proxy *faultproxy.Proxy // between it and Redis; nil: none
	addr  string            // host and port
	log   *tail             // the end of what it said
	input io.Closer         // when it is closed, the process ends by itself
}

// end ends the process in order. One that may not be signalled ends all the same,
// for its input does; so it does where we end without a word.
func (r *replica) end() error {
	r.input.Close()
	err := r.Stop(stopLimit)
	if !errors.Is(err, os.ErrPermission) {
		return err
	}
	select {
	case <-r.Done():
		return r.Err()
	case <-time.After(stopLimit):
		return err
	}
}

// fleetArgs are what the processes of a fleet are told.
type fleetArgs struct {
	redis, origin, mode string
	ttl, grace          time.Duration
	proxied             bool // each process has a proxy between itself and Redis
}

func (a fleetArgs) flags() []string {
	return []string{
		"-addr", "127.0.0.1:0", "-redis", a.redis, "-origin", a.origin, "-mode", a.mode,
		"-ttl", a.ttl.String(), "-grace", a.grace.String(), "-loadtest",
	}
}

// buildDemo builds demo-api into a file.
func buildDemo(ctx context.Context, file string) error {
	cmd := exec.Command("go", "build", "-o", file, demoPackage)
	said := new(tail)
	cmd.Stdout, cmd.Stderr = said, said
	build, err := child.Start(cmd)
	if err == nil {
		select {
		case <-build.Done():
			err = build.Err()
		case <-ctx.Done():
			build.Interrupt(stopLimit) // so that it takes its own files away
			return ctx.Err()
		}
	}
	if err != nil {
		return fmt.Errorf("cannot build demo-api (%w); run loadtest inside its repository, with Go installed:\n%s", err, said)
	}
	return nil
}

const demoPackage = "github.com/cacheguard-go/cacheguard/cmd/demo-api"

// startFleet starts n processes and returns when all are ready. On an error
// none is left.
func startFleet(ctx context.Context, n int, binary string, args fleetArgs) (_ *fleet, err error) {
	f := &fleet{
		client: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{}},
		binary: binary, args: args,
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.stop())
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for range n {
		r, err := f.start(ctx)
		if err != nil {
			return f, err
		}
		f.replicas = append(f.replicas, r)
	}
	for _, r := range f.replicas {
		if err := f.awaitReady(ctx, r); err != nil {
			return f, err
		}
	}
	return f, nil
}

const (
	startLimit = 30 * time.Second // for a fleet to become ready
	stopLimit  = 15 * time.Second // for a process to drain, then it is killed
)

// startReplica starts one process and waits until it says where it serves.
func startReplica(ctx context.Context, binary string, args fleetArgs) (*replica, error) {
	cmd := exec.Command(binary, args.flags()...)
	log := new(tail)
	pipe, said := io.Pipe()
	cmd.Stdout, cmd.Stderr = said, log
	input, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("cannot start demo-api: %w", err)
	}
	c, err := child.Start(cmd)
	if err != nil {
		return nil, fmt.Errorf("cannot start demo-api: %w", err)
	}
	r := &replica{Child: c, log: log, input: input}
	addr := make(chan string, 1)
	go func() {
		lines := bufio.NewScanner(pipe)
		for lines.Scan() {
			if at, ok := servedAt(lines.Text()); ok {
				select {
				case addr <- at:
				default:
				}
			}
		}
	}()
	go func() { <-c.Done(); said.Close() }()
	select {
	case r.addr = <-addr:
		return r, nil
	case <-c.Done():
		return nil, fmt.Errorf("demo-api ended at once: %s", log)
	case <-ctx.Done():
		r.input.Close()
		_ = c.Kill()
		return nil, fmt.Errorf("demo-api did not start: %w: %s", ctx.Err(), log)
	}
}

// servedAt finds the address in the line with which demo-api begins.
func servedAt(line string) (addr string, ok bool) {
	_, rest, found := strings.Cut(line, "serving on ")
	if !found {
		return "", false
	}
	word, _, _ := strings.Cut(rest, " ")
	u, err := url.Parse(word)
	if err != nil || u.Port() == "" {
		return "", false
	}
	return net.JoinHostPort(u.Hostname(), u.Port()), true
}

func (f *fleet) awaitReady(ctx context.Context, r *replica) error {
	for {
		if _, err := f.fetch(ctx, r, "/readyz"); err == nil {
			return nil
		} else if pause(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("demo-api did not become ready: %w: %s", err, r.log)
		}
		if err := f.died(); err != nil {
			return err
		}
	}
}

// replace starts a process in the place of one that is gone, and returns when it
// is ready.
func (f *fleet) replace(ctx context.Context, gone *replica) (*replica, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	r, err := f.start(ctx)
	if err != nil {
		return nil, err
	}
	if gone.proxy != nil {
		gone.proxy.Close()
	}
	f.replicas[slices.Index(f.replicas, gone)] = r
	return r, f.awaitReady(ctx, r)
}

// without is the fleet less one process, to ask the others.
func (f *fleet) without(r *replica) *fleet {
	less := *f
	less.replicas = slices.DeleteFunc(slices.Clone(f.replicas), func(other *replica) bool { return other == r })
	return &less
}

// fetch gets a path of a process, besides what is measured.
func (f *fleet) fetch(ctx context.Context, r *replica, path string) ([]byte, error) {
	return f.do(ctx, http.MethodGet, r, path, nil)
}

// put writes a product through a process and returns when that has answered.
func (f *fleet) put(ctx context.Context, r *replica, path string) ([]byte, error) {
	return f.do(ctx, http.MethodPut, r, path, strings.NewReader(`{"name": "new", "price": 1}`))
}

func (f *fleet) do(ctx context.Context, method string, r *replica, path string, body io.Reader) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+r.addr+path, body)
	if err != nil {
		return nil, err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %w: %.200s", method, path, statusError(resp.StatusCode), data)
	}
	return data, err
}

// statusError is an answer other than 200.
type statusError int

func (e statusError) Error() string { return fmt.Sprintf("%d %s", int(e), http.StatusText(int(e))) }

// died says which process ended by itself, if one did.
func (f *fleet) died() error {
	for _, r := range f.replicas {
		select {
		case <-r.Done():
			return fmt.Errorf("a demo-api process ended by itself (%v): %s", r.Err(), r.log)
		default:
		}
	}
	return nil
}

// stop ends all processes, at the same time, and says which would not go in
// order: a fleet that cannot drain is a fault too.
func (f *fleet) stop() error {
	f.client.CloseIdleConnections()
	errs := make([]error, len(f.replicas))
	var wg sync.WaitGroup
	for i, r := range f.replicas {
		wg.Go(func() {
			if err := r.end(); err != nil {
				errs[i] = fmt.Errorf("stopping demo-api: %w: %s", err, r.log)
			}
			if r.proxy != nil {
				r.proxy.Close()
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	data []byte // guarded by mu
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p...)
	if over := len(t.data) - tailLength; over > 0 {
		t.data = slices.Delete(t.data, 0, over)
	}
	return len(p), nil
}

const tailLength = 4 << 10

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.data))
}
