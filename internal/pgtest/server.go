// Package pgtest starts real, throw-away PostgreSQL servers for tests: each in
// a folder of its own, reached by a socket in it, without a care for durability,
// ended with its owner, even if that is killed.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cacheguard-go/cacheguard/internal/child"
)

// ErrNoServer: there is no PostgreSQL server on this machine.
var ErrNoServer = errors.New("pgtest: no PostgreSQL server is installed")

const (
	initLimit  = time.Minute      // for the data folder to be made
	startLimit = 30 * time.Second // for the server to answer
	stopLimit  = 10 * time.Second // for a shutdown, then it is killed

	// port is only a part of the socket's name: nothing listens on the network.
	port = 5432
)

// Server is a postgres process. Its methods are not safe for concurrent use.
type Server struct {
	DSN string // of a superuser, for pgx and libpq alike

	dir       string
	process   *child.Child
	output    *tail
	databases int // that NewDatabase made
}

// StartServer makes an empty database in a new folder and starts a server on
// it. The context bounds the start only; Stop ends the server.
func StartServer(ctx context.Context) (_ *Server, err error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	owner, err := unprivileged()
	if err != nil {
		return nil, err
	}
	// The name of a socket must be short, so this is not in the test's folder.
	dir, err := os.MkdirTemp("", "pgtest-")
	if err != nil {
		return nil, fmt.Errorf("pgtest: %w", err)
	}
	s := &Server{dir: dir, output: &tail{}}
	s.DSN = s.dsn("postgres")
	defer func() {
		if err != nil {
			s.Stop()
		}
	}()
	if err := owner.give(dir); err != nil {
		return nil, err
	}
	data := filepath.Join(dir, "data")
	if err := s.initDB(ctx, owner.command(filepath.Join(bin, "initdb"),
		"--pgdata", data, "--username", "postgres", "--auth", "trust", "--encoding", "UTF8", "--locale", "C", "--no-sync")); err != nil {
		return nil, err
	}
	cmd := owner.command(filepath.Join(bin, "postgres"), "-D", data, "-k", dir, "-p", strconv.Itoa(port), "-c", "listen_addresses=",
		"-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
	if err := s.start(ctx, cmd); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Server) dsn(database string) string {
	return fmt.Sprintf("host=%s port=%d user=postgres dbname=%s sslmode=disable", s.dir, port, database)
}

// NewDatabase makes an empty database and returns its DSN.
func (s *Server) NewDatabase(ctx context.Context) (dsn string, err error) {
	conn, err := pgx.Connect(ctx, s.DSN)
	if err != nil {
		return "", fmt.Errorf("pgtest: %w", err)
	}
	defer conn.Close(ctx)
	s.databases++
	name := fmt.Sprintf("test%d", s.databases)
	if _, err := conn.Exec(ctx, "CREATE DATABASE "+name); err != nil {
		return "", fmt.Errorf("pgtest: %w", err)
	}
	return s.dsn(name), nil
}

// initDB runs initdb.
func (s *Server) initDB(ctx context.Context, cmd *exec.Cmd) error {
	ctx, cancel := context.WithTimeout(ctx, initLimit)
	defer cancel()
	cmd.Stdout, cmd.Stderr = s.output, s.output
	process, err := child.Start(cmd)
	if err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	select {
	case <-process.Done():
	case <-ctx.Done():
		process.Kill()
		return fmt.Errorf("pgtest: initdb: %w: %s", context.Cause(ctx), s.output)
	}
	if err := process.Err(); err != nil {
		return fmt.Errorf("pgtest: initdb: %w: %s", err, s.output)
	}
	return nil
}

// start runs postgres and waits until it answers.
func (s *Server) start(ctx context.Context, cmd *exec.Cmd) (err error) {
	cmd.Stdout, cmd.Stderr = s.output, s.output
	if s.process, err = child.Start(cmd); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := ping(ctx, s.DSN)
		if err == nil {
			return nil
		}
		select {
		case <-s.process.Done():
			return fmt.Errorf("pgtest: postgres ended at once: %s", s.output)
		case <-ctx.Done():
			return fmt.Errorf("pgtest: postgres does not answer: %w: %s", err, s.output)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func ping(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	return errors.Join(conn.Ping(ctx), conn.Close(ctx))
}

// Stop ends the server with its connections and removes what it wrote. It may
// be called twice.
func (s *Server) Stop() {
	if s.process != nil {
		// A fast shutdown: unlike SIGTERM it does not wait for clients, and
		// unlike SIGKILL it gives the shared memory back.
		_ = s.process.Signal(syscall.SIGINT)
		select {
		case <-s.process.Done():
		case <-time.After(stopLimit):
			s.process.Kill()
		}
	}
	_ = os.RemoveAll(s.dir)
}

// binaries is the folder of initdb and postgres: that of PATH, or the newest
// where distributions put them, which is not on PATH.
func binaries() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil && executable(filepath.Join(filepath.Dir(path), "postgres")) {
			return filepath.Dir(path), nil
		}
	}
	var found []string
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin"} {
		dirs, _ := filepath.Glob(pattern) // its only error is a bad pattern
		for _, dir := range dirs {
			if executable(filepath.Join(dir, "initdb")) && executable(filepath.Join(dir, "postgres")) {
				found = append(found, dir)
			}
		}
	}
	if len(found) == 0 {
		return "", ErrNoServer
	}
	return slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) }), nil
}

func executable(file string) bool {
	info, err := os.Stat(file)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// version is the number in a folder's name; 0: there is none.
func version(dir string) int {
	digits := strings.FieldsFunc(dir, func(r rune) bool { return r < '0' || r > '9' })
	if len(digits) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(digits[0]) // of digits; too many of them are no version
	return n
}

// account is whom the server runs as; nil: as we do.
type account struct{ uid, gid int }

// unprivileged is another account if this process is root's, which PostgreSQL
// refuses to run as.
func unprivileged() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("pgtest: account %s: %w", name, err)
		}
		return &account{uid, gid}, nil
	}
	return nil, errors.New("pgtest: PostgreSQL does not run as root, and there is neither an account postgres nor nobody")
}

// give makes a folder the account's own.
func (a *account) give(dir string) error {
	if a == nil {
		return nil
	}
	if err := os.Chown(dir, a.uid, a.gid); err != nil {
		return fmt.Errorf("pgtest: %w", err)
	}
	return nil
}

// command is for a program that is to run as the account. setpriv becomes the
// program, so that the process is the one that is waited for; and it sets the
// death signal anew, which a change of account clears.
func (a *account) command(program string, args ...string) *exec.Cmd {
	if a == nil {
		return exec.Command(program, args...)
	}
	as := []string{"--reuid", strconv.Itoa(a.uid), "--regid", strconv.Itoa(a.gid), "--clear-groups", "--pdeathsig", "KILL", program}
	return exec.Command("setpriv", append(as, args...)...)
}

// tail keeps the end of what a process prints.
type tail struct {
	mu   sync.Mutex
	kept []byte // guarded by mu
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
	return string(bytes.TrimSpace(t.kept))
}
