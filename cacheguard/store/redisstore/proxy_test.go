package redisstore_test

import (
	"net"
	"sync"
	"testing"
)

// proxy stands between a client and a server and does to the replies what
// reply says: it returns what is passed on, and whether the connection lives
// on.
type proxy struct {
	Addr   string
	server string
	reply  func(b []byte) ([]byte, bool)

	listener net.Listener
	all      sync.WaitGroup
	mu       sync.Mutex // guards conns and closed
	conns    []net.Conn
	closed   bool
}

func startProxy(t testing.TB, server string, reply func(b []byte) ([]byte, bool)) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{Addr: l.Addr().String(), server: server, reply: reply, listener: l}
	p.all.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) accept() {
	for {
		down, err := p.listener.Accept()
		if err != nil {
			return
		}
		up, err := net.Dial("tcp", p.server)
		if err != nil {
			down.Close()
			continue
		}
		if !p.keep(down, up) {
			return
		}
		p.all.Go(func() { p.copy(up, down, func(b []byte) ([]byte, bool) { return b, true }) })
		p.all.Go(func() { p.copy(down, up, p.reply) })
	}
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conns = append(p.conns, conns...)
	if p.closed {
		for _, c := range conns {
			c.Close()
		}
	}
	return !p.closed
}

func (p *proxy) copy(to, from net.Conn, change func([]byte) ([]byte, bool)) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		b, lives := change(buffer[:n])
		if _, err := to.Write(b); err != nil || !lives {
			return
		}
	}
}

func (p *proxy) close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for _, c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.all.Wait()
}
