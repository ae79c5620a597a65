package redisstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// Options of a Store. The zero value works.
type Options struct {
	// Timeout bounds every call, whatever the options of the client are: a
	// call that takes longer returns a fault of class timeout, and its command
	// is abandoned. 1 ms to 1 minute; 0: 100 ms.
	Timeout time.Duration

	// MaxCalls bounds the calls under way at one time, abandoned ones
	// included. When it is reached, a call returns a fault of class pool at
	// once. 1 to 65536; 0: 1024.
	MaxCalls int

	// StageAbove is the payload size in bytes above which a value does not
	// pass through the server's Lua but is written to a side key and renamed.
	// At least 1; 0: 8 KiB.
	StageAbove int

	// MaxValue is the largest payload in bytes that is sent at all; a larger
	// one is a fault of class full. At most 512 MiB less a header, which is
	// the most that a Redis string holds; 0: 64 MiB.
	MaxValue int

	// OnFault, if set, hears of what goes wrong where no caller waits for an
	// error: the subscription. It must not block.
	OnFault func(error)
}

const (
	defaultTimeout    = 100 * time.Millisecond
	defaultMaxCalls   = 1024
	defaultStageAbove = 8 << 10
	defaultMaxValue   = 64 << 20
	maxString         = 512<<20 - 4096
)

func (o Options) withDefaults() (Options, error) {
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.MaxCalls == 0 {
		o.MaxCalls = defaultMaxCalls
	}
	if o.StageAbove == 0 {
		o.StageAbove = defaultStageAbove
	}
	if o.MaxValue == 0 {
		o.MaxValue = defaultMaxValue
	}
	if o.OnFault == nil {
		o.OnFault = func(error) {}
	}
	switch {
	case o.Timeout < time.Millisecond || o.Timeout > time.Minute:
		return o, fmt.Errorf("redisstore: Options.Timeout is %v: write a duration from 1ms to 1m, or 0 for %v", o.Timeout, defaultTimeout)
	case o.MaxCalls < 1 || o.MaxCalls > 1<<16:
		return o, fmt.Errorf("redisstore: Options.MaxCalls is %d: write a number from 1 to 65536, or 0 for %d", o.MaxCalls, defaultMaxCalls)
	case o.StageAbove < 1:
		return o, fmt.Errorf("redisstore: Options.StageAbove is %d: write a size in bytes above 0, or 0 for %d", o.StageAbove, defaultStageAbove)
	case o.MaxValue < 1 || o.MaxValue > maxString:
		return o, fmt.Errorf("redisstore: Options.MaxValue is %d: write a size in bytes from 1 to %d, or 0 for %d", o.MaxValue, maxString, defaultMaxValue)
	}
	return o, nil
}

// refuse tells why a store on client cannot keep the contract, and what to
// write instead. It reports whether client may talk to several servers.
func refuse(client redis.UniversalClient) (several bool, err error) {
	switch c := client.(type) {
	case nil:
		return false, errors.New("redisstore: the client is nil: pass the result of redis.NewClient, NewFailoverClient or NewClusterClient")
	case *redis.Client:
		if c == nil {
			return false, errors.New("redisstore: the *redis.Client is nil")
		}
		return false, refuseCached(c.Options())
	case *redis.ClusterClient:
		if c == nil {
			return true, errors.New("redisstore: the *redis.ClusterClient is nil")
		}
		return true, refuseReplicas(c.Options())
	case *redis.Ring:
		return true, errors.New("redisstore: a *redis.Ring moves keys to another server when one is away, and back to old entries when it returns: use a Redis Cluster and redis.NewClusterClient")
	}
	return true, nil // a wrapper: taken at its word
}

// refuseReplicas: a replica answers with what its primary has invalidated
// already.
func refuseReplicas(o *redis.ClusterOptions) error {
	if o.ReadOnly || o.RouteByLatency || o.RouteRandomly {
		return errors.New("redisstore: the client reads from replicas, which may answer with entries that were invalidated: leave ClusterOptions.ReadOnly, RouteByLatency and RouteRandomly (FailoverOptions.ReplicaOnly) off, or make a second client for the store")
	}
	return nil
}

// refuseCached: the client's own cache answers with what the server has
// invalidated a moment ago.
func refuseCached(o *redis.Options) error {
	if o.ClientSideCacheConfig != nil || o.ClientSideCache != nil {
		return errors.New("redisstore: the client answers reads from its own cache, which may be behind an invalidation: leave Options.ClientSideCacheConfig and ClientSideCache nil, or make a second client for the store")
	}
	return nil
}
