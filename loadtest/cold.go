package main

import (
	"context"
	"fmt"
)

// cold: a key that nobody has. Every caller of every process must wait for the
// origin; one question to it is enough for all.
var cold = scenario{
	name:  "cold",
	about: "a key that no cache has is asked for by all callers of all processes at one instant",
	short: func(o options) string {
		return fmt.Sprintf("%d callers ask at once for a product that no cache has", o.callers())
	},
	lifetime: longLife,
	round: func(ctx context.Context, sh *show, n int) (round, error) {
		key := sh.key(n)
		sh.origin.create(key)
		r, err := sh.measured(ctx, n, sh.opts.load)
		r.judge(1, 1)
		return r, err
	},
	promises: []promise{oneLoad, rightAnswers, nearFloor, fewCommands},
}
