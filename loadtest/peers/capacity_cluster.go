package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// clustered is what messages cost a cluster, and where they are listened to.
type clustered struct {
	Nodes     int
	Listening []int   // of clusterStores, by node, that share one namespace
	Spread    []int   // of as many that have a namespace each
	Sending   float64 // microseconds of the node that a message without listeners is published on
	Passing   float64 // of each other node, for the same message
}

const (
	clusterNodes    = 3
	clusterStores   = 12
	clusterMessages = 5000
)

func measureCluster(ctx context.Context) (c clustered, err error) {
	dir, err := os.MkdirTemp("", "cacheguard-peers-")
	if err != nil {
		return c, err
	}
	defer os.RemoveAll(dir)
	cluster, err := redistest.StartClusterIn(ctx, dir, clusterNodes)
	if err != nil {
		return c, err
	}
	defer cluster.Stop()
	c.Nodes = clusterNodes
	var nodes []*redis.Client
	for _, addr := range cluster.Addrs() {
		node := redis.NewClient(&redis.Options{Addr: addr})
		defer node.Close()
		nodes = append(nodes, node)
	}
	if c.Listening, err = listening(ctx, cluster, nodes, "shared", func(int) string { return "shared" }); err != nil {
		return c, err
	}
	if c.Spread, err = listening(ctx, cluster, nodes, "own", func(i int) string { return fmt.Sprintf("own%d", i) }); err != nil {
		return c, err
	}
	c.Sending, c.Passing, err = passing(ctx, nodes)
	return c, err
}

// listening opens stores on a cluster, lets each listen to a namespace, all of
// which begin with prefix, and counts the subscriptions of each node.
func listening(ctx context.Context, cluster *redistest.Cluster, nodes []*redis.Client, prefix string, space func(i int) string) (counts []int, err error) {
	up := make(chan struct{}, clusterStores)
	var ends []func() error
	defer func() {
		for _, end := range ends {
			err = errors.Join(err, end())
		}
	}()
	for i := range clusterStores {
		client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: cluster.Addrs()})
		s, err := redisstore.New(client, redisstore.Options{})
		if err != nil {
			return nil, errors.Join(err, client.Close())
		}
		var once sync.Once
		stop := s.Listen(space(i), func(e store.Event) {
			if e.Kind == store.Up {
				once.Do(func() { up <- struct{}{} })
			}
		})
		ends = append(ends, func() error { stop(); return errors.Join(s.Close(), client.Close()) })
	}
	limit := time.After(10 * time.Second)
	for range clusterStores {
		select {
		case <-up:
		case <-limit:
			return nil, errors.New("a subscription does not come up")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	for _, node := range nodes {
		channels, err := node.PubSubChannels(ctx, prefix+"*").Result()
		if err != nil {
			return nil, err
		}
		n := 0
		for _, channel := range channels {
			subs, err := node.PubSubNumSub(ctx, channel).Result()
			if err != nil {
				return nil, err
			}
			n += int(subs[channel])
		}
		counts = append(counts, n)
	}
	return counts, nil
}

// passing publishes on the first node what nobody listens to, and looks at what
// that costs it and the others.
func passing(ctx context.Context, nodes []*redis.Client) (sending, others float64, err error) {
	cpu := func() (used []float64, err error) {
		for _, node := range nodes {
			s, err := stats(ctx, node)
			if err != nil {
				return nil, err
			}
			used = append(used, s.CPU)
		}
		return used, nil
	}
	idle, err := cpu()
	if err != nil {
		return 0, 0, err
	}
	begun := time.Now()
	if err := pause(ctx, time.Second); err != nil {
		return 0, 0, err
	}
	before, err := cpu()
	if err != nil {
		return 0, 0, err
	}
	rest := time.Since(begun)
	begun = time.Now()
	for range clusterMessages {
		if err := nodes[0].Publish(ctx, "peers-nobody", make([]byte, 40)).Err(); err != nil {
			return 0, 0, err
		}
	}
	after, err := cpu()
	if err != nil {
		return 0, 0, err
	}
	took := time.Since(begun)
	for i := range nodes {
		gossip := (before[i] - idle[i]) * float64(took) / float64(rest)
		each := (after[i] - before[i] - gossip) / clusterMessages
		if i == 0 {
			sending = each
		} else {
			others += each / float64(len(nodes)-1)
		}
	}
	return sending, others, nil
}
