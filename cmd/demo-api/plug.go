package main

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// plug is the line to the store, which can be pulled: connections that are open
// are closed, and none is made, until it is put back. A store in memory has no
// connections; see pluggable.
type plug struct {
	mu     sync.Mutex
	pulled bool                  // guarded by mu
	conns  map[net.Conn]struct{} // that are open; guarded by mu
}

var errPulled = errors.New("the line to the store was pulled on the page")

// set pulls the plug or puts it back.
func (p *plug) set(pulled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pulled = pulled
	if !pulled {
		return
	}
	for conn := range p.conns {
		conn.Close()
	}
	clear(p.conns)
}

func (p *plug) isPulled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pulled
}

// through is d while the plug is in.
func (p *plug) through(d dial) dial {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		refused := &net.OpError{Op: "dial", Net: network, Err: errPulled}
		if p.isPulled() {
			return nil, refused
		}
		conn, err := d(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.pulled { // meanwhile
			conn.Close()
			return nil, refused
		}
		if p.conns == nil {
			p.conns = map[net.Conn]struct{}{}
		}
		p.conns[conn] = struct{}{}
		plugged := &pluggedConn{Conn: conn, plug: p}
		if sys, ok := conn.(syscall.Conn); ok { // see counting
			return struct {
				*pluggedConn
				syscall.Conn
			}{plugged, sys}, nil
		}
		return plugged, nil
	}
}

// pluggedConn is forgotten by its plug when it is closed.
type pluggedConn struct {
	net.Conn
	plug *plug
}

func (c *pluggedConn) Close() error {
	c.plug.mu.Lock()
	delete(c.plug.conns, c.Conn)
	c.plug.mu.Unlock()
	return c.Conn.Close()
}

// pluggable is a store in memory that is out of reach while the plug is pulled.
type pluggable struct {
	store.Store
	plug *plug
}

// away is the fault of a call while the plug is pulled, or nil.
func (s pluggable) away(op string) error {
	if s.plug.isPulled() {
		return &store.Fault{Op: op, Class: store.ClassConnection, Err: errPulled}
	}
	return nil
}

// eachAway is away for a call about n keys.
func (s pluggable) eachAway(op string, n int) []error {
	err := s.away(op)
	if err == nil {
		return nil
	}
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (s pluggable) Claim(ctx context.Context, c store.Claim) (store.Verdict, error) {
	if err := s.away("claim"); err != nil {
		return store.Verdict{}, err
	}
	return s.Store.Claim(ctx, c)
}

func (s pluggable) Renew(ctx context.Context, renewals []store.Renewal) []error {
	if errs := s.eachAway("renew", len(renewals)); errs != nil {
		return errs
	}
	return s.Store.Renew(ctx, renewals)
}

func (s pluggable) Release(ctx context.Context, g store.Grant, f *store.Failure) error {
	if err := s.away("release"); err != nil {
		return err
	}
	return s.Store.Release(ctx, g, f)
}

func (s pluggable) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	if err := s.away("load"); err != nil {
		return store.Entry{}, err
	}
	return s.Store.Load(ctx, key)
}

func (s pluggable) LoadMany(ctx context.Context, keys []store.Key) ([]store.Entry, []error) {
	if errs := s.eachAway("load", len(keys)); errs != nil {
		return make([]store.Entry, len(keys)), errs
	}
	return s.Store.LoadMany(ctx, keys)
}

func (s pluggable) ClaimMany(ctx context.Context, claims []store.Claim) ([]store.Verdict, []error) {
	if errs := s.eachAway("claim", len(claims)); errs != nil {
		return make([]store.Verdict, len(claims)), errs
	}
	return s.Store.ClaimMany(ctx, claims)
}

func (s pluggable) FillMany(ctx context.Context, fills []store.Filling) []error {
	if errs := s.eachAway("fill", len(fills)); errs != nil {
		return errs
	}
	return s.Store.FillMany(ctx, fills)
}

func (s pluggable) Fill(ctx context.Context, g store.Grant, c store.Content) error {
	if err := s.away("fill"); err != nil {
		return err
	}
	return s.Store.Fill(ctx, g, c)
}

func (s pluggable) Begin(ctx context.Context, key store.Key, keep time.Duration) (store.Begun, error) {
	if err := s.away("begin"); err != nil {
		return store.Begun{}, err
	}
	return s.Store.Begin(ctx, key, keep)
}

func (s pluggable) Set(ctx context.Context, w store.Write) error {
	if err := s.away("set"); err != nil {
		return err
	}
	return s.Store.Set(ctx, w)
}

func (s pluggable) Invalidate(ctx context.Context, keys []store.Key) []error {
	if errs := s.eachAway("invalidate", len(keys)); errs != nil {
		return errs
	}
	return s.Store.Invalidate(ctx, keys)
}

func (s pluggable) Expire(ctx context.Context, keys []store.Key) []error {
	if errs := s.eachAway("expire", len(keys)); errs != nil {
		return errs
	}
	return s.Store.Expire(ctx, keys)
}
