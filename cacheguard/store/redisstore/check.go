package redisstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

var checkLua = luaSource("lua/check.lua")

// Check tells whether the server lets this client do all that a store does to
// the keys and channels of the given spaces (none: of a space "check"). It
// leaves nothing behind for longer than a second. A fault of class denied names the commands that are
// missing; any other fault is what kept the question from being answered.
//
// The least that a user of the server needs, for a space "products":
//
//	ACL SETUSER cacheguard on >secret ~products:* &products:events
//	    +get +set +eval +evalsha +subscribe +unsubscribe +ping +time
//	    +getrange +setrange +exists +rename +unlink +publish +pubsub|numsub
//	    +hset +hmget +hdel +pexpire +pttl
//
// go-redis itself sends HELLO and CLIENT SETINFO when it connects, and lives
// without them; its cluster client needs CLUSTER SLOTS, and COMMAND too.
func (s *Store) Check(ctx context.Context, spaces ...string) error {
	if len(spaces) == 0 {
		spaces = []string{"check"}
	}
	var missing []string
	for _, space := range spaces {
		denied, err := s.checkSpace(ctx, space)
		if err != nil {
			return fault("check", err)
		}
		missing = append(missing, denied...)
	}
	if len(missing) == 0 {
		return nil
	}
	slices.Sort(missing)
	return &store.Fault{Op: "check", Class: store.ClassDenied, Err: fmt.Errorf(
		"the Redis user may not run, or not on the names of the spaces asked for: %s (see Store.Check for the least permissions)",
		strings.Join(slices.Compact(missing), ", "))}
}

// checkSpace tries every command and returns those that are denied.
func (s *Store) checkSpace(ctx context.Context, space string) (denied []string, err error) {
	name := entryName(store.Key{Space: space, ID: "check/" + random()})
	side := stageName(name, "check", 0)
	probes := []probe{
		{"get", func(ctx context.Context) error { return s.try(ctx, "get", name) }},
		{"set", func(ctx context.Context) error { return s.try(ctx, "set", side, "", "px", 1000) }},
		{"evalsha", func(ctx context.Context) error { return s.try(ctx, "evalsha", strings.Repeat("0", 40), 1, name) }},
		{"time", func(ctx context.Context) error { return s.try(ctx, "time") }},
		{"subscribe", func(ctx context.Context) error { return s.trySubscribe(ctx, channelName(space)) }},
		{"eval", func(ctx context.Context) error {
			cmd := once{redis.NewCmd(ctx, "eval", checkLua, 3, name, leaseName(name), side, channelName(space))}
			if err := s.client.Process(ctx, cmd); err != nil {
				return err
			}
			inner, err := readFailures(cmd.Val())
			denied = append(denied, inner...)
			return err
		}},
	}
	for _, p := range probes {
		err, abandoned := s.run.do(ctx, time.Now(), p.run)
		switch {
		case abandoned:
			return nil, err // denied may still be written to
		case err == nil:
		case classify(err) == store.ClassDenied:
			denied = append(denied, p.command)
		default:
			return nil, fmt.Errorf("%s: %w", p.command, err)
		}
	}
	return denied, nil
}

// A probe tries one command. Its error tells whether it may be run.
type probe struct {
	command string
	run     func(context.Context) error
}

// try runs a command that finds nothing, or no such script, if it may be run.
func (s *Store) try(ctx context.Context, args ...any) error {
	err := s.client.Process(ctx, once{redis.NewCmd(ctx, args...)})
	if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "NOSCRIPT") {
		return nil
	}
	return err
}

func (s *Store) trySubscribe(ctx context.Context, channel string) error {
	ps := s.client.Subscribe(ctx)
	defer ps.Close()
	if err := ps.Subscribe(ctx, channel); err != nil {
		return err
	}
	_, err := ps.ReceiveTimeout(ctx, s.opts.Timeout)
	return err
}

// readFailures reads the reply of check.lua: the commands that are denied, or
// the first error of another kind.
func readFailures(v any) (denied []string, err error) {
	pairs, ok := v.([]any)
	if !ok || len(pairs)%2 != 0 {
		return nil, errReply
	}
	for i := 0; i < len(pairs); i += 2 {
		command, okC := pairs[i].(string)
		text, okT := pairs[i+1].(string)
		if !okC || !okT {
			return nil, errReply
		}
		if classifyReply(text) != store.ClassDenied {
			return nil, &serverError{text}
		}
		denied = append(denied, strings.ToLower(command))
	}
	return denied, nil
}

// serverError is an error reply that came inside another reply.
type serverError struct{ text string }

func (e *serverError) Error() string { return e.text }

// RedisError marks it as one of the server, as redis.Error asks.
func (e *serverError) RedisError() {}
