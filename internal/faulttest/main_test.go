// Package faulttest breaks real Redis servers, and the way to them, under a
// fleet of guards, and judges every answer that the fleet gives meanwhile.
package faulttest

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	goleak.VerifyTestMain(m)
}

// silent keeps go-redis from telling that it cannot dial: that is what these
// tests are about. CACHEGUARD_CLIENT_LOG=1 lets it speak.
type silent struct{}

func (silent) Printf(_ context.Context, format string, args ...any) {
	if os.Getenv("CACHEGUARD_CLIENT_LOG") == "1" {
		println("client:", format)
	}
}
