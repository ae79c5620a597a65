package middleware

import (
	"net/http"
	"strconv"
	"time"
)

// response is what is kept of a handler's answer. It is shared by everybody
// who is answered from it: nothing in it is changed once it is made, and
// nothing of it is lent to a live response (see mergeHeader).
type response struct {
	status  int
	header  http.Header // as the handler sent it, less what must not be kept
	body    []byte
	trailer http.Header // nil: none

	// selecting are the request fields that the answer was selected by, with
	// their values in the request that brought it: its Vary, and the URL as
	// the handler saw it.
	selecting []selector

	// branch marks one life of this entry's variants: the keys of the other
	// variants hold it, so that when it goes, they are gone.
	branch branch

	// epoch changes when the entry was made stale by hand; variants of an
	// older epoch are stale too.
	epoch branch

	// parent is the branch and epoch of the entry above, for a variant.
	parent, parentEpoch branch

	base     time.Duration // its age when it came; see baseAge
	lifetime time.Duration // how long it is fresh from then; zero: at once stale
	swr, sie time.Duration // how long it may be served stale
	grace    time.Duration // how long it is kept after its lifetime
	rules    rules

	tags []tag

	// fields are those of header, as a list, and values their values, one after
	// the other: walking a map takes longer than all else that a hit does with
	// it.
	fields []field
	values []string
	length string // of body, as Content-Length gives it

	// madeBy and curtain tell, in the process that made the response, who was
	// there before its run began (see audience). They are not stored.
	madeBy  *Cache
	curtain uint64

	// unkept is why it is not stored although its header allows it. It is known
	// in the process that made the response alone.
	unkept string
}

// field is a field of a stored header. Its values end at end, and begin where
// those of the one before end.
type field struct {
	name string
	end  int
}

// ready completes a response whose header and body are complete.
func (p *response) ready() *response {
	p.length = strconv.Itoa(len(p.body))
	p.fields, p.values = make([]field, 0, len(p.header)), nil
	for _, name := range sortedNames(p.header) {
		p.values = append(p.values, p.header[name]...)
		p.fields = append(p.fields, field{name, len(p.values)})
	}
	return p
}

// rules are a response's limits on its own reuse.
type rules uint8

const (
	ruleValidate   rules = 1 << iota // no-cache: never without asking
	ruleNeverStale                   // must-revalidate, proxy-revalidate, s-maxage: not once stale
	rulePublic                       // also for requests with credentials (RFC 9111 3.5)
	ruleTransform                    // no-transform
	ruleHere                         // only for those of its process who were there before its run began
	ruleGone                         // purged: only the entry's place above its variants is left
	ruleOlder                        // a copy of an older entry: when that was written says nothing of when the handler was asked
)

func (r rules) has(rule rules) bool { return r&rule != 0 }

// tag names what a response is made of, with the generation of that name that
// it was made under.
type tag struct {
	name string
	hard string // a purge of the name changes it: the response is gone
	soft string // an expiry of the name changes it: the response is stale
}

// age of the response when since has gone by since its request was sent.
func (p *response) age(since time.Duration) time.Duration { return p.base + since }

// ttl is how long the response is fresh from the time its request was sent.
func (p *response) ttl() time.Duration { return max(p.lifetime-p.base, 0) }

// keepHere makes the response one for those of this process who were there
// before its run began: whether it may be given to anybody later, or elsewhere,
// depends on what the store would have to say.
func (p *response) keepHere() {
	p.lifetime, p.grace, p.tags = 0, 0, nil
	p.rules |= ruleHere
}

// handOver tells a response that is given to those who waited for it and not
// kept for anybody else.
func (p *response) handOver() bool { return p.lifetime == 0 && p.grace == 0 }

// etag returns the response's entity tag, or "".
func (p *response) etag() string {
	s, _ := single(p.header["Etag"])
	return s
}

// lastModified returns the response's Last-Modified text, or "".
func (p *response) lastModified() string {
	s, _ := single(p.header["Last-Modified"])
	return s
}

// validator reports whether the response can be asked about.
func (p *response) validator() bool { return p.etag() != "" || p.lastModified() != "" }

// bodyAllowed reports whether an answer of this status may have a body
// (RFC 9110 6.4.1).
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
