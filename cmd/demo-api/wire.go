package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"sync"
	"syscall"
)

// dial opens a connection.
type dial func(ctx context.Context, network, addr string) (net.Conn, error)

// counting tells sent the name of each command that leaves over the
// connections of d.
//
// Commands are counted here, where they leave, because no counter of the
// server can tell them from those that its scripts run: on Redis 7.0,
// total_commands_processed and commandstats both add the calls inside a script
// to those that a client sent, and by the name alone a script's GET is a GET.
func counting(d dial, sent func(command string)) dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := d(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		counted := &countedConn{Conn: conn, commands: commandReader{command: sent}}
		// The client looks through SyscallConn whether an idle connection is
		// still there. One that has none (TLS) must not seem to.
		if sys, ok := conn.(syscall.Conn); ok {
			return struct {
				*countedConn
				syscall.Conn
			}{counted, sys}, nil
		}
		return counted, nil
	}
}

type countedConn struct {
	net.Conn
	mu       sync.Mutex
	commands commandReader // guarded by mu
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.commands.read(p[:n])
	return n, err
}

// commandReader follows a stream of RESP requests (arrays of bulk strings, as
// clients send them), however it is cut, and tells the name of each. After
// bytes that are no request it tells nothing more.
type commandReader struct {
	command func(name string)

	line   []byte // of a header, until its end has come
	args   int    // of the request, that are still to come
	first  bool   // the next argument is the name
	skip   int    // bytes of an argument, with its line end, that are still to come
	name   []byte // of the command, as far as it has come
	named  int    // bytes of the name that are still to come
	broken bool
}

func (r *commandReader) read(p []byte) {
	for len(p) > 0 && !r.broken {
		if r.skip > 0 {
			n := min(r.skip, len(p))
			r.argument(p[:n])
			p = p[n:]
			continue
		}
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			r.line = append(r.line, p...)
			r.broken = len(r.line) > maxHeader
			return
		}
		r.line = append(r.line, p[:end]...)
		p = p[end+1:]
		r.header(bytes.TrimSuffix(r.line, []byte("\r")))
		r.line = r.line[:0]
	}
}

// header takes "*3", which begins a request, or "$5", which begins an argument.
func (r *commandReader) header(line []byte) {
	kind := byte('*')
	if r.args > 0 {
		kind = '$'
	}
	n, ok := headerNumber(line, kind)
	switch {
	case !ok:
		r.broken = true
	case kind == '*':
		r.args, r.first = n, true
	default:
		r.skip = n + len("\r\n")
		if r.first {
			r.name, r.named = r.name[:0], n
		}
	}
}

// argument takes a part of an argument and its line end.
func (r *commandReader) argument(p []byte) {
	if r.first {
		part := p[:min(len(p), r.named)]
		r.named -= len(part)
		if len(r.name) < maxHeader {
			r.name = append(r.name, part...)
		}
	}
	r.skip -= len(p)
	if r.skip > 0 {
		return
	}
	r.args--
	if r.first {
		r.first = false
		r.command(strings.ToLower(string(r.name)))
	}
}

// headerNumber reads the digits after kind.
func headerNumber(line []byte, kind byte) (n int, ok bool) {
	if len(line) < 2 || len(line) > maxHeader || line[0] != kind {
		return 0, false
	}
	for _, digit := range line[1:] {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		n = 10*n + int(digit-'0')
	}
	return n, n < 1<<31
}

// maxHeader bounds a header line and what is kept of a name: far above what a
// client sends, and too few digits for an overflow.
const maxHeader = 16
