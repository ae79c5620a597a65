package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// What the report says of the server's priority is what the system has given it,
// also once it was started anew.
func TestTheReportSaysWhetherTheServerHasPriority(t *testing.T) {
	for _, asked := range []bool{true, false} {
		r, err := openRedis(t.Context(), "", t.TempDir(), asked)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if r.info.Kind != kindServer {
			redistest.Need(t, redistest.ErrNoServer)
		}
		if r.info.Priority && !asked {
			t.Error("it has priority, and was to have none")
		}
		if !r.info.Priority && asked && os.Getenv(requireRoot) == "1" {
			t.Errorf("it has no priority, and %s=1", requireRoot)
		}
		for _, when := range []string{"when it was started", "when it was started anew"} {
			ours, its := niceness(t, os.Getpid()), niceness(t, r.pid(t))
			if (its < ours) != r.info.Priority {
				t.Errorf("%s its niceness was %d, ours %d, and the report says %q", when, its, ours, r.info.describe())
			}
			if err := r.restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// pid is the process that serves as r.
func (r *redisServer) pid(t *testing.T) int {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: r.addr})
	defer client.Close()
	info, err := client.InfoMap(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(info["Server"]["process_id"])
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// niceness of a process, as the system has it: the less, the sooner it runs.
func niceness(t *testing.T, pid int) (nice int) {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// The 19th field; the second one, a name, may have spaces and ends with ")".
	_, rest, _ := strings.Cut(string(stat), ") ")
	if _, err := fmt.Sscan(strings.Fields(rest)[16], &nice); err != nil {
		t.Fatal(err)
	}
	return nice
}
