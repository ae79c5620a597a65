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

// addStatus appends the member to what caches nearer to the origin have said.
func (c *Cache) addStatus(h http.Header, s cacheStatus) { c.addStatusTo(h, s, nil) }

// addStatusTo is addStatus with room for the value; see setField.
func (c *Cache) addStatusTo(h http.Header, s cacheStatus, room []string) []string {
	if c.opts.Observe != nil {
		c.opts.Observe(Outcome{
			Hit: s.hit, Stale: s.hit && s.ttl < 0, Collapsed: s.collapsed, Stored: s.stored,
			Forwarded: s.fwd, Detail: s.detail, Status: s.fwdStatus,
		})
	}
	if c.opts.HideStatus {
		return room
	}
	var text [128]byte
	b := text[:0]
	b = append(b, c.opts.StatusName...)
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
	if before := h["Cache-Status"]; before != nil {
		h["Cache-Status"] = append(before, string(b))
		return room
	}
	return setField(h, "Cache-Status", string(b), room)
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
