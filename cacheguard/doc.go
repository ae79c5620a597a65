// Package cacheguard rebuilds a missing or expired cache entry once for a whole
// fleet of processes, instead of once for every request that misses it, and
// keeps old values from landing on newer ones.
//
// The usual path, with the loader that asks your database:
//
//	s, err := redisstore.New(rdb, redisstore.Options{})
//	products, err := cacheguard.New(s, cacheguard.Options[Product]{
//		Namespace: "products",
//		Lifetime:  cacheguard.Lifetime{TTL: time.Minute, Grace: 10 * time.Minute},
//	})
//	p, err := products.Get(ctx, id, loadProduct)
//
// and, after a write has been committed:
//
//	err = products.Invalidate(ctx, id)
//
// Over memstore instead of redisstore, the same guard serves one process. For
// HTTP answers there is package middleware, for jobs and fenced writes package
// lease.
//
// # The life of a key
//
// Fresh, for [Lifetime].TTL: Get answers from the store, in one round trip, or
// from the near cache ([Near]) without one.
//
// Early: towards the end of that time, the sooner the dearer the load was, one
// process in the fleet rebuilds the entry in the background
// ([Options].EarlyRefresh). Nobody waits.
//
// Stale, for [Lifetime].Grace: everybody gets the old value at once, while one
// process rebuilds it. If the origin fails, it stays as long as that.
//
// Gone, or never there: one process loads; everybody else in the fleet waits
// for its value ([Options].WaitLimit at most). If the process crashes, one other
// takes over when its lease has run out.
//
// Absent: the origin said [ErrNotFound]. That is an answer; it is kept for
// [Options].NegativeTTL.
//
// Cooling: the load failed. This process leaves the key alone for
// [Options].Cooldown; another one may try at once, and if that fails too, the
// whole fleet leaves it alone. Callers get a [CooldownError], or what is stale.
//
// Written: [Guard.Invalidate] removes the entry, [Guard.Expire] makes it stale,
// [Guard.Set] and [Guard.Update] replace it. Whatever is being loaded anywhere
// at that moment is not stored over it.
//
// # The protocol, in eight lines
//
//  1. Look: read the entry. Fresh or stale, it is the answer.
//  2. Join: callers of one key in one process share one flight.
//  3. Claim: look again and take the lease, in one atomic step, with a fencing token higher than any before.
//  4. Follow: if another process holds the lease, wait for its message, poll in case it is lost, and claim again when the lease has run out.
//  5. Load: ask the origin, while a watchdog renews the lease.
//  6. Fill: store the value, unless the key was written or invalidated since the claim: the fence decides, not the lease.
//  7. Wake: a message to those who wait; nobody is told whose key nobody waits for.
//  8. Fail: end the lease and count the failure; one other process gives a second opinion.
//
// The lease only saves work, and may be lost (a pause, a failover); the fence
// keeps old values out when it is. docs/protocol.md has the schedules that each
// rule is there for.
//
// # What may fail
//
// A caller whose context ends fails alone: the load is everybody's. A loader
// that panics is a [PanicError] to those who wait. A store that is out of reach
// costs its callers a time-out or two, and then nothing: each process loads for
// itself, at most once per key at a time ([Outage]). A write that could not
// reach the store returns an error and is repeated in the background.
//
// [Hooks] tell what happens; promguard, slogguard and otelguard make metrics,
// logs and traces of them.
package cacheguard
