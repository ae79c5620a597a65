package redisstore

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// A pipeline sends reads that come together as one go-redis pipeline: one
// connection, one write and one wake-up for all of them (Options.ReadPipelines;
// decision 25 says why it is not go-redis' AutoPipeline).
//
// There are some lanes. A read that finds a free one is sent at once and alone,
// exactly as without a pipeline: nobody waits for company. A read that finds
// none joins the batch that is open; who opens a batch is its sender, waits for
// a lane, and then sends all that have joined by then. So a read is sent after
// it arrived, which is all that P2 asks.
//
// No goroutine and no queue is the pipeline's own. A sender sends on its
// caller's goroutine, within the bound of its own call (runner.runHere). It
// joined first, so its deadline is the first of the batch: when that has come,
// whether for a lane or for the replies, the batch is over for all. So nothing
// outlives the calls that are under way, which MaxCalls bounds and Close waits
// for, and nothing that nobody waits for any more is sent to a server that has
// come back.
type pipeline struct {
	client redis.UniversalClient // keeps the bound by itself
	run    *runner
	lanes  chan struct{} // has one element for each free lane

	mu   sync.Mutex
	open *batch // the one to join; nil if there is none. Guarded by mu, with its commands
	size int    // commands of the last batch: the next is likely as large. Guarded by mu
}

const (
	// maxBatch closes a batch to more commands: what one broken connection may
	// cost, and what the replies of one write may be.
	maxBatch = 512

	// maxShared is the most commands of one call that go into a batch: a
	// LoadMany of more is a pipeline of its own already, and would hold up the
	// others.
	maxShared = 128
)

// errSender is the fault of reads whose sender did not come back.
var errSender = errors.New("the call that sent this read with others has panicked")

func newPipeline(client redis.UniversalClient, run *runner, lanes int) *pipeline {
	p := &pipeline{client: client, run: run, lanes: make(chan struct{}, lanes)}
	for range lanes {
		p.lanes <- struct{}{}
	}
	return p
}

// A batch is some calls' commands that are sent together.
type batch struct {
	commands []redis.Cmder
	done     chan struct{} // closed when the commands have their replies, or err is set
	err      error         // why no command has a reply of its own
}

// A readable is a call that only reads, in the form in which others can send
// it.
type readable interface {
	// size is the most commands that there are.
	size() int
	// prepare makes the commands, for the caller's context; queue appends them
	// to those that are to be sent.
	prepare(ctx context.Context)
	queue(to []redis.Cmder) []redis.Cmder
	// collect takes the commands' replies, or errors.
	collect() error
}

// read runs r, which exec sends by itself, within the bound: as runner.do, and
// through the pipeline if there is one. A call whose context can end goes alone,
// so that its end costs nobody else an answer.
func (s *Store) read(ctx context.Context, began time.Time, r readable, exec func(context.Context) error) (err error, abandoned bool) {
	if s.pipeline == nil || ctx.Done() != nil || r.size() > maxShared {
		return s.run.do(ctx, began, exec)
	}
	return s.pipeline.read(ctx, began, r, exec)
}

func (p *pipeline) read(ctx context.Context, began time.Time, r readable, exec func(context.Context) error) (err error, abandoned bool) {
	if err := p.run.enter(); err != nil {
		return err, true
	}
	select {
	case <-p.lanes:
		defer p.free()
		return p.run.runHere(ctx, began, exec), false
	default:
	}
	r.prepare(ctx)
	b, sender := p.join(r)
	if sender {
		err = p.run.runHere(ctx, began, func(ctx context.Context) error { return p.send(ctx, b) })
	} else {
		<-b.done
		p.run.leave()
		err = b.err
	}
	if err != nil {
		return err, false
	}
	return r.collect(), false
}

// join puts r into the open batch. If there is none it opens one, whose sender
// is the caller.
func (p *pipeline) join(r readable) (b *batch, sender bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == nil {
		p.open, sender = &batch{commands: make([]redis.Cmder, 0, p.size), done: make(chan struct{})}, true
	}
	b = p.open
	b.commands = r.queue(b.commands)
	if len(b.commands) >= maxBatch {
		p.open = nil // its sender knows it
	}
	return b, sender
}

// shut ends the joining of b and returns what has joined.
func (p *pipeline) shut(b *batch) []redis.Cmder {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == b {
		p.open = nil
	}
	p.size = len(b.commands)
	return b.commands
}

// free hands the lane on: to the sender that has waited longest, if one waits.
func (p *pipeline) free() { p.lanes <- struct{}{} }

// send waits for a lane and sends b, if there still is time. Whatever happens, b
// is done after it: also if a hook of the client panics.
func (p *pipeline) send(ctx context.Context, b *batch) error {
	defer close(b.done)
	b.err = errSender
	select {
	case <-p.lanes:
		defer p.free()
	case <-ctx.Done():
	}
	commands := p.shut(b)
	if ctx.Err() != nil {
		b.err = errTimeout // a connection is not spoilt for it
	} else {
		b.err = p.exchange(ctx, commands)
	}
	return b.err
}

// exchange sends commands and reads their replies. What has lost its reply with
// the connection goes once more: many calls would fail for it, where without a
// pipeline one does, and three failures are an outage to the guard. A read may
// be asked again; it then only is answered later.
func (p *pipeline) exchange(ctx context.Context, commands []redis.Cmder) error {
	if err := p.exec(ctx, commands); err != nil {
		return err
	}
	var again []redis.Cmder
	for _, cmd := range commands {
		if lostReply(cmd.Err()) {
			cmd.SetErr(nil)
			again = append(again, cmd)
		}
	}
	if again == nil {
		return nil
	}
	return p.exec(ctx, again)
}

// exec runs one pipeline. Its error is one that no command has got: a hook's.
func (p *pipeline) exec(ctx context.Context, commands []redis.Cmder) error {
	pipe := p.client.Pipeline()
	_ = pipe.BatchProcess(ctx, commands...) // queued
	if _, err := pipe.Exec(ctx); err != nil && commands[0].Err() == nil {
		for _, cmd := range commands {
			if cmd.Err() != nil {
				return nil // it is this one's
			}
		}
		return err
	}
	return nil
}

// lostReply reports that a connection broke on which a command was sent; not
// that none could be made.
func lostReply(err error) bool {
	if err == nil || classify(err) != store.ClassConnection || errors.Is(err, redis.ErrClosed) {
		return false
	}
	var network *net.OpError
	return !errors.As(err, &network) || network.Op != "dial"
}
