package faulttest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// slots moves slots of a cluster, as redis-cli --cluster does.
type slots struct {
	t     *testing.T
	nodes []*redis.Client
	ids   []string
}

func slotsOf(t *testing.T, c *redistest.Cluster) *slots {
	s := &slots{t: t}
	for _, addr := range c.Addrs() {
		node := admin(t, addr)
		id, err := node.ClusterMyID(t.Context()).Result()
		must(t, err)
		s.nodes, s.ids = append(s.nodes, node), append(s.ids, id)
	}
	return s
}

// ownerOf is the node that has the slot of a key.
func (s *slots) ownerOf(slot int64) int {
	s.t.Helper()
	all, err := s.nodes[0].ClusterSlots(s.t.Context()).Result()
	must(s.t, err)
	for _, part := range all {
		if int64(part.Start) <= slot && slot <= int64(part.End) {
			return slices.Index(s.ids, part.Nodes[0].ID)
		}
	}
	s.t.Fatalf("nobody has slot %d", slot)
	return 0
}

// move brings a slot to the next node, and stays between for a while: some keys
// here, some there.
func (s *slots) move(slot int64, between time.Duration) {
	s.t.Helper()
	ctx := context.WithoutCancel(s.t.Context())
	from := s.ownerOf(slot)
	to := (from + 1) % len(s.nodes)
	setslot := func(node int, args ...any) {
		s.t.Helper()
		must(s.t, s.nodes[node].Do(ctx, append([]any{"cluster", "setslot", slot}, args...)...).Err())
	}
	setslot(to, "importing", s.ids[from])
	setslot(from, "migrating", s.ids[to])
	host, port, err := net.SplitHostPort(s.nodes[to].Options().Addr)
	must(s.t, err)
	time.Sleep(between / 2)
	for {
		keys, err := s.nodes[from].ClusterGetKeysInSlot(ctx, int(slot), 10).Result()
		must(s.t, err)
		if len(keys) == 0 {
			break
		}
		for _, key := range keys { // one by one: an entry without its record is a state of its own
			must(s.t, s.nodes[from].Migrate(ctx, host, port, key, 0, time.Second).Err())
			time.Sleep(time.Millisecond)
		}
	}
	time.Sleep(between / 2)
	setslot(to, "node", s.ids[to])
	setslot(from, "node", s.ids[to])
	for i := range s.nodes {
		if i != from && i != to {
			setslot(i, "node", s.ids[to])
		}
	}
}

// Slots move from master to master under readers and writers of their keys.
// Nobody gets an old value, nobody an error, and while a slot is between two
// masters its keys are loaded without a lease at worst.
func TestSlotsThatMoveUnderLoadGiveNoOldValueAndNoError(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	connect := func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	}
	o := newOrigin(t, 20*time.Millisecond)
	f := startFleet(t, o, 3, connect, options{Namespace: "slots"}, redisstore.Options{Timeout: 500 * time.Millisecond})
	f.connected()
	keys := names(12)
	s := slotsOf(t, c)
	slotsOfKeys := make([]int64, len(keys))
	for i, key := range keys {
		var err error
		slotsOfKeys[i], err = s.nodes[0].ClusterKeySlot(t.Context(), fmt.Sprintf("slots:{%s}", key)).Result()
		must(t, err)
	}
	tr := f.start(pace{keys: keys, readers: 5, think: 5 * time.Millisecond, writers: 1, limit: 3 * time.Second})
	time.Sleep(100 * time.Millisecond)
	for _, slot := range slotsOfKeys {
		s.move(slot, 200*time.Millisecond)
	}
	tr.stop()
	f.settled(keys, 5*time.Second)
}

// A master of a cluster dies. Everything is answered: the keys of its slots, and
// at times the others too (the breaker is one for the whole store), are loaded
// by each process for itself.
func TestADeadMasterOfAClusterGivesNoErrorAndIsUsedAgainWhenItIsBack(t *testing.T) {
	c := redistest.StartCluster(t, 3)
	for _, node := range c.Nodes {
		must(t, admin(t, node.Addr).ConfigSet(t.Context(), "cluster-require-full-coverage", "no").Err())
	}
	connect := func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	}
	o := newOrigin(t, 10*time.Millisecond)
	f := startFleet(t, o, 3, connect, options{Namespace: "slots"}, redisstore.Options{Timeout: 200 * time.Millisecond})
	keys := names(30)
	for _, key := range keys {
		f.members[0].mustRead(key)
	}
	c.Nodes[1].Stop()
	tr := f.start(pace{keys: keys, readers: 5, think: 5 * time.Millisecond, limit: 3 * time.Second})
	time.Sleep(1500 * time.Millisecond)
	tr.stop()
	f.wantFault(store.ClassConnection, store.ClassCluster, store.ClassTimeout)
	must(t, c.Nodes[1].Restart(t.Context()))
	f.settled(keys, 10*time.Second)
}
