package redisstore

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

const (
	// A subscription that has been silent for quiet is asked whether it lives,
	// and given up when it says nothing for another quiet.
	quiet = 1500 * time.Millisecond

	firstBackoff = 50 * time.Millisecond
	maxBackoff   = time.Second
	deniedPause  = 30 * time.Second // permissions do not change by themselves
)

var errSilent = errors.New("the subscription's connection is silent")

// A listener keeps one subscription for all spaces of a Store, with one channel
// for each. Its goroutine runs while anybody listens. It is a hint, never
// needed for correctness: while it does not work, listeners have heard Down.
type listener struct {
	client redis.UniversalClient
	fault  func(error)
	onUp   func(context.Context) // after each connection

	// decode makes an entry of bytes that a message has carried; nil if it
	// cannot tell.
	decode func(name string, b []byte) *store.Entry

	running sync.WaitGroup // the goroutines of every subscription that was ever begun

	mu      sync.Mutex         // held while listeners are called, so that stop can wait for them
	spaces  map[string]*space  // by channel
	sent    map[string]bool    // channels that this connection has subscribed
	pending map[string]int     // SUBSCRIBEs of this connection not yet confirmed, by channel
	end     context.CancelFunc // of the goroutine that runs now, nil if nobody listens
	ended   chan struct{}      // closed when the last one that was begun has ended
	changed chan struct{}      // holds one hint that spaces has changed
	closed  bool
}

// A space is one channel and who listens to it.
type space struct {
	name      string
	listeners map[*subscriber]struct{}
	asked     bool // a SUBSCRIBE for it was sent on this connection
	up        bool
}

type subscriber struct{ fn func(store.Event) }

func newListener(client redis.UniversalClient, fault func(error), onUp func(context.Context)) *listener {
	return &listener{client: client, fault: fault, onUp: onUp, spaces: map[string]*space{}, changed: make(chan struct{}, 1)}
}

func (l *listener) listen(name string, fn func(store.Event)) (stop func()) {
	channel, sub := channelName(name), &subscriber{fn}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return func() {}
	}
	sp := l.spaces[channel]
	if sp == nil {
		sp = &space{name: name, listeners: map[*subscriber]struct{}{}}
		l.spaces[channel] = sp
		l.hint()
	}
	sp.listeners[sub] = struct{}{}
	if sp.up {
		fn(store.Event{Kind: store.Up})
	}
	if l.end == nil {
		ctx, cancel := context.WithCancel(context.Background())
		l.end = cancel
		before, ended := l.ended, make(chan struct{})
		l.ended = ended
		l.running.Go(func() {
			defer close(ended)
			if before != nil {
				<-before // one connection at a time
			}
			l.run(ctx)
		})
	}
	return func() { l.stop(channel, sub) }
}

// stop takes a listener away. It holds mu, so that no call of its fn is running
// when it returns.
func (l *listener) stop(channel string, sub *subscriber) {
	l.mu.Lock()
	defer l.mu.Unlock()
	sp := l.spaces[channel]
	if sp == nil {
		return
	}
	delete(sp.listeners, sub)
	if len(sp.listeners) > 0 {
		return
	}
	delete(l.spaces, channel)
	l.hint()
	if len(l.spaces) == 0 && l.end != nil {
		l.end()
		l.end = nil
	}
}

// close ends the subscription and waits for its goroutines.
func (l *listener) close(wait time.Duration) error {
	l.mu.Lock()
	l.closed = true
	l.down()
	clear(l.spaces)
	if l.end != nil {
		l.end()
		l.end = nil
	}
	l.mu.Unlock()
	return waitFor(l.running.Wait, wait)
}

