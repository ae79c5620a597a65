package middleware

import (
	"bytes"
	"testing"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// carrying is a store that knows how much it can carry.
type carrying struct{ *memstore.Store }

func (carrying) Parallel() (calls, reads int) { return 7, 3 }

// What the cache puts around a store does not hide how many calls it can carry:
// without that, many misses at once would look like a store that is away.
func TestTheCachesStoreCarriesWhatTheStoreUnderneathDoes(t *testing.T) {
	s := carrying{memstore.New(memstore.Options{})}
	opts := Options{SealKeys: [][]byte{bytes.Repeat([]byte("k"), 32)}}
	under, _, err := opts.storage(s)
	if err != nil {
		t.Fatal(err)
	}
	if calls, reads := store.ParallelOf(newFillings(under)); calls != 7 || reads != 3 {
		t.Errorf("it carries %d calls and %d reads, want 7 and 3", calls, reads)
	}
	if calls, reads := store.ParallelOf(newFillings(memstore.New(memstore.Options{}))); calls != 0 || reads != 0 {
		t.Errorf("a store that does not know: %d, %d", calls, reads)
	}
}
