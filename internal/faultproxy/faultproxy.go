// Package faultproxy stands between clients and a server and does to their
// connections what networks do: it makes replies late, slow or lost, lets
// connections hang without an end, and resets them. Tests and the load test use
// it.
package faultproxy

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Faults are what happens to the connections. The zero value is a good network.
type Faults struct {
	// Hang: nothing passes in either direction, and every connection, also a
	// new one, stays open. What is held passes when Hang ends, as packets do
	// that are sent again.
	Hang bool

	Refuse  bool          // new connections are reset
	Latency time.Duration // each reply comes later by this
	Rate    int           // bytes a second of each connection's replies; 0: no limit

	// Fate, if set, judges each reply by the request that came last on its
	// connection. It may be called concurrently.
	Fate func(request []byte) Fate
}

// Fate is what becomes of one reply.
type Fate struct {
	Late time.Duration
	Lost bool // the connection is reset in its place

	// Answer, if set, is sent in its place: what a server says that is ill.
	Answer []byte
}

// Proxy forwards connections. Its methods are safe for concurrent use.
type Proxy struct {
	Addr string // host:port, for clients

	target   string
	listener net.Listener
	all      sync.WaitGroup
	done     chan struct{} // closed by Close

	mu      sync.Mutex
	faults  Faults             // guarded by mu
	changed chan struct{}      // closed when faults change; guarded by mu
	links   map[*link]struct{} // guarded by mu
	closed  bool               // guarded by mu
}

// link is a client's connection and the server's that belongs to it.
type link struct {
	down, up net.Conn

	mu      sync.Mutex
	request []byte // the last that came; guarded by mu
}

// Start begins to forward to target. Close ends it.
func Start(target string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultproxy: %w", err)
	}
	p := &Proxy{Addr: l.Addr().String(), target: target, listener: l, done: make(chan struct{}),
		changed: make(chan struct{}), links: make(map[*link]struct{})}
	p.all.Go(p.accept)
	return p, nil
}

// Set replaces the faults, for connections that there are too.
func (p *Proxy) Set(f Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = f
	close(p.changed)
	p.changed = make(chan struct{})
}

// Reset resets all connections that there are.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
}

// Links is how many connections there are.
func (p *Proxy) Links() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Close ends the proxy and its connections. It may be called twice.
func (p *Proxy) Close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.done)
		p.listener.Close()
		for l := range p.links {
			l.reset()
		}
	}
	p.mu.Unlock()
	p.all.Wait()
}

func (p *Proxy) accept() {
	for {
		down, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.all.Go(func() { p.serve(down) })
	}
}

// serve forwards one connection until it ends.
func (p *Proxy) serve(down net.Conn) {
	f, ok := p.pass()
	if !ok || f.Refuse {
		reset(down)
		return
	}
	up, err := net.DialTimeout("tcp", p.target, time.Second)
	if err != nil {
		reset(down) // as the server would
		return
	}
	l := &link{down: down, up: up}
	if !p.add(l) {
		l.reset()
		return
	}
	defer p.remove(l)
	var requests sync.WaitGroup
	requests.Go(func() { p.requests(l) })
	p.replies(l)
	requests.Wait()
}

func (p *Proxy) add(l *link) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.links[l] = struct{}{}
	return true
}

func (p *Proxy) remove(l *link) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.links, l)
}

// pass waits as long as everything hangs, and returns what else is wrong with
// the network. ok is false if the proxy was closed meanwhile.
func (p *Proxy) pass() (f Faults, ok bool) {
	for {
		p.mu.Lock()
		f, changed := p.faults, p.changed
		p.mu.Unlock()
		if !f.Hang {
			return f, true
		}
		select {
		case <-changed:
		case <-p.done:
			return f, false
		}
	}
}

// wait lets a time pass, and tells whether the proxy is still there.
func (p *Proxy) wait(d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.done:
		return false
	}
}

const bufferSize = 64 << 10

func (p *Proxy) requests(l *link) {
	defer l.end()
	buffer := make([]byte, bufferSize)
	for {
		n, err := l.down.Read(buffer)
		if err != nil {
			return
		}
		if _, ok := p.pass(); !ok {
			return
		}
		l.came(buffer[:n])
		if _, err := l.up.Write(buffer[:n]); err != nil {
			return
		}
	}
}

func (p *Proxy) replies(l *link) {
	defer l.end()
	buffer := make([]byte, bufferSize)
	for {
		n, err := l.up.Read(buffer)
		if err != nil {
			return
		}
		f, ok := p.pass()
		if !ok {
			return
		}
		fate := Fate{}
		if f.Fate != nil {
			fate = f.Fate(l.last())
		}
		if !p.wait(f.Latency + fate.Late) {
			return
		}
		if fate.Lost {
			l.reset()
			return
		}
		reply := buffer[:n]
		if fate.Answer != nil {
			reply = fate.Answer
		}
		// What began to hang while this reply was late hangs too.
		if _, ok := p.pass(); !ok || !p.write(l.down, reply, f.Rate) {
			return
		}
	}
}

// write sends a reply, at a rate if there is one, and tells whether it could.
func (p *Proxy) write(to net.Conn, reply []byte, rate int) bool {
	if rate <= 0 {
		_, err := to.Write(reply)
		return err == nil
	}
	const step = 10 * time.Millisecond
	piece := max(1, rate*int(step)/int(time.Second))
	for len(reply) > 0 {
		n := min(piece, len(reply))
		if _, err := to.Write(reply[:n]); err != nil || !p.wait(step) {
			return false
		}
		reply = reply[n:]
	}
	return true
}

func (l *link) came(request []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.request = append(l.request[:0], request...)
}

func (l *link) last() []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]byte(nil), l.request...)
}

// end closes both sides in order.
func (l *link) end() {
	l.down.Close()
	l.up.Close()
}

// reset ends both sides at once.
func (l *link) reset() {
	reset(l.down)
	reset(l.up)
}

// reset closes a connection with a reset instead of an end.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // it may be closed already
	}
	c.Close()
}
