package pgtest

import (
	"errors"
	"os"
	"testing"
)

// Require is the environment variable that turns the skip of a test that needs
// PostgreSQL into a failure. Continuous integration sets it to 1.
const Require = "CACHEGUARD_REQUIRE_POSTGRES"

// Start starts a server of the test's own and ends it with the test. Where no
// PostgreSQL is installed the test is skipped, or fails if [Require] is 1.
func Start(t testing.TB) *Server {
	t.Helper()
	s, err := StartServer(t.Context())
	switch {
	case err == nil:
	case errors.Is(err, ErrNoServer) && os.Getenv(Require) != "1":
		t.Skipf("SKIPPED, NOT TESTED: %v (install postgresql, or set %s=1 to make this a failure)", err, Require)
	default:
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}
