package main

import (
	"bytes"
	"net"
	"strconv"
	"strings"
	"sync"
)

// countedConn counts the commands that leave over a connection, for a client
// without hooks.
type countedConn struct {
	net.Conn
	command func(name string)

	mu   sync.Mutex
	rest []byte // of a request that has not left as a whole; guarded by mu
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rest = append(c.rest, p[:n]...)
	for {
		name, size := firstCommand(c.rest)
		if size == 0 {
			return n, err
		}
		c.command(name)
		c.rest = append(c.rest[:0], c.rest[size:]...)
	}
}

// firstCommand returns the name of the request that b begins with (an array of
// bulk strings, as clients send them) and how long it is; 0: it is not whole.
func firstCommand(b []byte) (name string, size int) {
	args, at := header(b, 0, '*')
	for i := range args {
		n, body := header(b, at, '$')
		if body == 0 || body+n+2 > len(b) {
			return "", 0
		}
		if i == 0 {
			name = strings.ToLower(string(b[body : body+n]))
		}
		at = body + n + 2
	}
	return name, at
}

// header reads a line of kind and a number at b[at:] and returns where the next
// line begins; 0: it is not whole, or no such line.
func header(b []byte, at int, kind byte) (n, next int) {
	end := bytes.Index(b[min(at, len(b)):], []byte("\r\n"))
	if end < 1 || b[at] != kind {
		return 0, 0
	}
	n, err := strconv.Atoi(string(b[at+1 : at+end]))
	if err != nil || n < 0 {
		return 0, 0
	}
	return n, at + end + 2
}
