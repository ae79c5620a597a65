package middleware

import (
	"bufio"
	"net"
	"net/http"
	"sync"
	"time"
)

// client is the connection of the request that began a run. The run reaches it
// for what cannot be recorded (informational answers, deadlines, hijacking),
// and only until the request's ServeHTTP returns.
type client struct {
	mu   sync.Mutex
	w    http.ResponseWriter // nil: it has returned
	used bool                // an answer has been begun on w
}

// leave waits until nobody uses the connection and lets nobody do so again.
func (c *client) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w = nil
}

// begin says that w's header is the answer's from now on.
func (c *client) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.used = true
}

// do runs fn on the connection, if it is still there.
func (c *client) do(fn func(http.ResponseWriter) error) error {
	if c == nil {
		return http.ErrNotSupported
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.w == nil {
		return http.ErrNotSupported
	}
	return fn(c.w)
}

// inform sends an informational answer with its header.
func (c *client) inform(status int, h http.Header) {
	_ = c.do(func(w http.ResponseWriter) error {
		if c.used {
			return nil
		}
		own := w.Header()
		before := own.Clone()
		for name, values := range h {
			own[name] = values
		}
		w.WriteHeader(status)
		clear(own)
		for name, values := range before {
			own[name] = values
		}
		return nil
	})
}

// hijack takes the connection over for the handler: nothing can be kept.
func (t *run) hijack() (conn net.Conn, rw *bufio.ReadWriter, err error) {
	err = t.client.do(func(w http.ResponseWriter) (err error) {
		conn, rw, err = http.NewResponseController(w).Hijack()
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.hijacked = true
	t.verdict = verdict{class: classPass, reason: "hijacked"}
	t.decide("hijacked")
	return conn, rw, nil
}

// The controls of http.ResponseController. A run has no Unwrap: what is
// underneath may be gone before the handler is.

// SetReadDeadline passes the deadline on to the client's connection.
func (t *run) SetReadDeadline(deadline time.Time) error {
	return t.client.do(func(w http.ResponseWriter) error {
		return http.NewResponseController(w).SetReadDeadline(deadline)
	})
}

// SetWriteDeadline passes the deadline on to the client's connection.
func (t *run) SetWriteDeadline(deadline time.Time) error {
	return t.client.do(func(w http.ResponseWriter) error {
		return http.NewResponseController(w).SetWriteDeadline(deadline)
	})
}

// EnableFullDuplex passes the wish on to the client's connection.
func (t *run) EnableFullDuplex() error {
	return t.client.do(func(w http.ResponseWriter) error {
		return http.NewResponseController(w).EnableFullDuplex()
	})
}

// writerFor returns the run as a http.ResponseWriter that is a http.Flusher and
// a http.Hijacker exactly if the client's is.
func (t *run) writerFor(w http.ResponseWriter) http.ResponseWriter {
	_, flusher := w.(http.Flusher)
	_, hijacker := w.(http.Hijacker)
	switch {
	case flusher && hijacker:
		return struct {
			*run
			flushing
			hijacking
		}{t, flushing{t}, hijacking{t}}
	case flusher:
		return struct {
			*run
			flushing
		}{t, flushing{t}}
	case hijacker:
		return struct {
			*run
			hijacking
		}{t, hijacking{t}}
	}
	return t
}

type flushing struct{ t *run }

func (f flushing) Flush()            { _ = f.t.flush() }
func (f flushing) FlushError() error { return f.t.flush() }

type hijacking struct{ t *run }

func (h hijacking) Hijack() (net.Conn, *bufio.ReadWriter, error) { return h.t.hijack() }
