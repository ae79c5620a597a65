package redisstore_test

import (
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

// fillHeard fills a key that one other process waits for, and returns what
// every one of the listening stores heard of it.
func fillHeard(t *testing.T, s *redisstore.Store, listening []*redisstore.Store, payload string) []store.Event {
	t.Helper()
	key := newKey(t)
	up, filled := make(chan bool, len(listening)), make(chan store.Event, len(listening))
	for _, l := range listening {
		stop := l.Listen(key.Space, func(e store.Event) {
			switch e.Kind {
			case store.Up:
				up <- true
			case store.Filled:
				filled <- e
			}
		})
		defer stop()
	}
	for range listening {
		select {
		case <-up:
		case <-time.After(10 * time.Second):
			t.Fatal("a listener did not come up")
		}
	}
	g := claim(t, s, key, "p/1")
	for _, l := range listening { // everybody has spoken to the server; one of them waits
		c := store.Claim{Key: key, Holder: "q/1", Length: time.Second, Keep: keep, Wait: l == listening[0]}
		if v, err := l.Claim(t.Context(), c); err != nil || v.Outcome != store.Held {
			t.Fatal(v, err)
		}
	}
	if err := s.Fill(t.Context(), g, value(payload)); err != nil {
		t.Fatal(err)
	}
	var events []store.Event
	for range listening {
		select {
		case e := <-filled:
			events = append(events, e)
		case <-time.After(10 * time.Second):
			t.Fatal("the fill was not heard")
		}
	}
	return events
}

// Whoever waits need not read what it is told of. That costs every process that
// listens the bytes of it, so it is for small values that several wait for.
func TestSmallValuesComeAlongWithTheirMessage(t *testing.T) {
	backends(t, func(t *testing.T, connect func(testing.TB) redis.UniversalClient) {
		s := newStore(t, connect(t), patient)
		_, cluster := connect(t).(*redis.ClusterClient)
		listening := []*redisstore.Store{newStore(t, connect(t), patient)}
		for range 7 {
			listening = append(listening, newStore(t, connect(t), patient))
		}
		for _, e := range fillHeard(t, s, listening, "a value") {
			switch {
			case cluster && e.Entry != nil:
				t.Errorf("in a cluster it is sent to every server: %+v", e.Entry)
			case !cluster && (e.Entry == nil || string(e.Entry.Payload) != "a value" || e.Entry.Token != e.Token):
				t.Errorf("came along: %+v", e.Entry)
			}
		}
		for _, e := range fillHeard(t, s, listening, strings.Repeat("v", 1<<10+1)) {
			if e.Entry != nil {
				t.Errorf("a large value came along")
			}
		}
		listening = append(listening, newStore(t, connect(t), patient))
		for _, e := range fillHeard(t, s, listening, "a value") {
			if e.Entry != nil {
				t.Errorf("one of nine waits, and it came along")
			}
		}
	})
}

// The first thing that a process hears may be a message, before it knows the
// server's time: an entry that it cannot date is read.
func TestWithoutTheServersTimeNothingComesAlong(t *testing.T) {
	payload := redisstore.CarriedMessage("id", "payload")
	if e := redisstore.Carried(nil, payload); e != nil {
		t.Errorf("%+v", e)
	}
	now := time.Now()
	if e := redisstore.Carried(&now, payload); e == nil || string(e.Payload) != "payload" {
		t.Errorf("%+v, want the entry", e)
	}
	old := now.Add(-time.Minute)
	if e := redisstore.Carried(&old, payload); e != nil {
		t.Errorf("dated by a sample that is a minute old: %+v", e)
	}
}

// A message may come from anybody.
func TestWhatIsNotTheKeysEntryDoesNotComeAlong(t *testing.T) {
	now := time.Now()
	whole := redisstore.CarriedMessage("id", "payload")
	if e := redisstore.Carried(&now, redisstore.CarriedMessage("id", "payload")+"s"); e != nil {
		t.Errorf("an entry of another key: %+v", e)
	}
	for i := 9; i < len(whole)-len("id"); i++ {
		b := []byte(whole)
		b[i] ^= 1
		if e := redisstore.Carried(&now, string(b)); e != nil && string(e.Payload) != "payload" {
			t.Errorf("byte %d flipped: %+v", i, e)
		}
		if e := redisstore.Carried(&now, whole[:i]); e != nil {
			t.Errorf("cut at %d: %+v", i, e)
		}
	}
}