func (l *listener) hint() {
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

// run keeps a connection until ctx ends.
func (l *listener) run(ctx context.Context) {
	backoff := firstBackoff
	for {
		began := time.Now()
		err := l.session(ctx)
		if ctx.Err() != nil {
			return
		}
		l.mu.Lock()
		l.down()
		l.mu.Unlock()
		f := fault("listen", err)
		l.fault(f)

		if time.Since(began) > 10*maxBackoff {
			backoff = firstBackoff
		}
		pause := backoff/2 + rand.N(backoff/2)
		if store.ClassOf(f) == store.ClassDenied {
			pause = deniedPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

// down tells everybody who was up that events may be missed from now on, and
// forgets what the connection had subscribed. mu is held.
func (l *listener) down() {
	for _, sp := range l.spaces {
		if sp.up {
			sp.call(store.Event{Kind: store.Down})
		}
		sp.up, sp.asked = false, false
	}
	l.sent, l.pending = map[string]bool{}, map[string]int{}
}

func (sp *space) call(e store.Event) {
	for sub := range sp.listeners {
		sub.fn(e)
	}
}

// session is the life of one connection. It returns why that ended.
func (l *listener) session(ctx context.Context) error {
	l.mu.Lock()
	l.down() // what an earlier connection had subscribed
	l.mu.Unlock()
	ps := l.client.Subscribe(ctx) // without channels: does not connect yet
	defer ps.Close()
	if err := l.spread(ctx, ps); err != nil {
		return err
	}
	if err := l.subscribe(ctx, ctx, ps); err != nil {
		return err
	}
	over := make(chan struct{})
	var keeper sync.WaitGroup
	keeper.Go(func() { l.keep(ctx, ps, over) })
	err := l.receive(ctx, ps)
	close(over)
	keeper.Wait()
	return err
}

// spread connects to any node of a cluster: a message reaches them all. By its
// first SUBSCRIBE go-redis would choose the node of the channel's slot, the same
// one for the whole fleet.
func (l *listener) spread(ctx context.Context, ps *redis.PubSub) error {
	if _, several := l.client.(*redis.ClusterClient); !several {
		return nil
	}
	return ps.Ping(ctx)
}

// keep does for a connection what its receiver, which waits for messages,
// cannot: it follows the changes of who listens, and ends it with ctx.
func (l *listener) keep(ctx context.Context, ps *redis.PubSub, over <-chan struct{}) {
	l.onUp(ctx)
	for {
		select {
		case <-l.changed:
			if err := l.subscribe(ctx, canceledNow, ps); err != nil {
				ps.Close()
				return
			}
		case <-ctx.Done():
			ps.Close()
			return
		case <-over:
			return
		}
	}
}

// subscribe asks, under the context sending, for the channels that are wanted
// and were not asked for, and ends those that nobody wants any more.
func (l *listener) subscribe(ctx, sending context.Context, ps *redis.PubSub) error {
	add, drop := l.difference(ctx)
	if len(drop) > 0 {
		if err := ps.Unsubscribe(sending, drop...); err != nil {
			return err
		}
	}
	if len(add) == 0 {
		return nil
	}
	return ps.Subscribe(sending, add...)
}

// difference is empty once ctx has ended: the spaces that are there then are
// for the next connection. (The last listener stops and another comes: were the
// dying connection to ask for its space, it would hear Up and miss events.)
func (l *listener) difference(ctx context.Context) (add, drop []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return nil, nil
	}
	for channel, sp := range l.spaces {
		if !sp.asked {
			sp.asked = true
			l.sent[channel] = true
			l.pending[channel]++
			add = append(add, channel)
		}
	}
	for channel := range l.sent {
		if l.spaces[channel] == nil {
			delete(l.sent, channel)
			drop = append(drop, channel)
		}
	}
	return add, drop
}

// canceledNow is a context that has ended. A PubSub that loses its connection
// makes a new one inside the call that has noticed, which can take as long as a
// dial and hides the loss; with this context that dial fails at once, and the
// call returns. (An existing connection is read and written without a look at
// the context's end.)
var canceledNow = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// receive reads messages until the connection is lost or does not answer.
func (l *listener) receive(ctx context.Context, ps *redis.PubSub) error {
	asked := false // a ping is under way
	for {
		msg, err := ps.ReceiveTimeout(canceledNow, quiet)
		var network net.Error
		switch {
		case err == nil:
			asked = false
			l.dispatch(ctx, msg)
		case !errors.As(err, &network) || !network.Timeout():
			return err
		case asked:
			return errSilent
		default:
			asked = true
			if err := ps.Ping(canceledNow); err != nil {
				return err
			}
		}
	}
}

// dispatch hands a message to those whom it concerns, unless its connection is
// to end, which is decided under mu.
func (l *listener) dispatch(ctx context.Context, msg any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	switch m := msg.(type) {
	case *redis.Subscription:
		if m.Kind == "subscribe" {
			l.confirmed(m.Channel)
		}
	case *redis.Message:
		sp := l.spaces[m.Channel]
		if e, entry, ok := parseEvent(m.Payload); ok && sp != nil && sp.up {
			if entry != "" {
				e.Entry = l.decode(entryName(store.Key{Space: sp.name, ID: e.ID}), []byte(entry))
			}
			sp.call(e)
		}
	}
}

// confirmed marks a space as up with the last confirmation that is due: one of
// an earlier SUBSCRIBE, with an UNSUBSCRIBE behind it, says nothing.
func (l *listener) confirmed(channel string) {
	if l.pending[channel]--; l.pending[channel] > 0 {
		return
	}
	delete(l.pending, channel)
	if sp := l.spaces[channel]; sp != nil && sp.asked && !sp.up {
		sp.up = true
		sp.call(store.Event{Kind: store.Up})
	}
}

// carriedKind is a [store.Filled] that carries its entry. It has a number of its
// own, as events.go of an older version would take the entry for a part of the
// id: it does not know this one and polls.
const carriedKind = store.Expired + 1

// parseEvent reads a message of a script: the kind, the token and
// the id, and before the id the bytes of the entry, if it carries one. It may
// come from anybody.
func parseEvent(payload string) (e store.Event, entry string, ok bool) {
	if len(payload) < 9 {
		return e, "", false
	}
	kind := store.EventKind(payload[0])
	token := binary.BigEndian.Uint64([]byte(payload[1:9]))
	rest := payload[9:]
	if kind == carriedKind {
		size := entrySize(rest)
		if size == 0 {
			return e, "", false
		}
		kind, entry, rest = store.Filled, rest[:size], rest[size:]
	}
	if kind < store.Filled || kind > store.Expired || token >= 2*tokenLimit {
		return e, "", false
	}
	return store.Event{Kind: kind, ID: rest, Token: store.Token(token)}, entry, true
}
