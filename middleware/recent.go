package middleware

import (
	"sync"
	"time"
)

// recent remembers something small about keys for a while. It is bounded: what
// was not asked about for longest goes, some of it early. The zero value is
// ready.
type recent struct {
	mu       sync.Mutex
	now, old map[string]remark // old is what was there when now was begun
}

type remark struct {
	what  byte
	until time.Time
}

// maxRecent bounds one half of the memory.
const maxRecent = 4096

// get returns what is remembered of key, or zero. mu is held.
func (m *recent) get(key string) byte {
	r, ok := m.now[key]
	if !ok {
		if r, ok = m.old[key]; ok {
			m.put(key, r)
		}
	}
	if !ok || time.Now().After(r.until) {
		return 0
	}
	return r.what
}

// recall is get.
func (m *recent) recall(key string) byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.get(key)
}

// learn is note of what find says, if nothing is remembered of key and it says
// anything. It finds out once at a time.
func (m *recent) learn(key string, d time.Duration, find func() byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.get(key) != 0 {
		return
	}
	if what := find(); what != 0 {
		m.put(key, remark{what, time.Now().Add(d)})
	}
}

// note remembers what of key for d.
func (m *recent) note(key string, what byte, d time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.put(key, remark{what, time.Now().Add(d)})
}

// claim is note, if nothing is remembered of key.
func (m *recent) claim(key string, what byte, d time.Duration) (was byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if was = m.get(key); was == 0 {
		m.put(key, remark{what, time.Now().Add(d)})
	}
	return was
}

func (m *recent) put(key string, r remark) {
	if m.now == nil || len(m.now) >= maxRecent {
		m.now, m.old = make(map[string]remark), m.now
	}
	m.now[key] = r
}
