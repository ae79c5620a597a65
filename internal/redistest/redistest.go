package redistest

import (
	"errors"
	"os"
	"testing"
)

// Require is the environment variable that turns the skip of a test that needs
// a real server into a failure. Continuous integration sets it to 1.
const Require = "CACHEGUARD_REQUIRE_REDIS"

// Start starts a server of the test's own and ends it with the test. Where
// there is no redis-server the test is skipped, or fails if [Require] is 1.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s, err := StartServer(t.Context(), t.TempDir(), args...)
	Need(t, err)
	t.Cleanup(s.Stop)
	return s
}

// StartCluster is like Start for a cluster of n masters.
func StartCluster(t testing.TB, n int) *Cluster {
	t.Helper()
	c, err := StartClusterIn(t.Context(), t.TempDir(), n)
	Need(t, err)
	t.Cleanup(c.Stop)
	return c
}

// StartSentinel is like Start for a primary with replicas, watched by Sentinels.
func StartSentinel(t testing.TB, replicas, sentinels int) *Replicated {
	t.Helper()
	r, err := StartSentinelIn(t.Context(), t.TempDir(), replicas, sentinels)
	Need(t, err)
	t.Cleanup(r.Stop)
	return r
}

// Need ends a test whose server could not be started: with a loud skip if there
// is no redis-server and none is required, as a failure otherwise.
func Need(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case errors.Is(err, ErrNoServer) && os.Getenv(Require) != "1":
		t.Skipf("SKIPPED, NOT TESTED: %v (install redis-server, or set %s=1 to make this a failure)", err, Require)
	default:
		t.Fatal(err)
	}
}
