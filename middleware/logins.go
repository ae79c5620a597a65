package middleware

import "time"

// What is remembered of the answers to requests with credentials (Authorization
// that is not part of the key), of one URL in one process. Such a request must
// not wait for, or be answered by, what was made for another, unless the answer
// allows it (RFC 9111 3.5); and whether it does has to be known before it
// queues. So one at a time finds out, the others go past the cache; and for as
// long as such answers are known to be for everybody, they all use it.
const (
	loginProbed  byte = iota + 1 // one request is finding out
	loginPrivate                 // the last answer was for its own client alone
	loginPublic                  // the last answer was for everybody
)

// mayProbe decides whether a request with credentials may use the cache, and
// whether it is the one that finds out.
func (c *Cache) mayProbe(key string) (may, probing bool) {
	was := c.logins.claim(key, loginProbed, c.opts.FillLimit)
	return was == 0 || was == loginPublic, was == 0
}

// probePatience is how long the one that finds out waits for a run that is not
// its own; then it goes past the cache too, and learns from that. Without it
// the processes of a fleet would find out one after the other, for what one has
// learned says nothing about requests without credentials and so is not kept
// where others see it:
//
//	A: runs, for its own client alone
//	B: .............................. runs, for its own client alone
//	C: ............................................................. runs
const probePatience = 50 * time.Millisecond

// learn takes what a request with credentials has found out.
func (j *job) learn(public bool) {
	if !j.adm.credentialed {
		return
	}
	what := loginPrivate
	if public {
		what = loginPublic
	}
	j.c.logins.note(j.url, what, j.c.opts.PassFor)
}
