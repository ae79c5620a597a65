//go:build linux

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// asProgram makes this test binary the load test: what happens to its process
// can be tested on a process only.
const asProgram = "LOADTEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) == "1" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// program is the load test as a process.
type program struct {
	cmd *exec.Cmd
	dir string // for its temporary files
	out chan string
	log chan string

	mu   sync.Mutex
	said map[string]*strings.Builder // guarded by mu
}

// programLimit bounds each wait for a program.
const programLimit = 90 * time.Second

// small are arguments that make a run short.
var small = []string{"-mode", "guard", "-replicas", "2", "-clients", "2", "-rounds", "1", "-load", "50ms"}

func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	return startCommand(t, t.TempDir(), exec.Command(os.Args[0], args...))
}

// startCommand starts the load test by a command of some sort, with a folder for
// its temporary files.
func startCommand(t *testing.T, dir string, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{cmd: cmd, dir: dir, out: make(chan string, 1000), log: make(chan string, 1000), said: map[string]*strings.Builder{}}
	cmd.Env = append(cmd.Environ(), asProgram+"=1", "TMPDIR="+dir)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	go p.listen("out", stdout, p.out)
	go p.listen("log", stderr, p.log)
	return p
}

func (p *program) listen(name string, from io.Reader, lines chan<- string) {
	p.mu.Lock()
	text := new(strings.Builder)
	p.said[name] = text
	p.mu.Unlock()
	scanner := bufio.NewScanner(from)
	for scanner.Scan() {
		p.mu.Lock()
		fmt.Fprintln(text, scanner.Text())
		p.mu.Unlock()
		lines <- scanner.Text()
	}
	close(lines)
}

// text is what it said so far.
func (p *program) text(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.said[name] == nil {
		return ""
	}
	return p.said[name].String()
}

// await waits until it says something.
func (p *program) await(t *testing.T, lines <-chan string, what string) {
	t.Helper()
	limit := time.After(programLimit)
	for {
		select {
		case line, more := <-lines:
			if strings.Contains(line, what) {
				return
			}
			if !more {
				t.Fatalf("it ended and did not say %q:\n%s%s", what, p.text("out"), p.text("log"))
			}
		case <-limit:
			t.Fatalf("it did not say %q in %v:\n%s%s", what, programLimit, p.text("out"), p.text("log"))
		}
	}
}

// end waits for its end and returns its exit status.
func (p *program) end(t *testing.T) int {
	t.Helper()
	for _, lines := range []chan string{p.out, p.log} {
		limit := time.After(programLimit)
		for more := true; more; {
			select {
			case _, more = <-lines:
			case <-limit:
				t.Fatalf("it did not end in %v:\n%s%s", programLimit, p.text("out"), p.text("log"))
			}
		}
	}
	err := p.cmd.Wait()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return 0
}

// leavesNothing waits for its end, which must be one with an error that says
// something, and looks for what is left of it.
func (p *program) leavesNothing(t *testing.T, says string) {
	t.Helper()
	if code := p.end(t); code != 1 {
		t.Errorf("exit status %d, want 1", code)
	}
	if !strings.Contains(p.text("log"), says) {
		t.Errorf("it does not say %q:\n%s", says, p.text("log"))
	}
	if left := running(t, p.dir); len(left) > 0 {
		t.Errorf("still running: %v", left)
	}
	if files, err := os.ReadDir(p.dir); err != nil || len(files) > 0 {
		t.Errorf("left in the folder for temporary files: %v, %v", files, err)
	}
}

func TestASignalEndsARunInEachPhaseAndLeavesNothing(t *testing.T) {
	for _, c := range []struct {
		phase, says string
		signal      os.Signal
		args        []string
	}{
		{"building", "building demo-api", os.Interrupt, nil},
		{"opening Redis", "using ", syscall.SIGTERM, nil},
		{"starting", "starting 2 processes", os.Interrupt, nil},
		{"a storm", "requests a second", syscall.SIGTERM, []string{"-scenario", atARate.name}},
	} {
		t.Run(c.phase, func(t *testing.T) {
			t.Parallel()
			p := startProgram(t, append(slices.Clone(small), c.args...)...)
			p.await(t, p.log, c.says)
			if err := p.cmd.Process.Signal(c.signal); err != nil {
				t.Fatal(err)
			}
			p.leavesNothing(t, "interrupted")
		})
	}
}

// The report is a pipe that nobody reads yet, so that it is being written for as
// long as the test wants.
func TestASignalWhileTheReportIsWrittenDoesNotCutItOff(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "report.html")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	p := startProgram(t, append(slices.Clone(small), "-scenario", "cold", "-excuse", nearFloor.name, "-html", pipe)...)
	p.await(t, p.out, "promises that could be judged")
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	p.await(t, p.log, "ending in order")
	page, err := os.ReadFile(pipe)
	if err != nil || !bytes.HasSuffix(bytes.TrimSpace(page), []byte("</html>")) {
		t.Errorf("the report of %d bytes is cut off, or cannot be read: %v", len(page), err)
	}
	p.leavesNothing(t, "interrupted")
}

