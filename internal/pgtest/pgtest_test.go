package pgtest

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

func TestAServerAnswersAndLeavesNothingBehind(t *testing.T) {
	s := Start(t)
	conn, err := pgx.Connect(t.Context(), s.DSN)
	if err != nil {
		t.Fatal(err)
	}
	var listens string
	if err := conn.QueryRow(t.Context(), "SHOW listen_addresses").Scan(&listens); err != nil || listens != "" {
		t.Errorf("listens on %q, %v; want on no network", listens, err)
	}
	pid := s.process.PID()

	// With a client still connected: the end does not wait for it.
	begin := time.Now()
	s.Stop()
	if took := time.Since(begin); took >= stopLimit {
		t.Errorf("the end took %v: the server had to be killed", took)
	}
	conn.Close(t.Context())
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v, want that it is gone", pid, err)
	}
	if _, err := os.Stat(s.dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s: %v, want that it is gone", s.dir, err)
	}
	s.Stop()
}

func TestTheNewestVersionIsUsed(t *testing.T) {
	for dir, want := range map[string]int{"/usr/lib/postgresql/9/bin": 9, "/usr/lib/postgresql/15/bin": 15, "/usr/pgsql-16/bin": 16, "/opt/bin": 0} {
		if got := version(dir); got != want {
			t.Errorf("version(%s) = %d, want %d", dir, got, want)
		}
	}
}
