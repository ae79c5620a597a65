package redisstore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

// A claimer compares the token that Go read with the one that Lua sees: they
// must tell the same from any bytes, or a flight would hear "changed" for ever.
func TestLuaAndGoReadTheSameToken(t *testing.T) {
	whole := redisstore.EntryBytes("n", 1<<40+7, 1, store.Content{Kind: store.Value, Payload: []byte("p")})
	var cases [][]byte
	for n := range len(whole) + 1 {
		cases = append(cases, whole[:n])
	}
	for i := range 12 * 8 { // every bit of magic, version, flags and token
		b := append([]byte(nil), whole...)
		b[i/8] ^= 1 << (i % 8)
		cases = append(cases, b)
	}
	cases = append(cases, append([]byte(nil), "\xc7g\x01\x00\xff\xff\xff\xff\xff\xff\xff\xff"...), append([]byte(nil), "\xc7g\x01\x00\x00\x0f\xff\xff\xff\xff\xff\xff"...))
	backends(t, func(t *testing.T, connect func(testing.TB) redis.UniversalClient) {
		client := connect(t)
		for _, b := range cases {
			name := redisstore.EntryName(newKey(t))
			if err := client.Set(t.Context(), name, b, 0).Err(); err != nil {
				t.Fatal(err)
			}
			got, err := client.Eval(t.Context(), redisstore.ThereLua()+"return there", []string{name}).Int64()
			if err != nil || store.Token(got) != redisstore.TokenOf(b) {
				t.Errorf("%x: Lua reads token %d (%v), Go %d", b, got, err, redisstore.TokenOf(b))
			}
			client.Del(t.Context(), name)
		}
	})
}
