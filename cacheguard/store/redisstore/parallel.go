package redisstore

import "github.com/redis/go-redis/v9"

// Parallel is how many calls the client can have under way at once, each on a
// connection of its own: one more waits for a connection, and that counts
// against Options.Timeout. A guard begins no more than that many at once. reads
// tells whether reads are among them; with Options.ReadPipelines they are not.
// 0: not known (a Cluster has a pool for each node).
func (s *Store) Parallel() (calls int, reads bool) {
	single, ok := s.client.(*redis.Client)
	if !ok {
		return 0, true
	}
	o := single.Options()
	calls = min(o.PoolSize, s.opts.MaxCalls)
	if o.MaxActiveConns > 0 {
		calls = min(calls, o.MaxActiveConns)
	}
	if s.pipeline != nil {
		return max(calls-cap(s.pipeline.lanes), 1), false
	}
	return calls, true
}
