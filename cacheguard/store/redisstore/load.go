package redisstore

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Load implements [store.Store]: one GET. When no fresh enough sample of the
// server's clock is at hand, the same round trip asks for the time as well.
func (s *Store) Load(ctx context.Context, key store.Key) (store.Entry, error) {
	began := time.Now()
	name := entryName(key)
	clock := s.clock.of(name).Load()
	l := loads.Get().(*load)
	l.client, l.name, l.withTime = s.client, name, needsTime(clock, began)
	err, abandoned := s.read(ctx, began, l, l.run)
	if abandoned {
		return store.Entry{}, s.fault("load", name, err) // l is still run's
	}
	body, server := l.body, l.server
	*l = load{run: l.run}
	loads.Put(l)

	if server > 0 {
		clock = s.clock.learn(name, server, began)
	}
	return s.entryOf(name, body, err, clock, began)
}

// entryOf makes an entry of what a GET of name, begun at began, has brought, with
// the sample of the server's clock that goes with it.
//
// It is judged as of then: one look at the clock serves the bound, the entry, and
// whoever goes on to count from it.
func (s *Store) entryOf(name string, body []byte, err error, clock *sample, began time.Time) (store.Entry, error) {
	if err != nil {
		return store.Entry{At: began, Fault: wrongType(err)}, s.loadFault(name, err)
	}
	if clock == nil { // it was asked for, and not told
		return store.Entry{}, s.fault("load", name, errReply)
	}
	if began.Sub(clock.sent) > sampleWanted {
		clock.wanted.Store(true)
	}
	e := decode(body, name, clock.at(began))
	e.At = began
	return e, nil
}

// wrongType is the entry's fault if a key that is no string is under its name.
func wrongType(err error) error {
	if redis.HasErrorPrefix(err, "WRONGTYPE") {
		return &store.Fault{Op: "load", Class: store.ClassData, Err: errForeign}
	}
	return nil
}

// loadFault is the error of a GET, if it is one: that nothing, or nothing of
// ours, is there is not.
func (s *Store) loadFault(name string, err error) error {
	if errors.Is(err, redis.Nil) || wrongType(err) != nil {
		return nil
	}
	return s.fault("load", name, err)
}

// needsTime tells whether a read has to ask for the server's time: there is no
// usable sample, or an earlier hit found it old and nobody has asked since. A
// miss needs no time, so a cold key costs no second command for it.
func needsTime(s *sample, now time.Time) bool {
	return s == nil || now.Sub(s.sent) > sampleUsable || s.wanted.CompareAndSwap(true, false)
}

// A load is one GET on its way; they are reused, but for abandoned ones.
type load struct {
	client   redis.UniversalClient
	name     string
	withTime bool
	get      onceGet
	clock    once // if withTime

	body   []byte
	server int64 // the server's time, if asked for

	run func(context.Context) error // exec, bound once
}

var loads = sync.Pool{New: func() any {
	l := &load{}
	l.run = l.exec
	return l
}}

func (l *load) exec(ctx context.Context) error {
	l.prepare(ctx)
	if l.withTime {
		pipe := l.client.Pipeline()
		_ = pipe.BatchProcess(ctx, l.queue(nil)...) // queued; their own errors are collected
		_, _ = pipe.Exec(ctx)
	} else if err := l.client.Process(ctx, l.get); err != nil {
		return err
	}
	return l.collect()
}

// prepare makes the commands. The time is asked of a script on the entry's
// name, so that in a cluster the entry's own server answers.
func (l *load) prepare(ctx context.Context) {
	l.get = onceGet{redis.NewStringCmd(ctx, "get", l.name)}
	if l.withTime {
		l.clock = once{redis.NewCmd(ctx, "eval", timeScript, 1, l.name)}
	}
}

// queue asks for the time after the entry, in the same round trip.
func (l *load) queue(to []redis.Cmder) []redis.Cmder {
	to = append(to, l.get)
	if l.withTime {
		to = append(to, l.clock)
	}
	return to
}

func (l *load) size() int { return 2 }

func (l *load) collect() (err error) {
	if l.body, err = l.get.Bytes(); err != nil || !l.withTime {
		return err
	}
	if err := l.clock.Err(); err != nil {
		return err
	}
	l.server, err = readTime(l.clock.Val())
	return err
}

// readTime reads the reply of TIME: seconds and microseconds, as two strings.
func readTime(v any) (int64, error) {
	pair, ok := v.([]any)
	if !ok || len(pair) != 2 {
		return 0, errReply
	}
	var parts [2]int64
	for i, p := range pair {
		text, ok := p.(string)
		n, err := strconv.ParseInt(text, 10, 64)
		if !ok || err != nil || n < 0 || n > tokenLimit/1_000_000 {
			return 0, errReply
		}
		parts[i] = n
	}
	return parts[0]*1e6 + parts[1], nil
}
