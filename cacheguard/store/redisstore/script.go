package redisstore

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"regexp"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/*.lua lua/part/*.lua
var lua embed.FS

var (
	claimScript      = newScript("claim")
	renewScript      = newScript("renew")
	releaseScript    = newScript("release")
	fillScript       = newScript("fill")
	beginScript      = newScript("begin")
	setScript        = newScript("set")
	invalidateScript = newScript("invalidate")
	expireScript     = newScript("expire")
)

// timeScript asks the server that has a key for its time. It is short enough to
// be sent whole: a read that needs it must not fail for want of it.
const timeScript = "return redis.call('TIME')"

// A script is asked for by its digest, and sent whole to a server that does not
// know it (any more: SCRIPT FLUSH, restart, failover).
type script struct{ source, digest string }

func newScript(verb string) *script {
	source := luaSource("lua/" + verb + ".lua")
	sum := sha1.Sum([]byte(source))
	return &script{source: source, digest: hex.EncodeToString(sum[:])}
}

// include is a line that stands for one of the parts that scripts share.
var include = regexp.MustCompile(`(?m)^ *-- include: (\w+)\n`)

// luaSource is a file with its parts in place. They are code and not functions:
// to declare those would cost the server more at each run than most of them do.
func luaSource(file string) string {
	text, err := lua.ReadFile(file)
	if err != nil {
		panic(err) // embedded: known when the first test of the package runs
	}
	return include.ReplaceAllStringFunc(string(text), func(line string) string {
		return luaSource("lua/part/" + include.FindStringSubmatch(line)[1] + ".lua")
	})
}

// An invocation is a script with its keys and arguments.
type invocation struct {
	script *script
	keys   []string
	args   []any

	staged []byte        // to be put under the third key before, for life
	life   time.Duration // of the staged bytes
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
	if i.staged != nil {
		replies, errs := runAll(ctx, client, []invocation{i})
		return replies[0], errs[0]
	}
	cmd := i.byDigest(ctx)
	err := client.Process(ctx, cmd)
	if redis.HasErrorPrefix(err, "NOSCRIPT") {
		cmd = i.whole(ctx)
		err = client.Process(ctx, cmd)
	}
	if err != nil {
		return nil, err
	}
	return readReply(cmd.Cmd)
}

// runAll runs many scripts in one pipeline (one for each node of a cluster),
// each behind the bytes that it needs staged. What could not run for want of
// the script or of the staged bytes has changed nothing and goes once more.
// There is one reply or error for each. The staged bytes are not to be used after
// it.
func runAll(ctx context.Context, client redis.UniversalClient, invocations []invocation) ([]reply, []error) {
	replies, errs := make([]reply, len(invocations)), make([]error, len(invocations))
	sent := make([]sending, len(invocations))
	pipe := client.Pipeline()
	for n, i := range invocations {
		sent[n] = i.queue(ctx, pipe, i.byDigest(ctx))
	}
	_, _ = pipe.Exec(ctx) // each command's own error is read

	unknown := client.Pipeline()
	for n, i := range invocations {
		if redis.HasErrorPrefix(sent[n].script.Err(), "NOSCRIPT") {
			sent[n].script = i.whole(ctx) // its bytes are staged already
			_ = unknown.Process(ctx, sent[n].script)
		}
	}
	execAny(ctx, unknown)

	gone := client.Pipeline()
	for n, i := range invocations {
		if replies[n], errs[n] = sent[n].result(); errs[n] == nil && i.staged != nil && replies[n].outcome() == unstaged {
			sent[n] = i.queue(ctx, gone, i.whole(ctx))
			errs[n] = errUnstaged // until it has run
		}
	}
	execAny(ctx, gone)
	for n := range invocations {
		if errs[n] != errUnstaged {
			continue
		}
		replies[n], errs[n] = sent[n].result()
		if errs[n] == nil && replies[n].outcome() == unstaged {
			errs[n] = errUnstaged
		}
	}
	for _, i := range invocations {
		i.free()
	}
	return replies, errs
}

func execAny(ctx context.Context, pipe redis.Pipeliner) {
	if pipe.Len() > 0 {
		_, _ = pipe.Exec(ctx)
	}
}

// A sending is a script on its way, with the SET that stages its bytes.
type sending struct {
	set    *once // nil if nothing is staged
	script once
}

func (i invocation) queue(ctx context.Context, pipe redis.Pipeliner, script once) sending {
	s := sending{script: script}
	if i.staged != nil {
		s.set = &once{redis.NewCmd(ctx, "set", i.keys[2], i.staged, "px", i.life.Milliseconds())}
		_ = pipe.Process(ctx, *s.set) // queued; its own error is read by result
	}
	_ = pipe.Process(ctx, script)
	return s
}

// result reads what came back. Where the bytes could not be staged, that error
// says more than the script's, which did not find them.
func (s sending) result() (reply, error) {
	if err := s.script.Err(); err != nil {
		return nil, err
	}
	r, err := readReply(s.script.Cmd)
	if err == nil && s.set != nil && s.set.Err() != nil && r.outcome() == unstaged {
		return nil, s.set.Err()
	}
	return r, err
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
