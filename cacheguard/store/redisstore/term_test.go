package redisstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Calls share a context, and none of them has more time than the timeout, or
// much less.
func TestATermIsSharedByCallsThatBeginTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 160 * time.Millisecond
		ts := &terms{timeout: timeout}
		defer ts.stop()
		seen := map[context.Context]int{}
		for range 1000 {
			began := time.Now()
			ctx := ts.context(context.Background(), began)
			seen[ctx]++
			deadline, ok := ctx.Deadline()
			if left := deadline.Sub(began); !ok || left > timeout || left <= timeout-timeout/termShare {
				t.Fatalf("a call has %v of %v", left, timeout)
			}
			if err := ctx.Err(); err != nil {
				t.Fatalf("a term that is handed out has ended: %v", err)
			}
			time.Sleep(time.Millisecond)
		}
		if len(seen) != 100 {
			t.Errorf("%d terms for 1,000 calls in as many milliseconds, want one for each ten", len(seen))
		}
		if n := len(ts.all); n > termShare+1 {
			t.Errorf("%d terms are kept, want those that are not over, %d", n, termShare)
		}
	})
}

func TestATermEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ts := &terms{timeout: time.Second}
		began := time.Now()
		ctx := ts.context(context.Background(), began)
		<-ctx.Done()
		if took := time.Since(began); took != time.Second || !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("it ended after %v: %v", took, ctx.Err())
		}
		stopped := ts.context(context.Background(), time.Now())
		ts.stop()
		time.Sleep(time.Minute)
		if stopped.Err() != nil {
			t.Error("an alarm went off after stop")
		}
	})
}

// The client's hooks find what the caller has put into its context.
func TestATermHasItsCallersValues(t *testing.T) {
	type key struct{}
	ts := &terms{timeout: time.Second}
	defer ts.stop()
	now := time.Now()
	plain := ts.context(context.Background(), now)
	ctx := ts.context(context.WithValue(context.Background(), key{}, "value"), now)
	if ctx.Value(key{}) != "value" || plain.Value(key{}) != nil {
		t.Errorf("the values are %v and %v", ctx.Value(key{}), plain.Value(key{}))
	}
	if ctx.Done() != plain.Done() {
		t.Error("a caller with values has a term of its own")
	}
}
