package middleware

import (
	"net/http"
	"strconv"
	"time"
)

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
