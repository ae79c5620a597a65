//go:build unix

package child_test

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/child"
)

func start(t *testing.T, script string) *child.Child {
	t.Helper()
	c, err := child.Start(exec.Command("sh", "-c", script))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Kill() })
	return c
}

// alive reports whether a process other than a zombie has this id.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) // no /proc: it answers, so it is
	}
	_, rest, _ := bytes.Cut(stat, []byte(") "))
	return !bytes.HasPrefix(rest, []byte("Z"))
}

func eventuallyGone(t *testing.T, pid int) {
	t.Helper()
	for range 500 {
		if !alive(pid) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("process %d is still there after 5s", pid)
}

func TestStopEndsAChildThatListens(t *testing.T) {
	c := start(t, "exec sleep 60")
	begin := time.Now()
	if err := c.Stop(30 * time.Second); err == nil {
		t.Error("Stop returned nil for a process that a signal ended")
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("Stop took %v: it waited for the grace period", took)
	}
	if alive(c.PID()) {
		t.Error("the child is still there")
	}
}

func TestStopKillsAChildThatDoesNotListen(t *testing.T) {
	cmd := exec.Command("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c, err := child.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Kill() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(50 * time.Millisecond); err == nil || !strings.Contains(err.Error(), "was killed") {
		t.Errorf("Stop = %v, want an error that says it was killed", err)
	}
	eventuallyGone(t, c.PID())
}

func TestStopEndsAStoppedChild(t *testing.T) {
	c := start(t, "exec sleep 60")
	if err := c.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	c.Stop(30 * time.Second)
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("Stop took %v: the stopped child did not hear it", took)
	}
}

func TestKillTakesTheChildrenOfTheChildToo(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 60 & echo $!; wait")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c, err := child.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Kill() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	grandchild, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	c.Kill()
	eventuallyGone(t, grandchild)
}

// TestChildDiesWithAParentThatIsKilled runs this test binary again as a parent
// that starts a child and is then killed with a signal that nobody can catch.
func TestChildDiesWithAParentThatIsKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a child that its parent died")
	}
	parent := exec.Command(os.Args[0], "-test.run=^TestBeAParent$")
	parent.Env = append(os.Environ(), beAParent+"=1")
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	parent.Process.Kill()
	parent.Wait()
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	eventuallyGone(t, pid)
}

const beAParent = "CACHEGUARD_TEST_BE_A_PARENT"

func TestBeAParent(t *testing.T) {
	if os.Getenv(beAParent) == "" {
		t.Skip("is run by TestChildDiesWithAParentThatIsKilled")
	}
	c := start(t, "exec sleep 60")
	os.Stdout.WriteString(strconv.Itoa(c.PID()) + "\n")
	<-c.Done()
}

func TestInterruptGivesAChildTimeToTidyUp(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command("sh", "-c", `trap 'rm "$0/file"; exit 0' INT; touch "$0/file"; echo ready; while :; do sleep 0.05; done`, dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c, err := child.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Kill() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	c.Interrupt(30 * time.Second)
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Errorf("left: %v, %v", files, err)
	}
	if alive(c.PID()) {
		t.Error("the child is still there")
	}
}

func TestInterruptKillsAChildThatDoesNotListen(t *testing.T) {
	cmd := exec.Command("sh", "-c", "trap '' INT; echo ready; while :; do sleep 0.05; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c, err := child.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Kill() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	c.Interrupt(50 * time.Millisecond)
	eventuallyGone(t, c.PID())
}
