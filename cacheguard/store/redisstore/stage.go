package redisstore

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// content is a fill or set on its way.
type content struct {
	entry   string
	holder  string // whose the staged bytes are
	token   store.Token
	content store.Content
	script  *script
	args    []any // without the body, which comes last
}

// write sends a fill or a set. A small value is an argument of the script. A
// large one would cost the server five times its SET that way: it is staged by
// a plain SET under a side key and the script, in the same pipeline, renames
// it. The script decides in this order, so that nothing staged can slip past
// the fence and a refused value is not sent twice: birth mark and fence; the
// same fill before = success; no staged bytes = nothing done; only then rename,
// expiry and fence.
func (s *Store) write(ctx context.Context, op string, w content) error {
	run := s.writeWhole
	if s.stages(w.content) {
		run = s.writeStaged
	}
	r, err := s.bounded(ctx, op, w.entry, run(w))
	if err != nil {
		return err
	}
	if r.outcome() == unstaged {
		return s.fault(op, w.entry, errUnstaged)
	}
	return writeOutcome(op, r)
}

// stages tells whether a content is large enough to be staged.
func (s *Store) stages(c store.Content) bool {
	return len(c.Payload) > s.opts.StageAbove && c.Kind == store.Value
}

// writeOutcome reads what a script says of a write that was not staged in vain.
func writeOutcome(op string, r reply) error {
	switch r.outcome() {
	case written:
		return nil
	case fenced:
		return store.ErrFenced
	}
	return fault(op, errReply)
}

// The outcomes of fill.lua and set.lua.
const (
	written  = 1
	fenced   = 2
	unstaged = 3
)

func (s *Store) writeWhole(w content) func(context.Context) (reply, error) {
	i := w.whole()
	return func(ctx context.Context) (reply, error) { return i.run(ctx, s.client) }
}

// whole is the script with the value as its argument.
func (w content) whole() invocation {
	body := appendBody(make([]byte, 0, bodySize(w.entry, w.content)), w.entry, w.content)
	return invocation{w.script, names(w.entry), append(w.args, body)}
}

func (s *Store) writeStaged(w content) func(context.Context) (reply, error) {
	// The caller's payload is copied here, before anything runs that the
	// caller may not wait for. The script writes the head over the zeros.
	value := make([]byte, headSize, headSize+bodySize(w.entry, w.content))
	value = appendBody(value, w.entry, w.content)
	side := stageName(w.entry, w.holder, w.token)
	i := invocation{w.script, append(names(w.entry), side), append(w.args, "")}
	life := max(stageLife, 2*s.opts.Timeout)
	return func(ctx context.Context) (reply, error) {
		r, err := i.stage(ctx, s.client, value, life)
		if err == nil && r.outcome() == unstaged { // expired or evicted before the script ran
			r, err = i.stage(ctx, s.client, value, life)
		}
		return r, err
	}
}

// stageLife is how long staged bytes wait for their script: they are sent
// together, so this only bounds what a broken connection can leave behind.
const stageLife = 10 * time.Second

// stage sends the bytes and the script behind them in one round trip.
func (i invocation) stage(ctx context.Context, client redis.UniversalClient, value []byte, life time.Duration) (reply, error) {
	set := once{redis.NewCmd(ctx, "set", i.keys[2], value, "px", life.Milliseconds())}
	script := i.byDigest(ctx)
	pipe := client.Pipeline()
	_ = pipe.Process(ctx, set) // queued; its own error is read below
	_ = pipe.Process(ctx, script)
	_, _ = pipe.Exec(ctx)

	r, err := i.finish(ctx, client, script)
	if err == nil && r.outcome() == unstaged && set.Err() != nil {
		return nil, set.Err() // why there was nothing
	}
	return r, err
}
