package middleware

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// headSaid is what a HEAD that the handler answers says of the GET answer that is
// kept and that the HEAD could have been answered by (RFC 9110 9.3.2, RFC 9111
// 4.3.5).
type headSaid struct {
	kept   cacheguard.Entry[*response]
	before http.Header // of the writer, before the handler ran: middlewares in front have set that
	says   headWord
	sent   http.Header // what the handler has set
}

// headWord is the gist of it.
type headWord uint8

const (
	headNothing headWord = iota // no word about what is kept
	headSame                    // what is kept still holds
	headOther                   // there is something else now
)

// forwardHead runs the handler for a HEAD that what is kept, e, is not good
// enough for.
func (j *job) forwardHead(e cacheguard.Entry[*response]) {
	var head *headSaid
	if e.State != 0 && j.r.Method == http.MethodHead && !j.adm.credentialed && !expiredByHand(e) && !e.Value.rules.has(ruleGone) &&
		j.c.keys.selects(j.r, e.Value.selecting) {
		head = &headSaid{kept: e, before: j.w.Header().Clone()}
	}
	j.forwardSaying(j.fwd(), "", head)
}

// hear takes the answer's header.
func (s *headSaid) hear(status int, h http.Header) {
	if status != http.StatusOK {
		return
	}
	s.sent = added(s.before, h)
	s.says = compareHead(s.kept.Value, s.sent)
}

// added returns the fields that were set, or added to, since before.
func added(before, h http.Header) http.Header {
	sent := make(http.Header)
	for name, values := range h {
		old := before[name]
		switch {
		case slices.Equal(old, values):
		case len(values) > len(old) && slices.Equal(old, values[:len(old)]):
			sent[name] = slices.Clone(values[len(old):])
		default:
			sent[name] = slices.Clone(values)
		}
	}
	if sent["Date"] == nil {
		sent["Date"] = []string{time.Now().UTC().Format(http.TimeFormat)} // as the server will say
	}
	return sent
}

// compareHead tells whether the answer to a HEAD is about what is kept: each
// validator that it has is the same, and its Content-Length, if there is one. An
// answer without validators vouches for nothing: of two pages of the same length
// it would say the same.
func compareHead(p *response, h http.Header) headWord {
	tag, tagged := single(h["Etag"])
	modified, dated := single(h["Last-Modified"])
	length, long := single(h["Content-Length"])
	switch {
	case tagged && weak(tag) != weak(p.etag()), dated && modified != p.lastModified(), long && length != strconv.Itoa(len(p.body)):
		return headOther
	case tagged, dated:
		return headSame
	}
	return headNothing
}

// headPatience is how long a HEAD's answer waits for a run of the handler that is
// under way for the same key. That brings something newer anyway.
const headPatience = 50 * time.Millisecond

// errOverheard: what a HEAD spoke of is not there any more.
var errOverheard = errors.New("middleware: a HEAD spoke of an answer that is no longer kept")

// heed carries out what a HEAD that was asked at asked has said: what it vouches
// for is fresh again, with the fields it brought; what it contradicts is stale.
//
// It claims the key like a run, and writes only if what it spoke of is still
// there then. The fence does the rest:
//
//	HEAD asked    GET's fill lands (B)    claim: B is there, not A: nothing is written
//	HEAD asked    claim: A is there       invalidate: the HEAD's fill is refused
func (j *job) heed(s *headSaid, asked time.Time) {
	if s.says == headNothing || (s.says == headOther && s.kept.Left <= 0) {
		return
	}
	same := func(e cacheguard.Entry[*response]) bool {
		return e.State != 0 && e.Token == s.kept.Token && !expiredByHand(e)
	}
	f := j.headFill(s)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(j.r.Context()), headPatience)
	defer cancel()
	_, _ = j.c.guard.Do(ctx, j.key, cacheguard.Ask[*response]{ // a store that is out of reach is the guard's to tell
		Accept: func(e cacheguard.Entry[*response]) cacheguard.Use {
			if same(e) {
				return cacheguard.Reload
			}
			return cacheguard.Take // what it spoke of is gone
		},
		Prepare: func() cacheguard.Reloader[*response] {
			return func(_ context.Context, prev cacheguard.Entry[*response]) (*response, error) {
				if !same(prev) {
					return nil, &abortedError{cause: errOverheard}
				}
				return f.overhear(s, prev, asked), nil
			}
		},
	})
}

// headFill is as much of a fill as it takes to judge an answer's header.
func (j *job) headFill(s *headSaid) *fill {
	return &fill{
		c: j.c, req: j.r, policy: j.policy, adm: j.adm, key: j.key, above: j.above,
		outer: http.Header{"Cache-Control": s.before["Cache-Control"]},
	}
}

// overhear makes what a HEAD's answer makes of what is kept.
func (f *fill) overhear(s *headSaid, prev cacheguard.Entry[*response], asked time.Time) *response {
	known := prev.Value
	if s.says == headOther {
		return spent(prev)
	}
	merged := f.merge(known, s.sent)
	v := f.judge(nil, prev, asked)(known.status, merged)
	if v.class != classStore {
		return spent(prev) // it may not be kept any longer
	}
	p := f.response(prev, v, merged)
	p.status, p.body, p.trailer, p.tags = known.status, known.body, known.trailer, known.tags
	// The guard counts its age from the claim, which came after the question.
	p.base += time.Since(asked)
	p.rules |= ruleOlder
	return p.ready()
}
