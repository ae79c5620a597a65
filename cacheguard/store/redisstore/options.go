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

	// ReadPipelines, if above 0, sends Loads (and LoadManys of few keys) that
	// come together as one go-redis pipeline: under many concurrent reads that
	// is several times the throughput. It is how many such pipelines may be
	// under way at one time, 1 to 64; 2 is a good start. 0: off, each read by
	// itself on a connection of the client's pool. Experimental: it may change
	// or go.
	//
	// A read that finds a pipeline free is sent at once and alone, so few
	// callers pay nothing; one that finds none waits for the next to be free,
	// at most about one round trip, and shares it with up to 512 commands. So
	// the farther the server is, the more pipelines are worth their fewer reads
	// each.
	//
	// What is promised does not change. Every call returns within Timeout.
	// There is no goroutine beyond the callers': a server that hangs holds at
	// most MaxCalls of them, for at most Timeout, and is sent nothing later
	// that nobody waits for any more. Reads whose connection broke before the
	// reply are sent once more, on another. What is shared is bad luck: a
	// connection that hangs, or a reply of many megabytes, holds up all reads
	// of its pipeline; and tracing hooks of the client see a pipeline in the
	// name of the call that sent it.
	//
	// Only a *redis.Client (one server, or Sentinel) is used so. With any
	// other, and for a call whose context can end, reads go by themselves; so
	// do LoadManys of more than 64 keys, which are pipelines already.
	ReadPipelines int

	// OnFault, if set, hears of what goes wrong where no caller waits for an
	// error: the subscription. It must not block.
	OnFault func(error)
}

const (
	defaultTimeout    = 100 * time.Millisecond
	defaultMaxCalls   = 1024
	defaultStageAbove = 8 << 10
	defaultMaxValue   = 64 << 20
	maxReadPipelines  = 64
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
	case o.ReadPipelines < 0 || o.ReadPipelines > maxReadPipelines:
		return o, fmt.Errorf("redisstore: Options.ReadPipelines is %d: write a number from 1 to %d, or 0 to send each read by itself", o.ReadPipelines, maxReadPipelines)
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
