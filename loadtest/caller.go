package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"time"
)

// product is what demo-api answers.
type product struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Price   int64  `json:"price"`
	Stock   int64  `json:"stock"`
	Version int64  `json:"version"`
}

// answer is what one caller got.
type answer struct {
	latency time.Duration
	status  int
	state   string      // where the answer came from, as the process says
	header  http.Header // nil unless it is looked at
	body    []byte
	product product // once decoded
	err     error   // why there is no product
}

// failed reports whether the caller got no product.
func (a answer) failed() bool { return a.err != nil }

// decode reads the body. It is done after a storm, not in it.
func (a *answer) decode() {
	switch {
	case a.err != nil:
	case a.status != http.StatusOK:
		a.err = fmt.Errorf("status %d: %.100s", a.status, a.body)
	default:
		if err := json.Unmarshal(a.body, &a.product); err != nil {
			a.err = fmt.Errorf("the answer is not a product: %w", err)
		}
	}
}

// problem says what is wrong with an answer to the question for key: every
// field must be of one version of that product.
func (a answer) problem(key string) error {
	switch {
	case a.err != nil:
		return a.err
	case a.product != productOf(key, a.product.Version):
		return fmt.Errorf("asked for %s and got %+v", key, a.product)
	}
	return nil
}

// caller is one client with a connection of its own that stays open. It is
// used by one goroutine at a time.
//
// It does without http.Client: two goroutines for each of hundreds of
// connections, on the machine that is measured, would be measured too.
type caller struct {
	replica *replica
	done    *atomic.Int64 // counts its answers, with those of others; nil: nobody does
	headers bool          // answers have their header
	conn    net.Conn      // nil after an error, until it is dialed again
	reader  *bufio.Reader
}

// connect dials clients callers for each process of a fleet.
func connect(ctx context.Context, f *fleet, clients int) (callers []*caller, err error) {
	// One of each process after the other, so that in a storm no process gets
	// all its callers before the next gets its first.
	for range clients {
		for _, r := range f.replicas {
			c := &caller{replica: r, done: f.answered}
			if err := c.dial(ctx); err != nil {
				hangUp(callers)
				return nil, err
			}
			callers = append(callers, c)
		}
	}
	return callers, nil
}

func hangUp(callers []*caller) {
	for _, c := range callers {
		if c.conn != nil {
			c.conn.Close()
		}
	}
}

func (c *caller) dial(ctx context.Context) error {
	d := net.Dialer{Timeout: dialLimit}
	conn, err := d.DialContext(ctx, "tcp", c.replica.addr)
	if err != nil {
		return fmt.Errorf("connecting to a process of the fleet: %w", err)
	}
	c.conn, c.reader = conn, bufio.NewReader(conn)
	return nil
}

// requestAt returns the bytes that ask for path at an instant.
func (c *caller) requestAt(path string, at time.Time) []byte {
	return fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\nLoadtest-At: %d\r\n\r\n", path, c.replica.addr, at.UnixNano())
}

// get asks for path now and waits for the answer.
func (c *caller) get(ctx context.Context, path string) answer {
	request := fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: %s\r\n\r\n", path, c.replica.addr)
	a := c.roundTrip(ctx, request, time.Now())
	a.decode()
	return a
}

// roundTrip sends a request and reads its answer, whose latency counts from
// begin.
func (c *caller) roundTrip(ctx context.Context, request []byte, begin time.Time) answer {
	if c.conn == nil {
		if err := c.dial(ctx); err != nil {
			return answer{latency: time.Since(begin), err: err}
		}
	}
	a, err := c.exchange(ctx, request)
	a.latency = time.Since(begin)
	if c.done != nil {
		c.done.Add(1)
	}
	if err != nil {
		a.err = err
		c.conn.Close()
		c.conn = nil
	}
	return a
}

func (c *caller) exchange(ctx context.Context, request []byte) (a answer, err error) {
	conn := c.conn
	if err := conn.SetDeadline(time.Now().Add(callLimit)); err != nil {
		return a, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := conn.Write(request); err != nil {
		return a, err
	}
	resp, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return a, err
	}
	a.status, a.state = resp.StatusCode, resp.Header.Get("X-Cacheguard-State")
	if c.headers {
		a.header = resp.Header
	}
	a.body, err = io.ReadAll(resp.Body)
	if err == nil && resp.Close {
		err = fmt.Errorf("the process closed the connection after status %d", resp.StatusCode)
	}
	return a, err
}

// dialLimit bounds the wait for a connection.
const dialLimit = 5 * time.Second

// callLimit bounds one call: longer than a process may take for any answer.
const callLimit = 90 * time.Second

func productPath(key string) string { return "/products/" + url.PathEscape(key) }

func floorPath(key string, sleep time.Duration) string {
	return "/floor/" + url.PathEscape(key) + "?sleep=" + sleep.String()
}
