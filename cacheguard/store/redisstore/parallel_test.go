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
		want   int
	}{
		"pool":             {client: redis.NewClient(&redis.Options{PoolSize: 20}), want: 20},
		"active":           {client: redis.NewClient(&redis.Options{PoolSize: 20, MaxActiveConns: 5}), want: 5},
		"calls":            {client: redis.NewClient(&redis.Options{PoolSize: 20}), opts: redisstore.Options{MaxCalls: 7}, want: 7},
		"cluster: unknown": {client: redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:1"}})},
	} {
		t.Run(name, func(t *testing.T) {
			defer c.client.Close()
			s, err := redisstore.New(c.client, c.opts)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			if n := s.Parallel(); n != c.want {
				t.Errorf("Parallel is %d, want %d", n, c.want)
			}
		})
	}
}
