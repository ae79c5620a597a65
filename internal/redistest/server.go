// Package redistest starts real Redis servers for tests and for the load test:
// one server, a cluster of masters, or a primary with replicas and Sentinels, on
// free ports of the loopback, without persistence, ended with their owner, even
// if that is killed.
package redistest

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/child"
)

// ErrNoServer: there is no redis-server on PATH.
var ErrNoServer = errors.New("redistest: no redis-server on PATH")

// startLimit bounds the wait for a server that was started.
const startLimit = 10 * time.Second

// Server is a redis-server process. Its methods are not safe for concurrent
// use.
type Server struct {
	Addr string // host:port

	path string
	args []string
	dir  string

	process *child.Child
	output  *tail
}

// StartServer starts a redis-server in dir, which must exist, and waits until
// it answers. The context bounds the start only; Stop ends the server. Further
// args are those of redis-server, as "--maxmemory", "5mb".
func StartServer(ctx context.Context, dir string, args ...string) (*Server, error) {
	return startOn(ctx, dir, func(port string) ([]string, error) {
		return append([]string{"--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
			"--daemonize", "no", "--logfile", "", "--dir", dir}, args...), nil
	})
}

// startOn starts a redis-server in dir on a free port, with the arguments that
// args makes for that port.
func startOn(ctx context.Context, dir string, args func(port string) ([]string, error)) (*Server, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, ErrNoServer
	}
	// A port that was free a moment ago can be taken by another: try again.
	for range 5 {
		var n int
		if n, err = freePort(); err != nil {
			return nil, err
		}
		port := strconv.Itoa(n)
		s := &Server{Addr: net.JoinHostPort("127.0.0.1", port), path: path, dir: dir}
		if s.args, err = args(port); err != nil {
			return nil, err
		}
		if err = s.start(ctx); err == nil {
			return s, nil
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, err
}

// freePort is a port that is free now, low enough for a cluster bus (port +
// 10000).
func freePort() (int, error) {
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return 0, fmt.Errorf("redistest: %w", err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		l.Close()
		if port > 55000 {
			port -= 15000
			if l, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err != nil {
				continue
			}
			l.Close()
		}
		return port, nil
	}
	return 0, errors.New("redistest: no free port")
}

func (s *Server) launch() error {
	s.output = &tail{}
	cmd := exec.Command(s.path, s.args...)
	cmd.Stdout, cmd.Stderr = s.output, s.output
	process, err := child.Start(cmd)
	if err != nil {
		return fmt.Errorf("redistest: %w", err)
	}
	s.process = process
	return nil
}

// start launches the server and waits until it answers.
func (s *Server) start(ctx context.Context) error {
	if err := s.launch(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		select {
		case <-s.process.Done():
			return fmt.Errorf("redistest: redis-server ended at once: %s", s.output)
		case <-ctx.Done():
			s.Stop()
			return fmt.Errorf("redistest: redis-server does not answer: %w: %s", context.Cause(ctx), s.output)
		case <-time.After(5 * time.Millisecond):
		}
		if reply, err := s.ask("PING"); err == nil && reply == "+PONG" {
			return nil
		}
	}
}

// Stop ends the process, also a paused one, and waits for its end. It may be
// called twice.
func (s *Server) Stop() {
	s.process.Kill() // SIGKILL ends a stopped process too; there is nothing to save
}

// Restart starts the server again, empty, on the same address.
func (s *Server) Restart(ctx context.Context) error {
	s.Stop()
	return s.start(ctx)
}

// Relaunch ends the process and starts it again on the same address, with
// further args, and does not wait until it answers.
func (s *Server) Relaunch(args ...string) error {
	s.Stop()
	s.args = append(s.args, args...)
	return s.launch()
}

// Pause stops the process without ending it (SIGSTOP): connections stay open
// and nothing answers.
func (s *Server) Pause() error { return s.process.Signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (s *Server) Resume() error { return s.process.Signal(syscall.SIGCONT) }

// Prefer gives the server the processor before others that want it, as if it had
// one to itself. The error says that this user may not raise priorities. A server
// that is started again has none.
func (s *Server) Prefer() error {
	return syscall.Setpriority(syscall.PRIO_PROCESS, s.Pid(), preferred)
}

const preferred = -15 // of -20 to 19, where 0 is what everybody has

// Pid is the id of the process.
func (s *Server) Pid() int { return s.process.PID() }

// ask sends one command of plain words and returns the first line of the
// reply. The package needs no more of a client than that.
func (s *Server) ask(words ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(2 * time.Second))
	var request bytes.Buffer
	fmt.Fprintf(&request, "*%d\r\n", len(words))
	for _, w := range words {
		fmt.Fprintf(&request, "$%d\r\n%s\r\n", len(w), w)
	}
	if _, err := conn.Write(request.Bytes()); err != nil {
		return "", err
	}
	r := bufio.NewReader(conn)
	line, err := r.ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimRight(line, "\r\n")
	if size, err := strconv.Atoi(strings.TrimPrefix(line, "$")); err == nil && strings.HasPrefix(line, "$") && size > 0 && size < 1<<20 {
		body := make([]byte, size)
		for n := 0; n < size; {
			m, err := r.Read(body[n:])
			if err != nil {
				return "", err
			}
			n += m
		}
		return string(body), nil
	}
	return line, nil
}

// expect asks and wants +OK.
func (s *Server) expect(words ...string) error {
	reply, err := s.ask(words...)
	if err == nil && reply != "+OK" {
		err = errors.New(reply)
	}
	if err != nil {
		return fmt.Errorf("redistest: %s: %w", words[0], err)
	}
	return nil
}

// tail keeps the end of what a process prints.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if extra := len(t.kept) - 4096; extra > 0 {
		t.kept = t.kept[extra:]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}

// makeDir makes an empty folder for one server of a cluster.
func makeDir(parent, name string) (string, error) {
	dir := filepath.Join(parent, name)
	return dir, os.MkdirAll(dir, 0o755)
}
