package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Advice returns one sentence for each thing about the client and the server
// that works and yet is seldom meant: permissions that are missing, a server
// that may evict leases, options of the client that hold connections or are
// experimental. It is meant for the log of a process that starts. spaces are
// those of [Store.Check].
//
// What the client's user may not ask is left out; an error says that the server
// could not be asked at all.
func (s *Store) Advice(ctx context.Context, spaces ...string) ([]string, error) {
	advice := adviceOnClient(s.events.client) // not the copy that s.client may be
	if s.opts.ReadPipelines > 0 && s.pipeline == nil {
		advice = append(advice, "Options.ReadPipelines is of no use to this Redis client, which is not a *redis.Client: each read goes by itself; leave it 0")
	}
	if err := s.Check(ctx, spaces...); err != nil {
		if store.ClassOf(err) != store.ClassDenied {
			return advice, err
		}
		advice = append(advice, err.Error())
	}
	eviction, err := s.adviceOnEviction(ctx)
	if eviction != "" {
		advice = append(advice, eviction)
	}
	return advice, err
}

func adviceOnClient(client redis.UniversalClient) (advice []string) {
	var heedsContext, unstable, autoPipeline bool
	var instead string
	switch c := client.(type) {
	case *redis.Client:
		o := c.Options()
		heedsContext, unstable, autoPipeline = o.ContextTimeoutEnabled, o.UnstableResp3, o.AutoPipelineOptions != nil
		instead = "the store works on a copy of it that heeds them, without the client's hooks, so that tracing and metrics of the client miss its commands"
	case *redis.ClusterClient:
		o := c.Options()
		heedsContext, unstable, autoPipeline = o.ContextTimeoutEnabled, o.UnstableResp3, o.AutoPipelineOptions != nil
		instead = fmt.Sprintf("a call that is given up keeps its connection until ReadTimeout (%v), and a slow server uses up the pool", o.ReadTimeout)
	default:
		return nil // a wrapper: taken at its word
	}
	if !heedsContext {
		advice = append(advice, "the Redis client ignores the deadlines of contexts: "+instead+"; set ContextTimeoutEnabled")
	}
	if unstable {
		advice = append(advice, "the Redis client has UnstableResp3 on: replies may change their form with any release of the client; leave it off, or make a second client for the store")
	}
	if autoPipeline {
		advice = append(advice, "the Redis client has AutoPipelineOptions, which are experimental; leave them nil, or make a second client for the store")
	}
	return advice
}

// adviceOnEviction asks the server (of a cluster: one of them) whether it may
// evict leases and fences. A server without a memory limit evicts nothing.
func (s *Store) adviceOnEviction(ctx context.Context) (string, error) {
	var info string
	err, abandoned := s.run.do(ctx, time.Now(), func(ctx context.Context) (err error) {
		info, err = s.client.Info(ctx, "memory").Result()
		return err
	})
	if abandoned {
		return "", s.fault("advice", "", err) // info is still run's
	}
	var answered redis.Error
	switch {
	case errors.As(err, &answered):
		return "", nil // not permitted, as with the least permissions
	case err != nil:
		return "", s.fault("advice", "", err)
	}
	policy := infoField(info, "maxmemory_policy")
	if limit := infoField(info, "maxmemory"); limit == "" || limit == "0" || policy == "" || policy == "noeviction" {
		return "", nil
	}
	return fmt.Sprintf(
		"the Redis server evicts keys when it is full (maxmemory-policy %s), and with them lease records: a load may then run twice, and a fill be refused, though never an old value be stored; give the cache enough memory that this is rare, or a server of its own with noeviction", policy), nil
}

// infoField is the value of a line "name:value" of INFO.
func infoField(info, name string) string {
	for line := range strings.Lines(info) {
		if value, found := strings.CutPrefix(line, name+":"); found {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
