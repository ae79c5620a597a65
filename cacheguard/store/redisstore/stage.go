package redisstore

import (
	"context"
	"sync"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// content is a fill or set on its way.
type content struct {
	entry   string
	holder  string // whose the staged bytes are
	token   store.Token
	content store.Content
	script  *script
	args    []any // without the bytes, which come last, or are staged

	granted bool  // a fill: what the head says is known, and goes along
	asked   int64 // by the server's clock, if granted
}

// write sends a fill or a set.
func (s *Store) write(ctx context.Context, op string, w content) error {
	r, err := s.invoke(ctx, op, s.invocation(w))
	if err != nil {
		return err
	}
	return writeOutcome(op, r)
}

// The outcomes of fill.lua and set.lua.
const (
	written  = 1
	fenced   = 2
	unstaged = 3
)

func writeOutcome(op string, r reply) error {
	switch r.outcome() {
	case written:
		return nil
	case fenced:
		return store.ErrFenced
	}
	return fault(op, errReply)
}

// stageLife is how long staged bytes wait for their script: they are sent
// together, so this only bounds what a broken connection can leave behind.
const stageLife = 10 * time.Second

// invocation is the script that writes w. A small value is an argument of it. A
// large one would cost the server five times its SET that way: it is staged by
// a plain SET under a side key and the script, in the same pipeline, renames
// it. The script decides in this order, so that nothing staged can slip past
// the fence and a refused value is not sent twice: birth mark and fence; the
// same fill before = success; the rename, without which nothing is done; then
// expiry and fence.
//
// The caller's payload is copied here, before anything runs that the caller may
// not wait for.
func (s *Store) invocation(w content) invocation {
	size := headSize + bodySize(w.entry, w.content)
	if w.content.Kind != store.Value || len(w.content.Payload) <= s.opts.StageAbove {
		b := make([]byte, 0, size)
		if w.granted {
			b = w.appendHead(b)
		}
		return invocation{script: w.script, keys: names(w.entry), args: append(w.args, appendBody(b, w.entry, w.content))}
	}
	value := buffer(size)
	if w.granted {
		value = w.appendHead(value)
	} else {
		value = value[:headSize] // the script writes it over what stands there
	}
	return invocation{
		script: w.script, keys: append(names(w.entry), stageName(w.entry, w.holder, w.token)), args: w.args,
		staged: appendBody(value, w.entry, w.content), life: max(stageLife, 2*s.opts.Timeout),
	}
}

// appendHead appends the head of a fill: its token and times are those of the
// claim. The script writes another where it knows better.
func (w content) appendHead(b []byte) []byte {
	return appendHead(b, w.token, w.asked, micro(w.content.TTL), micro(w.content.Grace))
}

// Staged bytes are large, and as short-lived as a call: their buffers are used
// again.
const pooledBuffer = 1 << 20 // a larger one is left to the garbage collector

var buffers sync.Pool // of *[]byte

// buffer returns an empty slice that holds size bytes.
func buffer(size int) []byte {
	if b, ok := buffers.Get().(*[]byte); ok && cap(*b) >= size {
		return (*b)[:0]
	}
	return make([]byte, 0, size)
}

// free gives the staged bytes back. Nothing of the client uses them any more:
// it is called where the commands have returned, however late that is.
func (i invocation) free() {
	if i.staged != nil && cap(i.staged) <= pooledBuffer {
		buffers.Put(&i.staged)
	}
}
