package lease_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/lease"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// A job that each process of a fleet starts and one of them is to run.
func ExampleLocker_Do() {
	locker := lease.New(memstore.New(memstore.Options{}), lease.Options{Namespace: "jobs"})
	defer locker.Close()

	err := locker.Do(context.Background(), "invoices/2026-11", func(ctx context.Context, token store.Token) error {
		// ctx ends before the lease can lapse; token fences what is written.
		fmt.Println("sending invoices, under a token:", token > 0)
		return ctx.Err()
	})
	fmt.Println("done:", err)
	// Output:
	// sending invoices, under a token: true
	// done: <nil>
}

// Waiting as long as a context lasts, and no longer.
func ExampleLocker_Acquire() {
	shared := memstore.New(memstore.Options{})
	mine := lease.New(shared, lease.Options{})
	theirs := lease.New(shared, lease.Options{Owner: "worker-7"})
	defer mine.Close()
	defer theirs.Close()

	held, err := theirs.Acquire(context.Background(), "import")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer held.Release(context.Background())

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err = mine.Acquire(ctx, "import")
	if who, ok := errors.AsType[*store.HeldError](err); ok {
		fmt.Println("held by worker-7:", strings.HasPrefix(who.Holder.Process(), "worker-7-"))
		fmt.Println("for another ten seconds at most:", who.Left <= 10*time.Second)
	}
	fmt.Println("gave up:", errors.Is(err, context.DeadlineExceeded))
	// Output:
	// held by worker-7: true
	// for another ten seconds at most: true
	// gave up: true
}

// Work that is to be skipped when another process is at it.
func ExampleLocker_TryAcquire() {
	shared := memstore.New(memstore.Options{})
	mine := lease.New(shared, lease.Options{})
	theirs := lease.New(shared, lease.Options{})
	defer mine.Close()
	defer theirs.Close()

	held, err := theirs.TryAcquire(context.Background(), "cleanup")
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = mine.TryAcquire(context.Background(), "cleanup")
	fmt.Println("skipped:", errors.Is(err, store.ErrHeld))

	held.Release(context.Background())
	again, err := mine.TryAcquire(context.Background(), "cleanup")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("a later lease has a higher token:", again.Token() > held.Token())
	again.Release(context.Background())
	// Output:
	// skipped: true
	// a later lease has a higher token: true
}

// A run that must not be repeated within the lease's length, even by another
// process, however short it was.
func ExampleLease_Orphan() {
	shared := memstore.New(memstore.Options{})
	locker := lease.New(shared, lease.Options{Length: time.Minute})
	defer locker.Close()

	for range 2 {
		held, err := locker.TryAcquire(context.Background(), "hourly report")
		if errors.Is(err, store.ErrHeld) {
			fmt.Println("ran already")
			continue
		}
		fmt.Println("running")
		held.Orphan() // instead of Release
	}
	// Output:
	// running
	// ran already
}

// A function deep inside takes the token from its context.
func ExampleTokenFromContext() {
	locker := lease.New(memstore.New(memstore.Options{}), lease.Options{})
	defer locker.Close()

	save := func(ctx context.Context) error {
		token, ok := lease.TokenFromContext(ctx)
		if !ok {
			return errors.New("stock is written under a lease only")
		}
		// UPDATE stock SET n = n - 1, last_token = $2 WHERE id = $1 AND last_token < $2
		fmt.Println("writing under a token:", token > 0)
		return nil
	}
	fmt.Println(save(context.Background()))
	locker.Do(context.Background(), "stock/7", func(ctx context.Context, _ store.Token) error { return save(ctx) })
	// Output:
	// stock is written under a lease only
	// writing under a token: true
}

// A holder that was paused past its lease comes back and writes: the resource
// refuses it, since one with a higher token was there.
func ExampleFence() {
	var stock struct {
		lease.Fence
		n int
	}
	write := func(token store.Token, n int) error {
		return stock.Admit(token, func() error { stock.n = n; return nil })
	}

	const zombie, successor = store.Token(41), store.Token(42)
	fmt.Println(write(successor, 9))
	err := write(zombie, 10)
	fmt.Println("refused:", errors.Is(err, store.ErrFenced))
	fmt.Println("stock:", stock.n)
	// Output:
	// <nil>
	// refused: true
	// stock: 9
}

// The work runs under the lease's context, which ends before the lease can
// lapse.
func ExampleLease_Context() {
	locker := lease.New(memstore.New(memstore.Options{}), lease.Options{})
	defer locker.Close()

	held, err := locker.Acquire(context.Background(), "import")
	if err != nil {
		fmt.Println(err)
		return
	}
	work := held.Context()
	fmt.Println("while it is held:", context.Cause(work))
	held.Release(context.Background())
	fmt.Println("afterwards:", context.Cause(work))
	// Output:
	// while it is held: <nil>
	// afterwards: context canceled
}
