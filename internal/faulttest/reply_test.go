package faulttest

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/faultproxy"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// saysOf answers each command of a guard with an error reply, and lets the rest
// (what a client sends when it connects) through.
func saysOf(reply string) faultproxy.Faults {
	command := regexp.MustCompile(`(?m)^\*\d+\r$`)
	return faultproxy.Faults{Fate: func(request []byte) faultproxy.Fate {
		if !bytes.Contains(request, []byte("cacheguard:{")) {
			return faultproxy.Fate{}
		}
		n := len(command.FindAll(request, -1))
		return faultproxy.Fate{Answer: bytes.Repeat([]byte("-"+reply+"\r\n"), n)}
	}}
}

// Whatever error a server answers with, it is told of by its class, readers are
// answered all the same, and when the server is well again so is the fleet. The
// breaker opens for what says that the server as a whole is of no use, and for
// nothing else.
func TestEachErrorReplyIsClassifiedCountedAndSurvived(t *testing.T) {
	for _, c := range []struct {
		reply string
		class store.Class
		opens bool
	}{
		{"OOM command not allowed when used memory > 'maxmemory'.", store.ClassFull, false},
		{"READONLY You can't write against a read only replica.", store.ClassReadOnly, false},
		{"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.", store.ClassReadOnly, false},
		{"NOREPLICAS Not enough good replicas to write.", store.ClassReadOnly, false},
		{"LOADING Redis is loading the dataset in memory", store.ClassLoading, true},
		{"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", store.ClassLoading, true},
		{"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", store.ClassTimeout, true},
		{"CLUSTERDOWN Hash slot not served", store.ClassCluster, true},
		{"MOVED 1 127.0.0.1:1", store.ClassCluster, true},
		{"ASK 1 127.0.0.1:1", store.ClassCluster, true},
		{"TRYAGAIN Multiple keys request during rehashing of slot", store.ClassCluster, true},
		{"CROSSSLOT Keys in request don't hash to the same slot", store.ClassCluster, true},
		{"NOAUTH Authentication required.", store.ClassDenied, true},
		{"WRONGPASS invalid username-password pair or user is disabled.", store.ClassDenied, true},
		{"NOPERM this user has no permissions to run the 'get' command", store.ClassDenied, true},
		{"ERR unknown command 'evalsha'", store.ClassDenied, true},
		{"ERR max number of clients reached", store.ClassConnection, true},
		{"WRONGTYPE Operation against a key holding the wrong kind of value", store.ClassData, false},
		{"ERR what nobody has heard of", store.ClassOther, false},
	} {
		t.Run(regexp.MustCompile(`^\S+`).FindString(c.reply)+" "+string(c.class), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			p := newProxy(t, server.Addr)
			f := startFleet(t, newOrigin(t, 5*time.Millisecond), 2, plain(p.Addr), options{}, redisstore.Options{Timeout: time.Second})
			f.surviveReplies(p, saysOf(c.reply))
			f.wantFault(c.class)
			for class := range f.faults() {
				// A refusal by the breaker is of class connection.
				if class != c.class && !(c.opens && class == store.ClassConnection) {
					t.Errorf("faults of class %s were told of: %v", class, f.faults())
				}
			}
			for _, m := range f.members {
				if opened := m.timesOpened() > 0; opened != c.opens {
					t.Errorf("process %d: the breaker opened: %t, want %t", m.id, opened, c.opens)
				}
			}
		})
	}
}

// surviveReplies reads and writes while the server says that it is ill, and
// after.
func (f *fleet) surviveReplies(p *faultproxy.Proxy, faults faultproxy.Faults) {
	f.t.Helper()
	warm := []string{"warm-0", "warm-1"}
	for _, key := range warm {
		f.members[0].mustRead(key)
	}
	p.Set(faults)
	for i := range 10 {
		for _, m := range f.members {
			m.mustRead(warm[i%2])
			m.mustRead(fmt.Sprint("cold-", i))
		}
	}
	f.members[0].write(warm[0])
	f.members[0].mustRead(warm[0])
	p.Set(faultproxy.Faults{})
	f.settled(append(warm, "cold-1"), 5*time.Second)
}

func (m *member) timesOpened() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.opened
}

// A cluster whose nodes send its clients in circles.
func TestRedirectionsWithoutEndAreSurvived(t *testing.T) {
	server := redistest.Start(t)
	p := newProxy(t, server.Addr)
	connect := func() redis.UniversalClient {
		return redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{{Start: 0, End: 16383, Nodes: []redis.ClusterNode{{Addr: p.Addr}}}}, nil
		}})
	}
	f := startFleet(t, newOrigin(t, 5*time.Millisecond), 2, connect, options{}, redisstore.Options{Timeout: time.Second})
	f.surviveReplies(p, saysOf("MOVED 1 "+p.Addr))
	f.wantFault(store.ClassCluster, store.ClassTimeout)
}
