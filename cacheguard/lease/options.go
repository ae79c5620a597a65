package lease

import (
	"errors"
	"fmt"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/processid"
)

const (
	defaultNamespace = "lease"
	defaultLength    = 10 * time.Second
	defaultHoldLimit = time.Hour
	defaultPoll      = time.Second

	// minLength leaves room in a lease for a renewal that is answered slowly;
	// minPoll keeps waiting from becoming a busy loop over the network.
	minLength = 100 * time.Millisecond
	minPoll   = 10 * time.Millisecond
	maxLabel  = 128 // bytes
)

// Options of a [Locker]. The zero value works. What is out of range is reported
// by the first verb that is called, with what to write instead.
type Options struct {
	// Namespace keeps the names of this locker apart from those of others. All
	// processes that compete for a name have the same. It must not be the
	// namespace of a guard. "": "lease".
	Namespace string

	// Owner names this process to those who are told who holds a lease, in
	// front of its host name, process id and a random part.
	Owner string

	// Length is how long a holder that crashes keeps the others waiting, and
	// how long a holder can be cut off from the store before its Context ends.
	// It is not the time that the work may take: leases are renewed. 0: 10 s;
	// at least 100 ms.
	Length time.Duration

	// HoldLimit is the longest that one lease is kept, renewals and all; then
	// its Context ends and another may have it. It bounds work that hangs.
	// 0: one hour, or Length if that is more.
	HoldLimit time.Duration

	// PollInterval is how often, about, a waiting process asks again in case a
	// message was lost. 0: 1 s; at least 10 ms.
	PollInterval time.Duration
}

// resolve fills in what is zero and reports what is out of range.
func (o Options) resolve() (Options, error) {
	if o.Namespace == "" {
		o.Namespace = defaultNamespace
	}
	if o.Length == 0 {
		o.Length = defaultLength
	}
	if o.HoldLimit == 0 {
		o.HoldLimit = max(defaultHoldLimit, o.Length)
	}
	if o.PollInterval == 0 {
		o.PollInterval = defaultPoll
	}
	return o, o.check()
}

func (o Options) check() error {
	var faults []error
	bad := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("cacheguard: lease.Options."+format, args...))
	}
	if len(o.Namespace) > maxLabel {
		bad("Namespace has %d bytes: must have at most %d", len(o.Namespace), maxLabel)
	}
	if len(o.Owner) > maxLabel {
		bad("Owner has %d bytes: must have at most %d", len(o.Owner), maxLabel)
	}
	if o.Length < minLength {
		bad("Length is %v: must be at least %v", o.Length, minLength)
	}
	if o.HoldLimit < o.Length {
		bad("HoldLimit is %v: must be at least Length, %v", o.HoldLimit, o.Length)
	}
	if o.PollInterval < minPoll {
		bad("PollInterval is %v: must be at least %v", o.PollInterval, minPoll)
	}
	return errors.Join(faults...)
}

// process is the id by which the store tells this locker from all others.
func (o Options) process() string {
	if o.Owner == "" {
		return processid.New()
	}
	return o.Owner + "-" + processid.New()
}
