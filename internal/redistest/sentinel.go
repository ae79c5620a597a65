package redistest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// MasterName is what the Sentinels call the primary.
const MasterName = "primary"

// Replicated is a primary with replicas, watched by Sentinels that make a
// replica the primary when they lose sight of it.
type Replicated struct {
	Servers   []*Server // the first was started as the primary
	Sentinels []*Server
}

// What the Sentinels wait before they act: short, so that a test of a failover
// is one, and long against the pauses of a busy machine.
const (
	downAfter       = 700 * time.Millisecond
	failoverTimeout = 5 * time.Second
)

// StartSentinelIn starts a primary, replicas of it, and Sentinels of which more
// than half must agree, in dir, which must exist. It waits until all replicas
// are in step and every Sentinel knows all the others. The context bounds the
// start.
func StartSentinelIn(ctx context.Context, dir string, replicas, sentinels int) (_ *Replicated, err error) {
	r := &Replicated{}
	defer func() {
		if err != nil {
			r.Stop()
		}
	}()
	for i := range 1 + replicas {
		// Without a delay a replica that has lost its primary comes back at once.
		args := []string{"--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"}
		if i > 0 {
			host, port, err := net.SplitHostPort(r.Servers[0].Addr)
			if err != nil {
				return nil, err
			}
			args = append(args, "--replicaof", host+" "+port)
		}
		serverDir, err := makeDir(dir, "server"+strconv.Itoa(i))
		if err != nil {
			return nil, err
		}
		s, err := StartServer(ctx, serverDir, args...)
		if err != nil {
			return nil, err
		}
		r.Servers = append(r.Servers, s)
	}
	for i := range sentinels {
		s, err := startSentinel(ctx, filepath.Join(dir, "sentinel"+strconv.Itoa(i)), r.Servers[0].Addr, sentinels/2+1)
		if err != nil {
			return nil, err
		}
		r.Sentinels = append(r.Sentinels, s)
	}
	return r, r.wait(ctx)
}

// startSentinel starts one Sentinel. Its settings stand in a file that it
// rewrites.
func startSentinel(ctx context.Context, dir, primary string, quorum int) (*Server, error) {
	host, primaryPort, err := net.SplitHostPort(primary)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "sentinel.conf")
	return startOn(ctx, dir, func(port string) ([]string, error) {
		lines := []string{
			"port " + port, "bind 127.0.0.1", "dir " + dir,
			fmt.Sprintf("sentinel monitor %s %s %s %d", MasterName, host, primaryPort, quorum),
			fmt.Sprintf("sentinel down-after-milliseconds %s %d", MasterName, downAfter.Milliseconds()),
			fmt.Sprintf("sentinel failover-timeout %s %d", MasterName, failoverTimeout.Milliseconds()),
			fmt.Sprintf("sentinel parallel-syncs %s 1", MasterName),
		}
		return []string{file, "--sentinel"}, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
	})
}

// wait returns when replication and the Sentinels are ready for a failover.
func (r *Replicated) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for !r.ready() {
		select {
		case <-ctx.Done():
			return fmt.Errorf("redistest: the Sentinels do not come up: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

func (r *Replicated) ready() bool {
	for _, s := range r.Servers[1:] {
		info, err := s.ask("INFO", "replication")
		if err != nil || !strings.Contains(info, "master_link_status:up") {
			return false
		}
	}
	for _, s := range r.Sentinels {
		info, err := s.ask("INFO", "sentinel")
		if err != nil || !strings.Contains(info, fmt.Sprintf("status=ok,address=%s,slaves=%d,sentinels=%d", r.Servers[0].Addr, len(r.Servers)-1, len(r.Sentinels))) {
			return false
		}
	}
	return true
}

// SentinelAddrs are the addresses of the Sentinels, for a client.
func (r *Replicated) SentinelAddrs() []string {
	var addrs []string
	for _, s := range r.Sentinels {
		addrs = append(addrs, s.Addr)
	}
	return addrs
}

// Stop ends all of them.
func (r *Replicated) Stop() {
	for _, s := range append(r.Sentinels, r.Servers...) {
		s.Stop()
	}
}
