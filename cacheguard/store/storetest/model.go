package storetest

import (
	"slices"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// model is the contract for one key, written down as plainly as can be: no I/O,
// no clock, no error paths. Time is a number that the caller gives. Tokens and
// birth marks are counted from one; what matters of them is their order.
type model struct {
	entry  *modelEntry
	record *modelRecord
	tokens int
	births int
	events []modelEvent
	fills  map[int]modelEntry // what landed, by token
}

type modelEntry struct {
	store.Content
	token            int
	ttl, grace       int
	born, fresh, end int
	handOver         bool
}

type modelRecord struct {
	birth, fence int
	holder       store.Holder // of a lease that was neither filled nor released
	token, lease int          // that lease's token and end
	waiting      answer
	failed       []store.Holder // the last two at most
	cooldown     int            // its end
	everFailed   []store.Holder

	// The contract says for how long a record is kept at least. It does not
	// say whether a refused call is a use of it: until mayEnd it may be there.
	keep, mayKeep   int
	mustEnd, mayEnd int
}

// answer is yes, no, or what the contract leaves open.
type answer int

const (
	no answer = iota
	yes
	open
)

type modelEvent struct {
	kind     store.EventKind
	token    int
	optional bool
}

type modelGrant struct {
	holder             store.Holder
	token, birth, time int
}

type modelVerdict struct {
	store.Outcome
	modelGrant           // if granted; if held or cooling, its holder and token
	left                 int
	same                 answer
	takeover, secondHand answer
}

// pass lets time pass: what has come to its end is gone.
func (m *model) pass(now int, recordThere bool) {
	if m.entry != nil && m.entry.end <= now {
		m.entry = nil
	}
	if r := m.record; r != nil && (r.mayEnd <= now || r.mustEnd <= now && !recordThere) {
		m.record = nil
	}
}

func (m *model) claim(now, seen int, h store.Holder, length, keep int, wait bool) modelVerdict {
	if r := m.record; r != nil {
		r.maybeUsed(now, keep)
	}
	if m.entry != nil && m.entry.token != seen {
		return modelVerdict{Outcome: store.Changed}
	}
	same := when(m.entry != nil)
	r := m.need()
	running := r.lease > now
	if running && r.holder != h {
		if wait {
			r.waiting = yes
		}
		return modelVerdict{Outcome: store.Held, modelGrant: modelGrant{holder: r.holder, token: r.token}, left: r.lease - now, same: same}
	}
	bound := r.cooldown > now && r.binds(h)
	if bound && !running {
		return modelVerdict{Outcome: store.Cooling, modelGrant: modelGrant{holder: r.failed[len(r.failed)-1]}, left: r.cooldown - now}
	}
	takeover := when(r.holder != "")
	if r.holder == h {
		takeover = open // for the same attempt, but its lease is not running
		if running {
			takeover = no
		}
	}
	r.holder, r.token, r.lease = h, m.take(), now+length
	r.used(now, keep)
	return modelVerdict{
		Outcome: store.Granted, modelGrant: modelGrant{h, r.token, r.birth, now},
		takeover: takeover, secondHand: when(r.cooldown > now && !bound), same: same,
	}
}

func (m *model) renew(now int, g modelGrant, length int) (ok bool) {
	r := m.record
	if r == nil || r.birth != g.birth || r.holder != g.holder {
		r.maybeUsed(now, 0)
		return false
	}
	r.lease = now + length
	r.used(now, 0)
	return true
}

// release is by birth and holder, or by holder alone if birth is zero.
func (m *model) release(now, birth int, h store.Holder, failed bool, cooldown int) {
	r := m.record
	if r == nil || birth != 0 && r.birth != birth {
		r.maybeUsed(now, 0)
		return
	}
	switch {
	case r.holder != h:
	case r.lease > now:
		if r.endLease() != no {
			m.tell(store.Released, 0, r.waiting == open)
		}
		r.waiting = no
	default: // had run out: it is released, but nobody may have been woken
		if r.endLease() != no {
			m.tell(store.Released, 0, true)
			r.waiting = open
		}
	}
	if failed && !slices.Contains(r.failed, h) {
		r.failed = append(r.failed[max(0, len(r.failed)-1):], h)
		r.everFailed = append(r.everFailed, h)
		r.cooldown = max(r.cooldown, now+cooldown)
	}
	r.used(now, 0)
}

func (m *model) fill(now int, g modelGrant, c modelEntry, handOver int) (ok bool) {
	r := m.record
	if r == nil || r.birth != g.birth {
		m.tell(store.Released, 0, false)
	}
	if r == nil || r.birth != g.birth || r.fence > g.token {
		r.maybeUsed(now, 0)
		return false
	}
	if r.fence == g.token {
		r.maybeUsed(now, 0)
		return true
	}
	r.fence, r.failed, r.cooldown = g.token, nil, 0
	if r.waiting != no {
		m.tell(store.Filled, g.token, r.waiting == open)
	}
	if r.holder == g.holder {
		r.endLease()
		r.waiting = no
	} else if r.waiting == yes {
		r.waiting = open // they were woken, but the next holder's lease goes on
	}
	r.used(now, 0)
	m.write(g.time, g.token, c)
	if m.entry.end <= now {
		m.entry.end = now + handOver
		m.entry.handOver = true
	}
	if m.fills == nil {
		m.fills = make(map[int]modelEntry)
	}
	m.fills[g.token] = *m.entry
	return true
}

func (m *model) begin(now, keep int) modelGrant {
	r := m.need()
	r.used(now, keep)
	return modelGrant{token: m.take(), birth: r.birth}
}

func (m *model) set(now int, begun *modelGrant, c modelEntry) (ok bool) {
	r := m.record
	if begun != nil && (r == nil || r.birth != begun.birth || r.fence > begun.token) {
		m.invalidate(now)
		return false
	}
	if c.ttl+c.grace == 0 {
		m.invalidate(now)
		return true
	}
	token := m.moveFence(now)
	m.write(now, token, c)
	m.tell(store.Written, token, false)
	return true
}

func (m *model) invalidate(now int) {
	m.entry = nil
	m.tell(store.Invalidated, m.moveFence(now), false)
}

func (m *model) expire(now int) {
	if e := m.entry; e != nil {
		e.end, e.fresh = min(e.end, now+e.grace), min(e.fresh, now)
		if e.handOver || e.Kind == store.Pass || e.end <= now {
			m.entry = nil
		}
	}
	m.tell(store.Expired, m.moveFence(now), false)
}

func (m *model) take() int { m.tokens++; return m.tokens }

func (m *model) tell(kind store.EventKind, token int, optional bool) {
	m.events = append(m.events, modelEvent{kind, token, optional})
}

func (m *model) need() *modelRecord {
	if m.record == nil {
		m.births++
		m.record = &modelRecord{birth: m.births}
	}
	return m.record
}

func (m *model) write(born, token int, c modelEntry) {
	c.token, c.born, c.fresh, c.end = token, born, born+c.ttl, born+c.ttl+c.grace
	m.entry = &c
}

func (m *model) moveFence(now int) int {
	token := m.take()
	if r := m.record; r != nil {
		r.fence, r.waiting = token, no
		r.endLease()
		r.used(now, 0)
	}
	return token
}

func (r *modelRecord) endLease() (waiting answer) {
	r.holder, r.token, r.lease = "", 0, 0
	return r.waiting
}

func (r *modelRecord) binds(h store.Holder) bool {
	last := r.failed[len(r.failed)-1].Process()
	return last == h.Process() || last != r.failed[0].Process()
}

func (r *modelRecord) used(now, keep int) {
	r.keep = max(r.keep, keep)
	r.mustEnd = max(r.mustEnd, max(now, r.lease, r.cooldown)+r.keep)
	r.maybeUsed(now, keep)
}

func (r *modelRecord) maybeUsed(now, keep int) {
	if r != nil {
		r.mayKeep = max(r.mayKeep, keep)
		r.mayEnd = max(r.mayEnd, max(now, r.lease, r.cooldown)+r.mayKeep)
	}
}

func when(b bool) answer {
	if b {
		return yes
	}
	return no
}
