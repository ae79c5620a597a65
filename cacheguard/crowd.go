package cacheguard

import "github.com/cacheguard-go/cacheguard/cacheguard/store"

// A crowd are the callers who came to a key while a read of it was under way that
// then found a stale value. They must not have that answer: they may have seen an
// invalidation return after it was read (P2). But the refresh has to claim, and the
// claim looks, too. So it is sent in place of their read, and if it says that what
// was found before is still there, that is their answer.
//
//	A: reads                         B, C, ...: wait for the next read
//	A's read finds stale, A is told
//	the refresh claims               D: waits for the next read
//	the claim is granted, or another's lease runs: what A has got is still there
//	B, C, ... are told               D's read is sent

// closeCrowd is called when the claim is about to be sent: who comes from now on
// waits for the next read.
func (f *flight[V]) closeCrowd() {
	if f.crowd != nil && !f.sh.send(f.key, f.crowd) {
		f.crowd = nil
	}
}

// tellCrowd tells what the claim has said. If it does not say that the stale value
// is there, they have their read; if the store did not answer, it is not asked once
// more for them.
func (f *flight[V]) tellCrowd(v store.Verdict, err error, a asked) {
	r := f.crowd
	if r == nil {
		return
	}
	f.crowd = nil
	var told released[V]
	next := r
	switch {
	case err != nil:
		r.l = look[V]{found: outage, err: err, upTo: a.before}
		told, _ = f.sh.nothing(f.key, r, f.g.now())
		next = nil
	case v.Same && !a.pending:
		r.l = f.stale.later(f.g.instant(a.at))
		r.l.upTo = a.before
		next, told, _ = f.sh.answered(f.key, r)
		r.first.first = false // nothing was read for it
	}
	told.tell()
	if next != nil {
		f.g.tasks.another()
		go f.g.readAll(f.sh, f.key, next)
	}
}

// abandonCrowd leaves nobody behind when a flight ends that has not come to its
// claim.
func (f *flight[V]) abandonCrowd() {
	if f.crowd == nil {
		return
	}
	told := f.sh.abandonReads(f.key, f.crowd)
	f.crowd = nil
	told.tell()
}
