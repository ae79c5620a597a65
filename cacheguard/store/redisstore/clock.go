package redisstore

import (
	"sync/atomic"
	"time"
)

const (
	sampleWanted = 5 * time.Second  // an older sample: the next read brings a new one
	sampleUsable = 30 * time.Second // an older sample judges nothing

	// clockTolerance is how far ahead of the server's clock an entry may have
	// been asked for, before the clock must have stepped back.
	clockTolerance = time.Second
)

// A sample ties the server's clock to this process' monotonic one. sent is from
// before the request that brought it, so that the time computed from it is late
// by at most one round trip and never early: an entry may look a little older
// than it is, never younger.
type sample struct {
	server int64 // microseconds
	sent   time.Time

	// wanted: a hit found this sample old; the next read brings a new one.
	wanted atomic.Bool
}

// at is the server's clock at t.
func (s *sample) at(t time.Time) int64 { return s.server + t.Sub(s.sent).Microseconds() }

// clock keeps the samples: one of a single server, one per slot of a cluster,
// whose servers each have their own clock.
type clock struct {
	one   atomic.Pointer[sample]
	slots []atomic.Pointer[sample]
}

func newClock(cluster bool) *clock {
	if cluster {
		return &clock{slots: make([]atomic.Pointer[sample], slots)}
	}
	return &clock{}
}

func (c *clock) of(entry string) *atomic.Pointer[sample] {
	if c.slots == nil {
		return &c.one
	}
	return &c.slots[slotOf(entry)]
}

// learn takes the server's time from a reply to what was sent at sent, and
// returns the sample to go by. The server's clock now stands between server and
// a round trip later. An earlier sample that agrees was brought by a faster
// reply and is the better one, until it is old; one that does not agree is from
// before the server's clock has stepped.
func (c *clock) learn(entry string, server int64, sent time.Time) *sample {
	p, now := c.of(entry), time.Now()
	latest := &sample{server: server, sent: sent}
	if old := p.Load(); old != nil && now.Sub(old.sent) < sampleWanted {
		if at := old.at(now); at >= server && at <= latest.at(now) {
			return old
		}
	}
	p.Store(latest)
	return latest
}

// forget drops what is known of the server behind entry: after a fault another
// one, with another clock, may answer.
func (c *clock) forget(entry string) { c.of(entry).Store(nil) }
