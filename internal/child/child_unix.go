//go:build unix

package child

import (
	"os"
	"syscall"
)

func terminate(p *os.Process) error {
	err := p.Signal(syscall.SIGTERM)
	_ = p.Signal(syscall.SIGCONT)
	return err
}

// killGroup kills what is left of the group that pid leads. The group keeps
// its id from being given to another for as long as one of it lives; when none
// does, there is nothing to kill.
func killGroup(pid int) error { return syscall.Kill(-pid, syscall.SIGKILL) }

// interruptGroup is what Ctrl-C on a terminal does.
func interruptGroup(pid int) error { return syscall.Kill(-pid, syscall.SIGINT) }
