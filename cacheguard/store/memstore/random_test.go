package memstore_test

import (
	"testing"
	"testing/synctest"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/storetest"
)

// Fake time is free: many more random histories than the suite itself plays.
func TestRandomHistories(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		storetest.Histories(1, 2000).Run(t, open(t))
	})
}
