package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/storetest"
)

// The peer sends its reads together: a fleet may be mixed.
func TestContract(t *testing.T) {
	backends(t, func(t *testing.T, connect func(testing.TB) redis.UniversalClient) {
		contract(t, connect, patient, pipelined)
	})
}

func TestContractWithReadPipelines(t *testing.T) {
	addr := sharedServer(t).Addr
	contract(t, func(t testing.TB) redis.UniversalClient { return newClient(t, addr) }, pipelined, pipelined)
}

func contract(t *testing.T, connect func(testing.TB) redis.UniversalClient, ofStore, ofPeer redisstore.Options) {
	storetest.Run(t, func(t *testing.T) storetest.Harness {
		t.Parallel()
		return &harness{
			t: t, space: newKey(t).Space, client: connect(t),
			store: newStore(t, connect(t), ofStore), peer: newStore(t, connect(t), ofPeer),
			planted: map[string]bool{},
		}
	})
}

// harness is a space on a shared server, and the powers over it.
type harness struct {
	t           *testing.T
	space       string
	client      redis.UniversalClient // to look behind the stores
	store, peer *redisstore.Store
	planted     map[string]bool
}

func (h *harness) Store() store.Store   { return h.store }
func (h *harness) Peer() store.Store    { return h.peer }
func (h *harness) Space() string        { return h.space }
func (h *harness) Unit() time.Duration  { return 80 * time.Millisecond } // a busy machine must not pass for a wrong store
func (h *harness) Wait(d time.Duration) { time.Sleep(d) }

func (h *harness) check(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) LoseRecord(key store.Key) {
	h.check(h.client.Del(h.t.Context(), redisstore.LeaseName(key)).Err())
}

func (h *harness) LoseEntry(key store.Key) {
	h.check(h.client.Del(h.t.Context(), redisstore.EntryName(key)).Err())
}

func (h *harness) LoseAll() {
	for _, name := range h.names() {
		h.check(h.client.Del(h.t.Context(), name).Err())
	}
}

// names are all names of the space and of those that begin with it.
func (h *harness) names() []string {
	ctx := h.t.Context()
	var names []string
	scan := func(ctx context.Context, node *redis.Client) error {
		pattern := redisstore.EscapePart(h.space) + "*"
		it := node.Scan(ctx, 0, pattern, 1000).Iterator()
		for it.Next(ctx) {
			names = append(names, it.Val())
		}
		return it.Err()
	}
	if _, ok := h.client.(*redis.ClusterClient); ok {
		for _, addr := range sharedCluster(h.t).Addrs() {
			node := redis.NewClient(&redis.Options{Addr: addr})
			h.check(errors.Join(scan(ctx, node), node.Close()))
		}
	} else {
		h.check(scan(ctx, h.client.(*redis.Client)))
	}
	return slices.DeleteFunc(names, func(n string) bool { return !ofSpace(n, h.space) })
}

// ofSpace: space "test1" is not the beginning of "test12".
func ofSpace(name, space string) bool {
	rest := strings.TrimPrefix(name, redisstore.EscapePart(space))
	return rest == "" || rest[0] < '0' || rest[0] > '9'
}

func (h *harness) Endless() []string {
	var endless []string
	for _, name := range h.names() {
		if left, err := h.client.PTTL(h.t.Context(), name).Result(); err == nil && left == -1 && !h.planted[name] {
			endless = append(endless, name)
		}
	}
	return endless
}

func (h *harness) RecordLeft(key store.Key) (time.Duration, bool) {
	return h.left(redisstore.LeaseName(key))
}

func (h *harness) EntryLeft(key store.Key) (time.Duration, bool) {
	return h.left(redisstore.EntryName(key))
}

func (h *harness) left(name string) (time.Duration, bool) {
	left, err := h.client.PTTL(h.t.Context(), name).Result()
	h.check(err)
	return left, left != -2
}

func (h *harness) Plant(key store.Key, what storetest.Foreign) (store.Token, error) {
	ctx, name := h.t.Context(), redisstore.EntryName(key)
	h.planted[name] = true
	h.check(h.client.Del(ctx, name).Err())
	token := store.Token(time.Now().UnixMicro())
	bytes := redisstore.EntryBytes(name, token, int64(token), value("planted"))
	switch what {
	case storetest.WrongType:
		return 0, h.client.LPush(ctx, name, "a", "b").Err()
	case storetest.Truncated:
		bytes = bytes[:len(bytes)-3]
	case storetest.Newer:
		bytes[2] = 9
	case storetest.OtherKey:
		bytes = redisstore.EntryBytes(name+"x", token, int64(token), value("planted"))
	case storetest.Random:
		bytes, token = []byte("a page of somebody else, long enough to hold a header of ours and more than that"), 0
	case storetest.Nothing:
		bytes, token = nil, 0
	default:
		return 0, errors.ErrUnsupported
	}
	return token, h.client.Set(ctx, name, string(bytes), 0).Err()
}

// StepClock moves the times of all records and entries the other way: to the
// scripts that is the same as a clock that steps.
func (h *harness) StepClock(d time.Duration) error {
	ctx := h.t.Context()
	for _, name := range h.names() {
		if !strings.HasSuffix(name, ":lease") {
			b, err := h.client.Get(ctx, name).Bytes()
			h.check(err)
			redisstore.ShiftEntry(b, -d.Microseconds())
			h.check(h.client.Set(ctx, name, b, redis.KeepTTL).Err())
			continue
		}
		for _, field := range []string{"until", "cooling_until"} {
			text, err := h.client.HGet(ctx, name, field).Result()
			if errors.Is(err, redis.Nil) {
				continue
			}
			h.check(err)
			at, err := strconv.ParseInt(text, 10, 64)
			h.check(err)
			h.check(h.client.HSet(ctx, name, field, fmt.Sprint(at-d.Microseconds())).Err())
		}
	}
	return nil
}
