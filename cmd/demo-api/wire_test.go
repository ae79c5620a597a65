package main

import (
	"bytes"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

// names feeds a stream in pieces of n bytes and returns the commands told.
func names(stream []byte, n int) (told []string) {
	r := commandReader{command: func(name string) { told = append(told, name) }}
	for piece := range slices.Chunk(stream, n) {
		r.read(piece)
	}
	return told
}

func TestCommandsAreCountedHoweverTheStreamIsCut(t *testing.T) {
	stream := []byte("*2\r\n$3\r\nGET\r\n$5\r\n*1\r\n$\r\n" + "*1\r\n$4\r\nping\r\n" + "*3\r\n$7\r\nevalsha\r\n$0\r\n\r\n$2\r\n\r\n\r\n" + "*1\r\n$4\r\nQUIT")
	want := []string{"get", "ping", "evalsha"} // of QUIT the end has not come
	for n := 1; n <= len(stream); n++ {
		if got := names(stream, n); !slices.Equal(got, want) {
			t.Fatalf("in pieces of %d: %q, want %q", n, got, want)
		}
	}
}

func TestWhatIsNoRequestIsNotCounted(t *testing.T) {
	for _, stream := range []string{"PING\r\n", "*x\r\n", "*99999999999999999999\r\n", "*1\r\n:4\r\n", "*-1\r\n", "*\r\n", strings.Repeat("*", 100)} {
		if got := names([]byte(stream+"*1\r\n$4\r\nping\r\n"), 3); len(got) != 0 {
			t.Errorf("%q: %q", stream, got)
		}
	}
}

func TestAnEmptyRequestDoesNotShiftTheNext(t *testing.T) {
	if got := names([]byte("*0\r\n*1\r\n$4\r\nping\r\n"), 2); !slices.Equal(got, []string{"ping"}) {
		t.Errorf("%q, want ping", got)
	}
}

func FuzzCommandReaderNeverDependsOnTheCut(f *testing.F) {
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"), 3)
	f.Add([]byte("*1\r\n$2147483648\r\n"), 1)
	f.Fuzz(func(t *testing.T, stream []byte, n int) {
		n = max(1, min(n, len(stream)))
		if a, b := names(stream, n), names(stream, max(1, len(stream))); !slices.Equal(a, b) {
			t.Errorf("in pieces of %d: %q, at once: %q", n, a, b)
		}
	})
}

// TestCommandsOfARealClientAreCountedAsItSentThem compares with what a server
// has received.
func TestCommandsOfARealClientAreCountedAsItSentThem(t *testing.T) {
	var mu sync.Mutex
	count := map[string]int{}
	m := embeddedRedis(t)
	client, _, err := newClient(m.Addr(), func(d dial) dial {
		return counting(d, func(name string) { mu.Lock(); count[name]++; mu.Unlock() })
	})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for i := range 10 {
		if err := client.Set(t.Context(), fmt.Sprint(i), bytes.Repeat([]byte("\r\n*1"), 5000), 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range 5 {
			p.Get(t.Context(), fmt.Sprint(i))
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := client.Eval(t.Context(), "redis.call('GET', KEYS[1]) return redis.call('GET', KEYS[1])", []string{"1"}).Err(); err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if count["set"] != 10 || count["get"] != 5 || count["eval"] != 1 {
		t.Errorf("counted %v; want 10 set, 5 get and 1 eval, whose two GETs were not sent", count)
	}
}

func TestNamesOfRedisHoldNoPassword(t *testing.T) {
	client, name, err := newClient("redis://user:geheim@127.0.0.1:6379/2", func(d dial) dial { return d })
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if name != "127.0.0.1:6379" {
		t.Errorf("name %q", name)
	}
	if _, _, err := newClient("redis://user:geheim@[::1", func(d dial) dial { return d }); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("error %v; want one without the password", err)
	}
}

func TestACountedConnectionStillShowsItsSocket(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := counting((&net.Dialer{}).DialContext, func(string) {})(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, ok := conn.(syscall.Conn); !ok {
		t.Error("go-redis cannot look whether it is still open")
	}
}
