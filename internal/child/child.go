// Package child starts processes that do not outlive the one that started
// them: each leads a process group of its own, which is ended as a whole, and
// on Linux the kernel kills it should its parent die without a word.
package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// Child is a process that was started. Its methods may be used concurrently.
type Child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and was waited for
	err  error         // of the wait; valid once done is closed
}

// Start starts cmd, whose SysProcAttr must be nil. Whoever starts a child must
// Stop it.
//
// A terminal's Ctrl-C reaches only its foreground process group, and so not
// the child: its parent decides what happens.
func Start(cmd *exec.Cmd) (*Child, error) {
	cmd.SysProcAttr = ownGroup()
	if cmd.WaitDelay == 0 {
		cmd.WaitDelay = time.Second // a grandchild that holds the output open must not hold us
	}
	c := &Child{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go c.live(started)
	if err := <-started; err != nil {
		return nil, err
	}
	return c, nil
}

// live starts the process and waits for its end, both on one thread: to Linux
// the parent of a child is the thread that started it, and without the lock
// that thread may end while the process goes on.
func (c *Child) live(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	defer close(c.done)
	c.err = c.cmd.Wait()
	// What it started goes with it. Now, and not in Stop: later the id may be
	// another's.
	_ = killGroup(c.cmd.Process.Pid)
}

// PID is the id of the process.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Done is closed when the process has ended.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err is why the process ended; nil while it runs and if it ended well.
func (c *Child) Err() error {
	select {
	case <-c.done:
		return c.err
	default:
		return nil
	}
}

// Signal sends a signal to the process alone.
func (c *Child) Signal(sig os.Signal) error { return c.cmd.Process.Signal(sig) }

// Stop asks the process to end, gives it as long as grace, then kills its
// whole group, and returns when it is gone. A process that is stopped
// (SIGSTOP) is continued first, for it could not hear otherwise. The error is
// not nil if it had to be killed, or ended with an error; and, at once, if it may
// not be signalled ([os.ErrPermission]): then it is still there.
func (c *Child) Stop(grace time.Duration) error {
	// That it has ended already is the other way in which this can fail.
	if err := terminate(c.cmd.Process); errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("process %d cannot be told to end: %w", c.PID(), err)
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.done:
		return c.err
	case <-timer.C:
	}
	if err := c.Kill(); err != nil {
		return err
	}
	return fmt.Errorf("process %d did not end within %v and was killed", c.PID(), grace)
}

// Interrupt does to the process and its group what Ctrl-C does to those in front
// of a terminal, gives them as long as grace, and then kills them. It returns when
// the process is gone.
func (c *Child) Interrupt(grace time.Duration) {
	_ = interruptGroup(c.PID()) // else it is killed
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.done:
	case <-timer.C:
		_ = c.Kill()
	}
}

// Kill ends the process and its group at once, as a crash would, and returns
// when it is gone. The error is that it may not be signalled ([os.ErrPermission]):
// then it is still there.
func (c *Child) Kill() error {
	select {
	case <-c.done:
		return nil
	default:
	}
	if err := killGroup(c.PID()); errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("process %d cannot be killed: %w", c.PID(), err)
	}
	<-c.done
	return nil
}
