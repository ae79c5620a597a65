package memstore

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/cacheguard-go/cacheguard/cacheguard/sealed"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/storetest"
)

// A sealed store is a store: it keeps the whole contract.
func TestContractOfASealedStore(t *testing.T) {
	open := func(t testing.TB) harness {
		h := newHarness()
		s, err := sealed.New(h.s, sealed.Options{Keys: [][]byte{bytes.Repeat([]byte("k"), 32)}})
		if err != nil {
			t.Fatal(err)
		}
		h.under = s
		return h
	}
	storetest.RunInBubble(t, func(t *testing.T) storetest.Harness { return open(t) })
	t.Run("many random histories", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { storetest.Histories(2, 500).Run(t, open(t)) })
	})
}
