package middleware

import (
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"
)

// audience is who waits for a run of this process. When an answer that is to be
// kept starts streaming, those who were there before its run began read along.
// Those who came later must not: something may have been invalidated in
// between, and only the end of the run can prove that nothing was. They wait a
// little for that end, and then run their own.
type audience struct {
	count  atomic.Uint64 // numbers arrivals and runs, so that before and after are known
	shards [64]audienceShard
}

type audienceShard struct {
	mu        sync.Mutex
	waiting   map[string]map[*job]uint64 // by key, with the number of the arrival
	streaming map[string]int             // runs that stream, by key
}

// streamPatience is how long a late arrival waits for the end of a run that
// streams: most answers that are flushed early are over soon.
const streamPatience = 50 * time.Millisecond

var audienceSeed = maphash.MakeSeed()

func (a *audience) shard(key string) *audienceShard {
	return &a.shards[maphash.String(audienceSeed, key)%uint64(len(a.shards))]
}

// join adds a job that waits for key, and returns the number of its arrival.
func (a *audience) join(key string, j *job) uint64 {
	s := a.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting == nil {
		s.waiting, s.streaming = make(map[string]map[*job]uint64), make(map[string]int)
	}
	if s.waiting[key] == nil {
		s.waiting[key] = make(map[*job]uint64)
	}
	number := a.count.Add(1)
	s.waiting[key][j] = number
	if s.streaming[key] > 0 {
		j.hurry()
	}
	return number
}

func (a *audience) leave(key string, j *job) {
	s := a.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting[key], j)
	if len(s.waiting[key]) == 0 {
		delete(s.waiting, key)
	}
}

// visit shows those who wait for key, until f has seen enough. They stay where
// they are meanwhile.
func (a *audience) visit(key string, f func(*job) (more bool)) {
	s := a.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	for j := range s.waiting[key] {
		if !f(j) {
			return
		}
	}
}

// curtain returns the number that tells who was there before now.
func (a *audience) curtain() uint64 { return a.count.Add(1) }

// invite has the jobs that waited for key before the curtain read along t, and
// tells the others to hurry until the returned function is called.
func (a *audience) invite(key string, curtain uint64, t *run) (over func()) {
	s := a.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streaming == nil {
		s.waiting, s.streaming = make(map[string]map[*job]uint64), make(map[string]int)
	}
	s.streaming[key]++
	for j, number := range s.waiting[key] {
		switch {
		case number >= curtain:
			j.hurry()
		case t.attach(j):
			j.along.Store(t)
			j.wake(errStreaming)
		}
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.streaming[key]--; s.streaming[key] == 0 {
			delete(s.streaming, key)
		}
	}
}
