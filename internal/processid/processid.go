// Package processid makes the ids by which the members of a fleet tell each
// other apart in lease records.
package processid

import (
	"crypto/rand"
	"fmt"
	"os"
	"strings"
)

// New returns an id that no other call has returned, here or elsewhere, and
// that tells a human where to look: host name, pid, and randomness (a pid alone
// is not enough: containers all have pid 1, and pids come again).
func New() string {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "unknown"
	}
	return fmt.Sprintf("%s-%d-%s", clean(host), os.Getpid(), strings.ToLower(rand.Text()[:12]))
}

// clean keeps what a host name may hold, in a bounded length.
func clean(host string) string {
	kept := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '.':
			return r
		}
		return '_'
	}, host)
	return kept[:min(len(kept), 40)]
}
