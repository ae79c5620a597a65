//go:build !unix

package child

import (
	"os"
	"syscall"
)

// Where there are no process groups, a child is ended alone and without being
// asked.

func ownGroup() *syscall.SysProcAttr { return nil }

func terminate(p *os.Process) error { return p.Kill() }

func killGroup(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

func interruptGroup(pid int) error { return killGroup(pid) }
