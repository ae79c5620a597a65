package lease

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// Everything here happens on a real server, in real time. Bounds are wide: what
// is tested is what happens, in which order, and that it happens at all.

const (
	// realLength is of the leases in these tests: short, to be lost soon.
	realLength = 2 * time.Second

	// soon is when a test gives up waiting for what must happen.
	soon = 20 * time.Second
)

// site is a server and the lockers of several processes over it.
type site struct {
	*testing.T
	server *redistest.Server
}

func newSite(t *testing.T) *site { return &site{t, redistest.Start(t)} }

// locker returns a locker with a client of its own, and a switch that keeps
// everything that the server says from it.
func (s *site) locker() (*Locker, *atomic.Bool) {
	s.Helper()
	l, mute, closeAll, err := connect(s.server.Addr)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(closeAll)
	return l, mute
}

func connect(addr string) (l *Locker, mute *atomic.Bool, closeAll func(), err error) {
	mute = new(atomic.Bool)
	client := redis.NewClient(&redis.Options{Addr: addr, Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		return mutable{conn, mute}, err
	}})
	st, err := redisstore.New(client, redisstore.Options{Timeout: 500 * time.Millisecond})
	if err != nil {
		return nil, nil, nil, err
	}
	l = New(st, Options{Length: realLength, PollInterval: 200 * time.Millisecond})
	return l, mute, func() { l.Close(); st.Close(); client.Close() }, nil
}

// mutable is a connection that loses what it receives while mute is set.
type mutable struct {
	net.Conn
	mute *atomic.Bool
}

func (c mutable) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !c.mute.Load() {
			return n, err
		}
	}
}

func (s *site) acquire(l *Locker) *Lease {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), soon)
	defer cancel()
	h, err := l.Acquire(ctx, "job")
	if err != nil {
		s.Fatal(err)
	}
	return h
}

// lost fails unless the lease's context ends soon, as lost.
func (s *site) lost(h *Lease) {
	s.Helper()
	select {
	case <-h.Context().Done():
	case <-time.After(soon):
		s.Fatal("the holder is not told that its lease is lost")
	}
	if cause := context.Cause(h.Context()); !errors.Is(cause, store.ErrLost) {
		s.Fatalf("cause is %v, want ErrLost", cause)
	}
}

// kept fails if the lease's context ends within more than a length, or if
// another can have the lease then. It releases it.
func (s *site) kept(h *Lease, other *Locker) {
	s.Helper()
	select {
	case <-h.Context().Done():
		s.Fatalf("lease ended: %v", context.Cause(h.Context()))
	case <-time.After(realLength * 3 / 2):
	}
	if _, err := other.TryAcquire(s.Context(), "job"); !errors.Is(err, store.ErrHeld) {
		s.Fatalf("TryAcquire = %v, want ErrHeld", err)
	}
	if err := h.Release(s.Context()); err != nil {
		s.Errorf("Release = %v", err)
	}
}

func (s *site) do(words ...any) {
	s.Helper()
	client := redis.NewClient(&redis.Options{Addr: s.server.Addr})
	defer client.Close()
	if err := client.Do(s.Context(), words...).Err(); err != nil {
		s.Fatal(err)
	}
}

func TestRedisForgetsItsScripts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l, _ := s.locker()
	other, _ := s.locker()
	h := s.acquire(l)
	s.do("SCRIPT", "FLUSH")
	s.kept(h, other)
}

func TestRedisForgetsEverything(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l, _ := s.locker()
	other, _ := s.locker()
	h := s.acquire(l)
	s.do("FLUSHALL")
	next := s.acquire(other)
	if next.Token() <= h.Token() {
		t.Errorf("token %d after %d: must grow across a flush", next.Token(), h.Token())
	}
	s.lost(h)
	if err := h.Release(t.Context()); !errors.Is(err, store.ErrLost) {
		t.Errorf("Release = %v, want ErrLost", err)
	}
	s.kept(next, l)
}

func TestRedisRestartsInMidHold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l, _ := s.locker()
	h := s.acquire(l)
	if err := s.server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.lost(h)
	next := s.acquire(l)
	if next.Token() <= h.Token() {
		t.Errorf("token %d after %d: must grow across a restart", next.Token(), h.Token())
	}
	h.Release(t.Context())
	other, _ := s.locker()
	s.kept(next, other)
}

func TestRepliesToRenewalsAreLost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l, mute := s.locker()
	other, _ := s.locker()
	h := s.acquire(l)
	mute.Store(true)
	for l.fault.Load() == nil { // until a renewal has arrived and its reply has not
		if h.Context().Err() != nil {
			t.Fatal("the lease ended before a renewal failed")
		}
		time.Sleep(time.Millisecond)
	}
	mute.Store(false)
	s.kept(h, other)

	// For longer than the lease: the holder stops before another can start,
	// though the server has heard its renewals and keeps the lease for it.
	h = s.acquire(l)
	mute.Store(true)
	s.lost(h)
	if _, err := other.TryAcquire(t.Context(), "job"); !errors.Is(err, store.ErrHeld) {
		t.Errorf("TryAcquire = %v, want ErrHeld", err)
	}
	mute.Store(false)
	if err := h.Release(t.Context()); !errors.Is(err, store.ErrLost) {
		t.Errorf("Release = %v, want ErrLost", err)
	}
	s.acquire(other).Release(t.Context())
}

