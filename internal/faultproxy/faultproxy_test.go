package faultproxy_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cacheguard-go/cacheguard/internal/faultproxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that sends back each line.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); io.Copy(c, c) }()
		}
	}()
	t.Cleanup(func() { l.Close(); <-ended })
	return l.Addr().String()
}

func start(t *testing.T) *faultproxy.Proxy {
	p, err := faultproxy.Start(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func dial(t *testing.T, p *faultproxy.Proxy) net.Conn {
	c, err := net.Dial("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// say sends a line and waits for it to come back.
func say(c net.Conn, line string, limit time.Duration) error {
	c.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return err
	}
	got, err := bufio.NewReader(c).ReadString('\n')
	if err == nil && got != line+"\n" {
		err = errors.New("got " + got)
	}
	return err
}

const patience = 10 * time.Second

func TestAGoodNetworkPassesEverything(t *testing.T) {
	c := dial(t, start(t))
	for _, line := range []string{"a", strings.Repeat("b", 1<<20)} {
		if err := say(c, line, patience); err != nil {
			t.Error(err)
		}
	}
}

func TestWhatHangsPassesWhenThatEnds(t *testing.T) {
	p := start(t)
	c := dial(t, p)
	if err := say(c, "before", patience); err != nil {
		t.Fatal(err)
	}
	p.Set(faultproxy.Faults{Hang: true})
	fresh := dial(t, p)
	for _, c := range []net.Conn{c, fresh} {
		var network net.Error
		if err := say(c, "held", 50*time.Millisecond); !errors.As(err, &network) || !network.Timeout() {
			t.Errorf("while it hangs: %v, want a time-out", err)
		}
	}
	p.Set(faultproxy.Faults{})
	for _, c := range []net.Conn{c, fresh} {
		c.SetDeadline(time.Now().Add(patience))
		if got, err := bufio.NewReader(c).ReadString('\n'); got != "held\n" {
			t.Errorf("afterwards: %q, %v", got, err)
		}
	}
}

func TestRepliesAreLateSlowOrLostByTheirRequest(t *testing.T) {
	p := start(t)
	c := dial(t, p)
	p.Set(faultproxy.Faults{Latency: 50 * time.Millisecond, Fate: func(request []byte) faultproxy.Fate {
		switch strings.TrimSpace(string(request)) {
		case "late":
			return faultproxy.Fate{Late: 100 * time.Millisecond}
		case "lost":
			return faultproxy.Fate{Lost: true}
		}
		return faultproxy.Fate{}
	}})
	for line, least := range map[string]time.Duration{"plain": 50 * time.Millisecond, "late": 150 * time.Millisecond} {
		begin := time.Now()
		if err := say(c, line, patience); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took < least {
			t.Errorf("%s took %v, want at least %v", line, took, least)
		}
	}
	if err := say(c, "lost", patience); err == nil {
		t.Error("a lost reply came")
	}
	p.Set(faultproxy.Faults{Fate: func([]byte) faultproxy.Fate { return faultproxy.Fate{Answer: []byte("no\n")} }})
	if err := say(dial(t, p), "yes", patience); err == nil || err.Error() != "got no\n" {
		t.Errorf("a reply that was to be replaced: %v", err)
	}
	p.Set(faultproxy.Faults{Rate: 1000})
	begin := time.Now()
	if err := say(dial(t, p), strings.Repeat("x", 99), patience); err != nil {
		t.Error(err)
	}
	if took := time.Since(begin); took < 90*time.Millisecond {
		t.Errorf("100 bytes at 1000 a second took %v", took)
	}
}

func TestConnectionsAreResetAndRefused(t *testing.T) {
	p := start(t)
	c := dial(t, p)
	if err := say(c, "a", patience); err != nil {
		t.Fatal(err)
	}
	p.Reset()
	if err := say(c, "b", patience); err == nil {
		t.Error("a connection outlives Reset")
	}
	p.Set(faultproxy.Faults{Refuse: true})
	// The reset can come before the dial has returned: that is a refusal, too.
	if c, err := net.Dial("tcp", p.Addr); err == nil {
		defer c.Close()
		if err := say(c, "c", patience); err == nil {
			t.Error("a connection is served although they are refused")
		}
	}
}

func TestCloseEndsWhatHangs(t *testing.T) {
	p := start(t)
	c := dial(t, p)
	p.Set(faultproxy.Faults{Hang: true})
	if err := say(c, "held", 20*time.Millisecond); err == nil {
		t.Fatal("it does not hang")
	}
	p.Close()
	p.Close()
	if err := say(c, "again", patience); err == nil || p.Links() != 0 {
		t.Errorf("after Close: %v, %d links", err, p.Links())
	}
}
