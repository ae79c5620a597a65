package redisstore

import (
	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

var _ store.Parallel = (*Store)(nil)

// Parallel implements [store.Parallel]. calls is how many the client can have
// under way at once, each on a connection of its own: one more waits for a
// connection, and that counts against Options.Timeout. 0: not known (a Cluster
// has a pool for each node).
//
// reads is how many Loads there can be besides, if they are sent together
// (Options.ReadPipelines) and need no connection each: what MaxCalls allows. 0:
// they are among the calls.
func (s *Store) Parallel() (calls, reads int) {
	single, ok := s.client.(*redis.Client)
	if !ok {
		return 0, 0
	}
	o := single.Options()
	calls = min(o.PoolSize, s.opts.MaxCalls)
	if o.MaxActiveConns > 0 {
		calls = min(calls, o.MaxActiveConns)
	}
	if s.pipeline == nil {
		return calls, 0
	}
	calls = max(calls-cap(s.pipeline.lanes), 1)
	return calls, max(s.opts.MaxCalls-2*calls, 1)
}
