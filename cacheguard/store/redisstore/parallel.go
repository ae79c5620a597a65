package redisstore

import "github.com/redis/go-redis/v9"

// Parallel is how many calls the client can have under way at once, each on a
// connection of its own: one more waits for a connection, and that counts
// against Options.Timeout. A guard begins no more than that many at once. 0: not
// known (a Cluster has a pool for each node).
func (s *Store) Parallel() int {
	single, ok := s.client.(*redis.Client)
	if !ok {
		return 0
	}
	o := single.Options()
	n := min(o.PoolSize, s.opts.MaxCalls)
	if o.MaxActiveConns > 0 {
		n = min(n, o.MaxActiveConns)
	}
	return n
}
