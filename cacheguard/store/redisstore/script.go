package redisstore

import (
	"context"
	"crypto/sha1"
	_ "embed" // the scripts
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/prelude.lua
var prelude string

var (
	//go:embed lua/claim.lua
	claimLua string
	//go:embed lua/renew.lua
	renewLua string
	//go:embed lua/release.lua
	releaseLua string
	//go:embed lua/fill.lua
	fillLua string
	//go:embed lua/begin.lua
	beginLua string
	//go:embed lua/set.lua
	setLua string
	//go:embed lua/invalidate.lua
	invalidateLua string
	//go:embed lua/expire.lua
	expireLua string
)

var (
	claimScript      = newScript(claimLua)
	renewScript      = newScript(renewLua)
	releaseScript    = newScript(releaseLua)
	fillScript       = newScript(fillLua)
	beginScript      = newScript(beginLua)
	setScript        = newScript(setLua)
	invalidateScript = newScript(invalidateLua)
	expireScript     = newScript(expireLua)
)

// timeScript asks the server that has a key for its time. It is short enough to
// be sent whole: a read that needs it must not fail for want of it.
const timeScript = "return redis.call('TIME')"

// A script is asked for by its digest, and sent whole to a server that does not
// know it (any more: SCRIPT FLUSH, restart, failover).
type script struct{ source, digest string }

func newScript(body string) *script {
	source := prelude + body
	sum := sha1.Sum([]byte(source))
	return &script{source: source, digest: hex.EncodeToString(sum[:])}
}

// An invocation is a script with its keys and arguments.
type invocation struct {
	script *script
	keys   []string
	args   []any
}

func (i invocation) byDigest(ctx context.Context) once {
	return i.command(ctx, "evalsha", i.script.digest)
}

func (i invocation) whole(ctx context.Context) once {
	return i.command(ctx, "eval", i.script.source)
}

func (i invocation) command(ctx context.Context, verb, what string) once {
	args := make([]any, 0, 3+len(i.keys)+len(i.args))
	args = append(args, verb, what, len(i.keys))
	for _, k := range i.keys {
		args = append(args, k)
	}
	return once{redis.NewCmd(ctx, append(args, i.args...)...)}
}

// run runs one script. It is executed at most once: a server that answers
// NOSCRIPT has executed nothing.
func (i invocation) run(ctx context.Context, client redis.UniversalClient) (reply, error) {
	cmd := i.byDigest(ctx)
	_ = client.Process(ctx, cmd) // its error is the command's, read by finish
	return i.finish(ctx, client, cmd)
}

// finish reads the reply of a script that was sent by digest, and sends it
// whole if the server did not know it: NOSCRIPT has executed nothing.
func (i invocation) finish(ctx context.Context, client redis.UniversalClient, sent once) (reply, error) {
	err := sent.Err()
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		sent = i.whole(ctx)
		err = client.Process(ctx, sent)
	}
	if err != nil {
		return nil, err
	}
	return readReply(sent.Cmd)
}

// runAll runs many scripts in one pipeline (one for each node of a cluster),
// and those that a server did not know in a second one. There is one reply or
// error for each.
func runAll(ctx context.Context, client redis.UniversalClient, invocations []invocation) ([]reply, []error) {
	replies, errs := make([]reply, len(invocations)), make([]error, len(invocations))
	cmds := make([]once, len(invocations))
	pipe := client.Pipeline()
	for n, i := range invocations {
		cmds[n] = i.byDigest(ctx)
		_ = pipe.Process(ctx, cmds[n]) // queued; its own error is read below
	}
	_, _ = pipe.Exec(ctx)

	pipe = client.Pipeline()
	for n, i := range invocations {
		if redis.HasErrorPrefix(cmds[n].Err(), "NOSCRIPT") {
			cmds[n] = i.whole(ctx)
			_ = pipe.Process(ctx, cmds[n])
		}
	}
	if pipe.Len() > 0 {
		_, _ = pipe.Exec(ctx)
	}
	for n, cmd := range cmds {
		if errs[n] = cmd.Err(); errs[n] == nil {
			replies[n], errs[n] = readReply(cmd.Cmd)
		}
	}
	return replies, errs
}

// once is a command that the client must not send again by itself: after a lost
// reply nobody knows whether it was executed, and asking again is the caller's
// decision. (go-redis asks every command whether it may be retried.)
type once struct{ *redis.Cmd }

// NoRetry makes go-redis send the command once.
func (once) NoRetry() bool { return true }

// onceGet is a GET that the client does not send again.
type onceGet struct{ *redis.StringCmd }

// NoRetry makes go-redis send the command once.
func (onceGet) NoRetry() bool { return true }

// A reply is what every script returns: what came of it, the server's time,
// and what else there is to say. It comes from the network: each element is
// checked when it is read.
type reply []any

func readReply(cmd *redis.Cmd) (reply, error) {
	r, ok := cmd.Val().([]any)
	if !ok || len(r) < 2 {
		return nil, errReply
	}
	if _, ok := r[1].(int64); !ok {
		return nil, errReply
	}
	return r, nil
}

// outcome is the first element, -1 if it is no number.
func (r reply) outcome() int64 {
	n, ok := r[0].(int64)
	if !ok {
		return -1
	}
	return n
}

// now is the server's time in microseconds.
func (r reply) now() int64 { return r[1].(int64) }

// numbers and texts read the elements from place on; ok is false if the reply
// does not have them.
func (r reply) number(place int) (n int64, ok bool) {
	if place >= len(r) {
		return 0, false
	}
	n, ok = r[place].(int64)
	return n, ok
}

func (r reply) text(place int) (s string, ok bool) {
	if place >= len(r) {
		return "", false
	}
	s, ok = r[place].(string)
	return s, ok
}