// Nobody is there to end its processes: they must see it themselves.
func TestAKilledLoadTestLeavesNothingRunning(t *testing.T) {
	t.Parallel()
	p := startProgram(t, append(slices.Clone(small), "-scenario", atARate.name)...)
	p.await(t, p.log, "requests a second")
	if n := len(running(t, p.dir)); n < 2 {
		t.Errorf("%d processes are seen, want the fleet: the look afterwards would see none either", n)
	}
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.end(t)
	var left []string
	for range 500 {
		if left = running(t, p.dir); len(left) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("still running: %v", left)
}

func TestARedisThatDiesInTheMiddleOfARunEndsIt(t *testing.T) {
	t.Parallel()
	server, err := redistest.StartServer(t.Context(), t.TempDir())
	redistest.Need(t, err)
	defer server.Stop()
	p := startProgram(t, append(slices.Clone(small), "-scenario", "cold,"+atARate.name, "-for", "1s", "-redis", server.Addr)...)
	p.await(t, p.log, "requests a second")
	server.Stop()
	p.leavesNothing(t, "the Redis of the fleet does not answer any more")
	if out := p.text("out"); !strings.Contains(out, "cold, mode guard:") || strings.Contains(out, "steady, mode guard:") {
		t.Errorf("want what was measured before to be judged, and nothing else:\n%s", out)
	}
}

func TestAFullDiskForTheReportIsOneClearSentence(t *testing.T) {
	t.Parallel()
	p := startProgram(t, append(slices.Clone(small), "-scenario", "cold", "-html", "/dev/full", "-json", "/dev/full")...)
	p.leavesNothing(t, "cannot write the report (write /dev/full: no space left on device)")
	if !strings.Contains(p.text("log"), "cannot write the results (write /dev/full: no space left on device)") {
		t.Errorf("it does not say that of the results:\n%s", p.text("log"))
	}
	if out := p.text("out"); !strings.Contains(out, "promises that could be judged") {
		t.Errorf("what was measured is not shown:\n%s", out)
	}
	if info, err := os.Stat("/dev/full"); err != nil || info.Mode().IsRegular() {
		t.Errorf("the device is %v, %v", info, err)
	}
}

func TestWhatCannotBeDoneIsAnExitStatusAndASentence(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		`-scenario "storm" is unknown; use all or some of`: {"-scenario", "storm"},
		"no Redis answers at 127.0.0.1:1 (":                {"-redis", "127.0.0.1:1"},
		"-json cannot be written: ":                        {"-json", "/no/such/folder/r.json"},
	} {
		p := startProgram(t, args...)
		p.leavesNothing(t, says)
	}
}

// What is in use by something else is a port at which no Redis answers, whether
// that says something else or nothing.
func TestAPortInUseByAnotherIsOneClearSentence(t *testing.T) {
	web := httptest.NewServer(nil)
	defer web.Close()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for name, addr := range map[string]string{"a web server": web.Listener.Addr().String(), "a silent one": silent.Addr().String()} {
		begin := time.Now()
		_, err := openRedis(t.Context(), addr, t.TempDir(), true)
		if err == nil || !strings.Contains(err.Error(), "no Redis answers at "+addr) || time.Since(begin) > 20*time.Second {
			t.Errorf("%s: %v after %v", name, err, time.Since(begin))
		}
	}
}

// requireRoot is the environment variable that turns the skip of a test that
// needs root into a failure. Continuous integration sets it to 1.
const requireRoot = "CACHEGUARD_REQUIRE_ROOT"

// asRoot is a command that is run as root, without the right to signal the
// processes of others.
func asRoot(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	words := append([]string{"setpriv", "--bounding-set=-kill"}, args...)
	if os.Geteuid() != 0 {
		words = slices.Concat([]string{"sudo", "-n", "env"}, env, words)
	}
	probe := slices.Concat(words[:len(words)-len(args)], []string{"true"})
	if err := exec.Command(probe[0], probe[1:]...).Run(); err != nil {
		if os.Getenv(requireRoot) == "1" {
			t.Fatalf("%v: %v", probe, err)
		}
		t.Skipf("SKIPPED, NOT TESTED: %v: %v (set %s=1 to make this a failure)", probe, err, requireRoot)
	}
	cmd := exec.Command(words[0], words[1:]...)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// The processes of the fleet run as another user: what go builds is put behind a
// script that changes the user. A load test that may not signal them cannot stop
// or kill one, and must still end them all.
func TestWithoutPermissionToSignalARunSaysSoAndEndsAllTheSame(t *testing.T) {
	realGo, err := exec.LookPath("go")
	if err != nil {
		t.Fatal(err)
	}
	for name, says := range map[string]string{
		stopped.name: "a process cannot be stopped and continued",
		crash.name:   "cannot be killed",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shared := t.TempDir() // that the other user can look into
			if err := os.Chmod(filepath.Dir(shared), 0o755); err != nil {
				t.Fatal(err)
			}
			binary := filepath.Join(shared, "demo-api")
			script := fmt.Sprintf("#!/bin/sh\n%q build -o %q \"$4\" && printf '#!/bin/sh\\nexec setpriv --reuid 65534 --regid 65534 --clear-groups %q \"$@\"\\n' >\"$3\" && chmod 755 \"$3\"\n", realGo, binary, binary)
			if err := os.WriteFile(filepath.Join(shared, "go"), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			env := []string{asProgram + "=1", "TMPDIR=" + dir, "PATH=" + shared + ":" + os.Getenv("PATH")}
			p := startCommand(t, dir, asRoot(t, env, slices.Concat([]string{os.Args[0]}, small, []string{"-scenario", name})...))
			p.leavesNothing(t, says)
			if text := p.text("log"); !strings.Contains(text, "operation not permitted") {
				t.Errorf("it does not say why:\n%s", text)
			}
			if left := running(t, shared); len(left) > 0 {
				t.Errorf("still running: %v", left)
			}
		})
	}
}