func TestRedisIsStopped(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l, _ := s.locker()
	other, _ := s.locker()
	h := s.acquire(l)
	pause := func(d time.Duration) {
		if err := s.server.Pause(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(d)
		if err := s.server.Resume(); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Until(h.held.Deadline()) - realLength/2)
	pause(realLength / 4) // over the time of a renewal, not to the end of the lease
	s.kept(h, other)

	h = s.acquire(l)
	sent := time.Now()
	if err := s.server.Pause(); err != nil {
		t.Fatal(err)
	}
	s.lost(h)
	if after := time.Since(sent); after < realLength/2 {
		t.Errorf("told after %v of a lease of %v", after, realLength)
	}
	if err := s.server.Resume(); err != nil {
		t.Fatal(err)
	}
	h.Release(t.Context())
	next := s.acquire(other)
	if next.Token() <= h.Token() {
		t.Errorf("token %d after %d", next.Token(), h.Token())
	}
	s.kept(next, l)
}

func TestRedisLeavesNoLeaseOfCancelledCallers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	l, _ := s.locker()
	for i := range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Duration(i%10)*50*time.Microsecond, cancel)
		if h, err := l.Acquire(ctx, strconv.Itoa(i)); err == nil {
			h.Release(ctx)
		}
		cancel()
	}
	l.Close()
	other, _ := s.locker()
	for i := range 1000 {
		h, err := other.TryAcquire(t.Context(), strconv.Itoa(i))
		if err != nil {
			t.Fatalf("after a cancelled Acquire: %v", err)
		}
		h.Release(t.Context())
	}
}

// holderEnv makes a process of this test binary hold a lease: see holderMain.
const holderEnv = "CACHEGUARD_TEST_HOLDER"

// holderMain acquires the job, says under which token, and when its lease is
// lost says so: it is then about to do what it should not.
func holderMain(addr string) error {
	l, _, closeAll, err := connect(addr)
	if err != nil {
		return err
	}
	defer closeAll()
	h, err := l.Acquire(context.Background(), "job")
	if err != nil {
		return err
	}
	fmt.Println(int64(h.Token()))
	<-h.Context().Done()
	fmt.Println(context.Cause(h.Context()))
	return nil
}

// holder is a process that holds the job.
type holder struct {
	*testing.T
	cmd   *exec.Cmd
	said  *bufio.Scanner
	token store.Token
}

func (s *site) startHolder() *holder {
	s.Helper()
	p := &holder{T: s.T, cmd: exec.Command(os.Args[0])}
	p.cmd.Env = append(os.Environ(), holderEnv+"="+s.server.Addr)
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		s.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
	p.said = bufio.NewScanner(out)
	n, err := strconv.ParseInt(p.says(), 10, 64)
	if err != nil {
		s.Fatal(err)
	}
	p.token = store.Token(n)
	return p
}

func (p *holder) says() string {
	p.Helper()
	if !p.said.Scan() {
		p.Fatalf("the holder ended without a word: %v", p.said.Err())
	}
	return p.said.Text()
}

func (p *holder) signal(sig os.Signal) {
	p.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.Fatal(err)
	}
}

func TestKilledHolderDelaysTheOthersByItsLeaseAtMost(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.startHolder()
	other, _ := s.locker()
	third, _ := s.locker()
	p.signal(syscall.SIGKILL)
	killed := time.Now()
	h := s.acquire(other)
	// The last second is for a machine that is busy with other tests.
	if took := time.Since(killed); took > realLength+time.Second {
		t.Errorf("taken over after %v, with a lease of %v", took, realLength)
	}
	if h.Token() <= p.token {
		t.Errorf("token %d after %d", h.Token(), p.token)
	}
	s.kept(h, third) // one takes over, not two
}

func TestStoppedHolderIsOvertakenAndFenced(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.startHolder()
	other, _ := s.locker()
	p.signal(syscall.SIGSTOP)
	h := s.acquire(other)
	var written Fence
	if err := written.Admit(h.Token(), func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	p.signal(syscall.SIGCONT)
	if heard := p.says(); !strings.Contains(heard, store.ErrLost.Error()) {
		t.Errorf("the zombie heard %q", heard)
	}
	// It may have been stopped just before a write: that comes now.
	if err := written.Admit(p.token, func() error { return nil }); !errors.Is(err, store.ErrFenced) {
		t.Errorf("the zombie's write: %v, want ErrFenced", err)
	}
	third, _ := s.locker()
	s.kept(h, third)
}
