package middleware

import (
	"crypto/sha256"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// oneOffs is what a process remembers of the entries whose variants are asked
// for once each, such as those of a page with Vary: X-User. A lease, a seat and a
// fill for such a variant is work for the store that is of use to nobody. So, for
// as long as PassFor says, a variant of such an entry that this process has not
// been asked for yet is looked for in the store and, if it is not there, made for
// its own client alone, like what is private. Whoever asks for it again shows
// that it is worth keeping, and it is kept like any other.
//
// It is learned from those who wait for one answer: at least oneOffCrowd of them,
// and no two select the same variant. It is unlearned when two get the same one
// from a run. It is not learned from a row of requests that came one
// after the other: that may be somebody who fetches each variant once.
type oneOffs struct {
	above recent // by the key of the entry above the variants
	asked recent // variants that were asked for, by a digest of their keys
}

// What is remembered of an entry above variants.
const (
	variantsShared byte = iota + 1 // two who waited selected the same one
	variantsOneOff                 // of many who waited, each selected another
)

const (
	// oneOffCrowd is how many have to wait. That so many of the readers of a page
	// in eight languages, each as common, differ all is a chance of one in 400;
	// and then they have nothing to share.
	oneOffCrowd = 8

	// oneOffSample is how many of them are looked at.
	oneOffSample = 64
)

// weigh learns from those who wait for p, which j has just been given and which is
// another variant's. All of them are still waiting, or have called weigh, or
// share: the first to call it finds them all.
func (j *job) weigh(p *response) {
	j.c.oneOffs.above.learn(j.key, j.c.opts.PassFor, func() byte { return j.crowd(p) })
}

// crowd tells whether those who wait for p share its variants, or zero if they
// are too few to tell.
func (j *job) crowd(p *response) byte {
	selected, shared := make(map[string]bool), false
	j.c.audience.visit(j.key, func(waiting *job) (more bool) {
		key, err := j.c.keys.variant(j.key, waiting.r, p)
		if err != nil {
			return true // it goes past the cache
		}
		// Who selects p itself shares it with whoever has run the handler,
		// unless that is the same.
		shared = selected[key] || waiting.run.Load() == nil && j.c.keys.selects(waiting.r, p.selecting)
		selected[key] = true
		return !shared && len(selected) < oneOffSample
	})
	switch {
	case shared:
		return variantsShared
	case len(selected) >= oneOffCrowd:
		return variantsOneOff
	}
	return 0
}

// share learns from j, which is given p by another's run: here are two who have
// selected the same variant.
func (j *job) share(p *response) {
	if len(p.selecting) > 1 { // it has a Vary
		j.c.oneOffs.shared(j.key, j.c.opts.PassFor)
	}
	if j.above != nil {
		j.c.oneOffs.shared(j.aboveKey, j.c.opts.PassFor)
	}
}

func (o *oneOffs) shared(above string, d time.Duration) {
	if o.above.recall(above) != variantsShared {
		o.above.note(above, variantsShared, d)
	}
}

// isOneOff tells whether the variant under key, below the entry under above, is
// likely to be asked for this once.
func (c *Cache) isOneOff(above, key string) bool {
	if c.oneOffs.above.recall(above) != variantsOneOff {
		return false
	}
	digest := sha256.Sum256([]byte(key)) // keys are long, and there may be many
	return c.oneOffs.asked.claim(string(digest[:16]), variantsOneOff, c.opts.PassFor) == 0
}

// passOneOff decides, once j has come from an entry to a variant below it, whether
// that is one of those that are made for their own clients alone. It reports true
// if j has been answered.
func (j *job) passOneOff(e cacheguard.Entry[*response]) bool {
	j.oneOff = j.mayRun() && !j.aboveExpired && j.c.isOneOff(j.aboveKey, j.key)
	if !j.oneOff || !fromFlight(e) {
		return false
	}
	j.forward(j.fwd(), "one-off") // the entry above is new, and nothing is below it yet
	return true
}

// notStored answers a request for such a variant that has looked for it in the
// store. e is what is kept of it and was not good enough, if anything: then it is
// an ordinary variant, and j goes on as for one.
func (j *job) notStored(e cacheguard.Entry[*response]) (again bool) {
	if j.oneOff = false; e.State != 0 {
		return true
	}
	j.forward(j.fwd(), "one-off")
	return false
}

// fromFlight tells an entry that a run has just brought, here or elsewhere, from
// one that was found in the store.
func fromFlight(e cacheguard.Entry[*response]) bool {
	return e.State == cacheguard.Rebuilt || e.State == cacheguard.Followed
}
