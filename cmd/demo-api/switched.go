package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// switched is a cache whose mode can be changed while it serves. What each
// mode stores, the others can read. A mode's cache is made when it is first
// used: a fleet that is measured in one mode has nothing of the others.
type switched[V any] struct {
	open    func(mode string) (cache[V], error)
	current atomic.Pointer[cache[V]]

	mu     sync.Mutex
	opened map[string]cache[V] // by mode; guarded by mu
}

func newSwitched[V any](mode string, open func(mode string) (cache[V], error)) (*switched[V], error) {
	s := &switched[V]{open: open, opened: map[string]cache[V]{}}
	return s, s.switchTo(mode)
}

func (s *switched[V]) switchTo(mode string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.opened[mode]
	if !ok {
		var err error
		if c, err = s.open(mode); err != nil {
			return err
		}
		s.opened[mode] = c
	}
	s.current.Store(&c)
	return nil
}

// now is the cache of the present mode.
func (s *switched[V]) now() cache[V] { return *s.current.Load() }

func (s *switched[V]) Invalidate(ctx context.Context, keys ...string) error {
	return s.now().Invalidate(ctx, keys...)
}

func (s *switched[V]) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, c := range s.opened {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
