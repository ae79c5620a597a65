package cacheguard

import (
	"fmt"
	"time"
)

// Advice returns one sentence for each setting that is allowed and yet seldom
// meant, with what to write instead. It is meant for the log of a process that
// starts (slogguard writes it there); a plain set of options has none.
func (s Settings) Advice() []string {
	var advice []string
	doubt := func(is bool, format string, args ...any) {
		if is {
			advice = append(advice, fmt.Sprintf(format, args...))
		}
	}
	doubt(s.Lease.Min > s.LoadLimit/2,
		"Options.Lease.Min (%v) is more than half of LoadLimit (%v): a crashed holder keeps the others waiting nearly as long as a hanging one; leave Min at 0 for 250ms and let the length follow the loads", s.Lease.Min, s.LoadLimit)
	doubt(s.Lease.Min == s.Lease.Max,
		"Options.Lease.Min and Max are both %v: the lease's length is a constant and does not follow the loads; leave Max at 0 for LoadLimit", s.Lease.Max)
	doubt(!s.Chosen && s.Lifetime.Grace == 0 && s.EarlyRefresh < 0,
		"Options.Lifetime.Grace is 0 and EarlyRefresh is off: whenever a key expires, all its callers wait for a load; set a Grace, such as the TTL (%v)", s.Lifetime.TTL)
	doubt(s.WaitLimit < s.LoadLimit,
		"Options.WaitLimit (%v) is below LoadLimit (%v): callers give up while the load that they wait for may still end well; leave WaitLimit at 0 for LoadLimit + Lease.Max", s.WaitLimit, s.LoadLimit)
	doubt(s.Cooldown == 0,
		"Options.Cooldown is off: while the origin fails, every caller without a stale value asks it again; leave Cooldown at 0 for 1s")
	doubt(!s.Chosen && s.Near.on() && s.Lifetime.TTL > 0 && s.Near.TTL > s.Lifetime.TTL,
		"Options.Near.TTL (%v) is above Lifetime.TTL (%v): copies end with the shorter one; lower Near.TTL to the staleness that you accept after another process's write", s.Near.TTL, s.Lifetime.TTL)
	doubt(s.NegativeTTL > longAbsence && s.NegativeTTL > s.Lifetime.TTL,
		"Options.NegativeTTL (%v) is above Lifetime.TTL (%v): what was created since stays missing for longer than what exists stays old; lower it", s.NegativeTTL, s.Lifetime.TTL)
	doubt(!s.Chosen && s.HoldOff > s.Lifetime.TTL && s.Lifetime.TTL > 0,
		"Options.HoldOff (%v) is above Lifetime.TTL (%v): an old value that is stored would be gone sooner than the hold-off ends; use the longest lag of the replica", s.HoldOff, s.Lifetime.TTL)
	return advice
}

// longAbsence is for how long a missing thing may stay missing without a word.
const longAbsence = time.Minute
