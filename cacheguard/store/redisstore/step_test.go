package redisstore

import (
	"fmt"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// BenchmarkStep: what a read and a fill do besides what the client does.
func BenchmarkStep(b *testing.B) {
	key := store.Key{Space: "products", ID: "4711"}
	b.Run("name", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			entryName(key)
		}
	})
	for _, kib := range []int{1, 256} {
		name := entryName(key)
		c := store.Content{Kind: store.Value, Payload: make([]byte, kib<<10), TTL: time.Hour}
		b.Run(fmt.Sprintf("encode/%dKiB", kib), func(b *testing.B) {
			body := make([]byte, 0, bodySize(name, c))
			b.ReportAllocs()
			for b.Loop() {
				appendBody(body, name, c)
			}
		})
		b.Run(fmt.Sprintf("decode/%dKiB", kib), func(b *testing.B) {
			const now = int64(1e15)
			entry := EntryBytes(name, 1, now, c)
			b.ReportAllocs()
			for b.Loop() {
				if e := decode(entry, name, now); e.Fault != nil {
					b.Fatal(e.Fault)
				}
			}
		})
	}
}

// What a hit hands out is the reply's own bytes: a decode copies nothing,
// whatever the size.
func TestADecodedPayloadIsNotACopy(t *testing.T) {
	const now = int64(1e15)
	name := entryName(store.Key{Space: "s", ID: "k"})
	entry := EntryBytes(name, 1, now, store.Content{TTL: time.Hour, Kind: store.Value, Payload: []byte("value")})
	e := decode(entry, name, now)
	if e.Fault != nil || string(e.Payload) != "value" {
		t.Fatal(e)
	}
	if &e.Payload[0] != &entry[len(entry)-len("value")] {
		t.Error("the payload was copied")
	}
	if n := testing.AllocsPerRun(100, func() { decode(entry, name, now) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// The name of a key is built once for a read: one string, whose length is known
// before. A key that needs no escape is not copied on the way.
func TestANameIsOneAllocation(t *testing.T) {
	key := store.Key{Space: "products", ID: "4711"}
	if n := testing.AllocsPerRun(100, func() { entryName(key) }); n != 1 {
		t.Errorf("%v allocations", n)
	}
}
