package middleware

import (
	"bytes"
	"net/http"
	"strconv"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// reply answers with a stored response, or one that another's run has brought.
func (j *job) reply(p *response, e cacheguard.Entry[*response]) {
	st := cacheStatus{hit: true, ttl: p.lifetime - p.age(e.Age), hasTTL: true}
	if j.aged && st.ttl >= 0 { // made stale by hand, by a tag, or a little early
		st.ttl = -1
	}
	if fromFlight(e) {
		st = cacheStatus{fwd: j.fwd(), fwdStatus: p.status, collapsed: true, detail: p.unkept}
	}
	j.client.begin()
	j.replay(p, p.age(e.Age), st)
}

// replay answers with a stored response, which is of that age now.
func (x *exchange) replay(p *response, age time.Duration, st cacheStatus) {
	x.c.observe(&st)
	var text [128]byte
	b := strconv.AppendInt(text[:0], ageSeconds(age), 10)
	digits := len(b)
	if !x.c.opts.HideStatus {
		b = st.append(b, x.c.opts.StatusName)
	}
	made := string(b) // two values in one allocation
	h := x.w.Header()
	room := p.replay(h, 3)
	room = setField(h, "Age", made[:digits], room)
	if member := made[digits:]; member != "" {
		room = addMember(h, member, room)
	}
	x.send(p, room)
}

// replyFailure answers with another's failure, which is not stored.
func (j *job) replyFailure(p *response) {
	if p == nil || !j.c.keys.selects(j.r, p.selecting) || (j.adm.credentialed && !p.rules.has(rulePublic)) {
		j.forward(j.fwd(), "failed")
		return
	}
	h := j.w.Header()
	j.client.begin()
	mergeHeader(h, p.header)
	j.c.addStatus(h, cacheStatus{fwd: j.fwd(), fwdStatus: p.status, collapsed: true})
	j.send(p, nil)
}

// replyOwn answers the request whose run has brought a response that is kept:
// with what the handler said to it, which may be more than what is kept, or,
// if that was "not modified", with what is kept. stored: as far as is known.
func (j *job) replyOwn(t *run, e cacheguard.Entry[*response], stored bool) {
	p := e.Value
	h := j.w.Header()
	j.client.begin()
	if t.status == http.StatusNotModified {
		mergeHeader(h, p.header)
		h["Age"] = []string{strconv.FormatInt(ageSeconds(p.age(e.Age)), 10)}
	} else {
		mergeHeader(h, t.sent)
		delete(h, "Trailer") // announced anew
		if tag := p.header["Etag"]; tag != nil && h["Etag"] == nil {
			h["Etag"] = []string{tag[0]} // made here
		}
	}
	if j.c.opts.StripTargets {
		j.c.stripTargets(h)
	}
	j.c.addStatus(h, cacheStatus{fwd: j.fwd(), fwdStatus: t.status, stored: stored, detail: p.unkept})
	j.send(p, nil)
}

func (c *Cache) stripTargets(h http.Header) {
	for _, name := range c.opts.Targets {
		delete(h, name)
	}
}

// send sends a response whose header is there, but for what the request's
// conditions and range make of it. For room see setField.
func (x *exchange) send(p *response, room []string) {
	h := x.w.Header()
	if p.status == http.StatusOK {
		switch {
		case isConditional(x.r) && notModified(x.r, h, time.Now()):
			sendNotModified(x.w)
			return
		case x.r.Method == http.MethodGet && x.r.Header["Range"] != nil && p.trailer == nil && rangeUsable(x.r.Header["Range"]):
			x.sendRange(p.body)
			return
		}
	}
	if p.trailer != nil {
		announce(h, p.trailer)
	} else if bodyAllowed(p.status) {
		setField(h, "Content-Length", p.length, room)
	}
	x.w.WriteHeader(p.status)
	if x.r.Method != http.MethodHead && bodyAllowed(p.status) {
		_, _ = x.w.Write(p.body)
	}
	sendTrailer(h, p.trailer)
}

// sendNotModified sends a 304 with the fields that it must have (RFC 9110
// 15.4.5), and without those that describe a body.
func sendNotModified(w http.ResponseWriter) {
	h := w.Header()
	for _, name := range []string{"Content-Type", "Content-Length", "Content-Encoding", "Content-Language", "Content-Range"} {
		delete(h, name)
	}
	w.WriteHeader(http.StatusNotModified)
}

// sendRange sends the part of the body that the request asks for, if its
// If-Range allows, by the rules that http.ServeContent keeps.
func (x *exchange) sendRange(body []byte) {
	modified, _ := parseDate(x.w.Header().Get("Last-Modified"), time.Now())
	r := x.r.Clone(x.r.Context())
	for _, name := range []string{"If-None-Match", "If-Modified-Since"} {
		delete(r.Header, name) // they have been answered
	}
	http.ServeContent(x.w, r, "", modified, bytes.NewReader(body))
}

// stream answers a request with its run while that goes on, and to its end.
// What the handler did in the end, is done here: a panic is raised, a short
// body stays short.
func (j *job) stream(t *run, own bool) {
	if s := t.storing.Load(); own && s != nil && t.status == http.StatusNotModified {
		j.replyOwn(t, cacheguard.Entry[*response]{Value: &s.shown}, false)
		return
	}
	status, header, ok := t.head(j.r.Context())
	if !ok {
		if j.r.Context().Err() == nil {
			<-t.done
			_, failure := t.outcome()
			raise(failure)
		}
		return
	}
	t.mu.Lock()
	hijacked, v := t.hijacked, t.verdict
	t.mu.Unlock()
	if hijacked {
		<-t.done
		return
	}
	h := j.w.Header()
	if !own {
		header = j.c.opts.kept(header, v.omit)
	}
	j.client.begin()
	mergeHeader(h, header)
	if own && j.c.opts.StripTargets {
		j.c.stripTargets(h)
	}
	j.c.addStatus(h, cacheStatus{fwd: j.fwd(), fwdStatus: status, collapsed: !own, detail: v.reason})
	if status == http.StatusOK && isConditional(j.r) && notModified(j.r, h, time.Now()) {
		sendNotModified(j.w)
		return
	}
	j.w.WriteHeader(status)
	if failure := j.copy(t); failure != nil && own {
		raise(failure)
	} else if failure != nil {
		panic(http.ErrAbortHandler) // what others get must not look whole either
	}
}

// copy sends the body of a run as it comes, until the handler has ended or the
// client has left. It returns how the handler failed, if the answer must not
// look whole.
func (j *job) copy(t *run) error {
	rc := http.NewResponseController(j.w)
	var offset int64
	flushed := false
	for {
		p, flush, ended, changed := t.next(offset)
		if len(p) > 0 {
			if _, err := j.w.Write(p); err != nil {
				return nil
			}
			offset += int64(len(p))
			t.read(j, offset)
			flushed = false
			if !flush {
				continue
			}
		}
		switch {
		case flush && !flushed:
			_ = rc.Flush()
			flushed = true
		case ended:
			return j.conclude(t)
		default:
			select {
			case <-changed:
			case <-j.r.Context().Done():
				return nil
			}
		}
	}
}

// conclude ends an answer as its handler did. One that is shorter than its
// Content-Length is cut off by the server.
func (j *job) conclude(t *run) error {
	_, failure := t.outcome()
	if _, short := failure.(errIncomplete); failure != nil && !short {
		return failure
	}
	h := j.w.Header()
	for name, values := range t.trailer {
		h[http.TrailerPrefix+name] = values
	}
	return nil
}

// announce declares the trailer fields that will come.
func announce(h, trailer http.Header) {
	for _, name := range sortedNames(trailer) {
		h.Add("Trailer", name)
	}
}

func sendTrailer(h, trailer http.Header) {
	for name, values := range trailer {
		h[name] = append([]string(nil), values...)
	}
}

// mergeHeader puts an answer's fields into the live header. What middlewares in
// front of the cache have put there stays, if the answer has no such field,
// or if it is a list that both add to. Every slice is the receiver's own.
func mergeHeader(dst, src http.Header) {
	n := 0
	for _, values := range src {
		n += len(values)
	}
	backing := make([]string, 0, n)
	for name, values := range src {
		start := len(backing)
		backing = append(backing, values...)
		mergeField(dst, name, backing[start:len(backing):len(backing)])
	}
}

// mergeField puts one field into the live header. own is its receiver's.
func mergeField(dst http.Header, name string, own []string) {
	if name == "Vary" || name == "Set-Cookie" {
		own = append(dst[name], own...)
	}
	dst[name] = own
}

// replay is mergeHeader of a stored response's header. It returns room for extra
// more values.
func (p *response) replay(dst http.Header, extra int) (room []string) {
	backing := make([]string, len(p.values), len(p.values)+extra)
	copy(backing, p.values)
	start := 0
	for _, f := range p.fields {
		mergeField(dst, f.name, backing[start:f.end:f.end])
		start = f.end
	}
	return backing[start:]
}

// setField sets a field to one value, which it keeps in room if there is some,
// and returns what is left of that.
func setField(h http.Header, name, value string, room []string) []string {
	if cap(room) == 0 {
		h[name] = []string{value}
		return nil
	}
	room = append(room, value)
	h[name] = room[:1:1]
	return room[1:]
}

// readAlong answers a request with the run of another while that goes on. It
// reports false if the answer turns out not to be for it: then it waits on.
func (j *job) readAlong(t *run) bool {
	status, header, ok := t.head(j.r.Context())
	if !ok || status != http.StatusOK {
		return j.r.Context().Err() != nil
	}
	t.mu.Lock()
	v := t.verdict
	t.mu.Unlock()
	names, _ := varyNames(header["Vary"])
	for _, s := range j.c.keys.selectors(t.req, names) {
		if j.c.keys.selector(j.r, s.name) != s {
			return false
		}
	}
	if v.class != classStore || (j.adm.credentialed && !v.rules.has(rulePublic)) {
		return false
	}
	j.stream(t, false)
	return true
}
