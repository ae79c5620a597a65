package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
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
			t.Skip("SKIPPED, NOT TESTED: there is no redis-server on PATH")
		}
		if r.info.Priority && !asked {
			t.Error("it has priority, and was to have none")
		}
		if !r.info.Priority && asked && os.Getenv(requireRoot) == "1" {
			t.Errorf("it has no priority, and %s=1", requireRoot)
		}
		for _, when := range []string{"when it was started", "when it was started anew"} {
			if nice := niceOf(t, r); (nice < 0) != r.info.Priority {
				t.Errorf("%s its niceness was %d, and the report says %q", when, nice, r.info.describe())
			}
			if err := r.restart(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// niceOf is the niceness of the process that serves as r: 0, unless it was
// changed.
func niceOf(t *testing.T, r *redisServer) (nice int) {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: r.addr})
	defer client.Close()
	info, err := client.InfoMap(t.Context(), "server").Result()
	if err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile("/proc/" + info["Server"]["process_id"] + "/stat")
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
