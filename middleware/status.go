package middleware

import (
	"net/http"
	"strconv"
	"time"
)

// Outcome says how a request was answered. Its texts are from small fixed sets,
// fit for the labels of metrics, and those of Cache-Status (RFC 9211).
type Outcome struct {
	Hit       bool   // from what is stored
	Stale     bool   // a hit that is no longer fresh
	Collapsed bool   // by a run that another request began
	Stored    bool   // by its own run, which is now stored
	Forwarded string // why it was not a hit: "uri-miss", "stale", "bypass", ...; "": it was one, or was refused
	Detail    string // more about it: why it went past the cache, why the answer is not stored
	Status    int    // what the handler answered, if it was asked; else zero
}

// cacheStatus is one member of a Cache-Status field (RFC 9211). Its texts are
// tokens of this package's choosing, so nothing in it can break the field.
type cacheStatus struct {
	hit       bool
	fwd       string // why the request was forwarded; "": it was not
	fwdStatus int    // what the handler answered; zero: not told
	stored    bool
	collapsed bool
	ttl       time.Duration
	hasTTL    bool
	detail    string
}

// The reasons for forwarding (RFC 9211 2.2).
const (
	fwdBypass   = "bypass"
	fwdMethod   = "method"
	fwdURIMiss  = "uri-miss"
	fwdVaryMiss = "vary-miss"
	fwdMiss     = "miss"
	fwdRequest  = "request"
	fwdStale    = "stale"
)

// addStatus tells how a request was answered: whoever observes, and its client.
func (c *Cache) addStatus(h http.Header, s cacheStatus) { c.addStatusTo(h, s, nil) }

// addStatusTo is addStatus with room for the value; see setField.
func (c *Cache) addStatusTo(h http.Header, s cacheStatus, room []string) {
	c.observe(&s)
	if c.opts.HideStatus {
		return
	}
	var value string
	if s.fwd == fwdBypass && s.fwdStatus == 0 {
		value = c.bypassed[s.detail]
	}
	if value == "" {
		value = s.text(c.opts.StatusName)
	}
	addMember(h, value, room)
}

func (c *Cache) observe(s *cacheStatus) {
	if c.opts.Observe != nil {
		c.opts.Observe(s.outcome())
	}
}

func (s *cacheStatus) outcome() Outcome {
	return Outcome{
		Hit: s.hit, Stale: s.hit && s.ttl < 0, Collapsed: s.collapsed, Stored: s.stored,
		Forwarded: s.fwd, Detail: s.detail, Status: s.fwdStatus,
	}
}

// addMember appends a cache's member to what caches nearer to the origin have
// said. For room see setField.
func addMember(h http.Header, member string, room []string) []string {
	if before := h["Cache-Status"]; before != nil {
		h["Cache-Status"] = append(before, member)
		return room
	}
	return setField(h, "Cache-Status", member, room)
}

// bypassReasons are why requests go past the cache, as a rule.
var bypassReasons = []string{
	"authorization", "body", "cookie", "host", "no-key", "precondition", "request-no-store", "skip", "stream", "upgrade",
}

// bypassedTexts are the members that say so: a request that has nothing to do
// with the cache pays next to nothing for it.
func bypassedTexts(name string) map[string]string {
	texts := make(map[string]string, len(bypassReasons))
	for _, reason := range bypassReasons {
		texts[reason] = (&cacheStatus{fwd: fwdBypass, detail: reason}).text(name)
	}
	return texts
}

// text is the member of the cache of that name.
func (s *cacheStatus) text(name string) string {
	var text [128]byte
	return string(s.append(text[:0], name))
}

// append adds that member to b.
func (s *cacheStatus) append(b []byte, name string) []byte {
	b = append(b, name...)
	if s.hit {
		b = append(b, "; hit"...)
	}
	if s.fwd != "" {
		b = append(append(b, "; fwd="...), s.fwd...)
	}
	if s.fwdStatus != 0 {
		b = strconv.AppendInt(append(b, "; fwd-status="...), int64(s.fwdStatus), 10)
	}
	if s.hasTTL {
		b = strconv.AppendInt(append(b, "; ttl="...), floorSeconds(s.ttl), 10)
	}
	if s.stored {
		b = append(b, "; stored"...)
	}
	if s.collapsed {
		b = append(b, "; collapsed"...)
	}
	if s.detail != "" {
		b = append(append(b, "; detail="...), s.detail...)
	}
	return b
}

// floorSeconds rounds towards the past: what has expired half a second ago has
// a negative ttl.
func floorSeconds(d time.Duration) int64 {
	n := int64(d / time.Second)
	if d < 0 && d%time.Second != 0 {
		n--
	}
	return n
}
