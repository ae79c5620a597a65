package redisstore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

func TestAStoreCarriesAsManyCallsAsItsClientHasConnections(t *testing.T) {
	for name, c := range map[string]struct {
		client redis.UniversalClient
		opts   redisstore.Options
		calls  int
		reads  int
	}{
		"pool":             {client: redis.NewClient(&redis.Options{PoolSize: 20}), calls: 20},
		"active":           {client: redis.NewClient(&redis.Options{PoolSize: 20, MaxActiveConns: 5}), calls: 5},
		"calls":            {client: redis.NewClient(&redis.Options{PoolSize: 20}), opts: redisstore.Options{MaxCalls: 7}, calls: 7},
		"reads together":   {client: redis.NewClient(&redis.Options{PoolSize: 20}), opts: redisstore.Options{MaxCalls: 100, ReadPipelines: 2}, calls: 18, reads: 64},
		"cluster: unknown": {client: redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})},
	} {
		t.Run(name, func(t *testing.T) {
			defer c.client.Close()
			s, err := redisstore.New(c.client, c.opts)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if calls, reads := s.Parallel(); calls != c.calls || reads != c.reads {
				t.Errorf("Parallel is %d, %d, want %d, %d", calls, reads, c.calls, c.reads)
			}
		})
	}
}
