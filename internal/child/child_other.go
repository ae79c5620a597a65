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

func killGroup(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill()
	}
}
