package cacheguard_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// Several keys at once: one read of the store, one question to the origin for
// those that are missing.
func ExampleGuard_GetMany() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{})
	defer guard.Close()
	ctx := context.Background()
	_ = guard.Set(ctx, "1", "lamp")

	load := func(_ context.Context, ids []string) (map[string]string, error) {
		slices.Sort(ids)
		fmt.Println("asked for", ids) // SELECT ... WHERE id = ANY($1)
		return map[string]string{"2": "chair"}, nil
	}
	found, err := guard.GetMany(ctx, []string{"1", "2", "99"}, load)
	for _, id := range slices.Sorted(maps.Keys(found)) {
		fmt.Println(id, found[id])
	}
	fmt.Println(err)
	// Output:
	// asked for [2 99]
	// 1 lamp
	// 2 chair
	// <nil>
}

// A near hit first, without what an answer from anywhere else needs: here the
// reader of a document, who is only let in if it is of her team.
func ExampleGuard_Near() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{
		Near: cacheguard.Near{MaxEntries: 1000},
	})
	defer guard.Close()
	ctx := context.Background()
	ofRed := func(e cacheguard.Entry[string]) bool { return strings.HasPrefix(e.Value, "red:") }

	_, ok := guard.Near(ctx, "doc/1", ofRed)
	fmt.Println(ok)
	_, _ = guard.Get(ctx, "doc/1", func(context.Context, string) (string, error) { return "red: plans", nil })
	e, ok := guard.Near(ctx, "doc/1", ofRed)
	fmt.Println(e.Value, ok)
	// Output:
	// false
	// red: plans true
}

// Some of the keys failed: the others are there.
func ExampleManyError() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{})
	defer guard.Close()

	load := func(context.Context, []string) (map[string]string, error) {
		failed := map[string]error{"2": errors.New("shard 2 is down")}
		return map[string]string{"1": "lamp"}, &cacheguard.ManyError{Errs: failed}
	}
	found, err := guard.GetMany(context.Background(), []string{"1", "2"}, load)
	fmt.Println(found)
	if some, ok := errors.AsType[*cacheguard.ManyError](err); ok {
		fmt.Println(some.Errs["2"])
	}
	// Output:
	// map[1:lamp]
	// shard 2 is down
}

// A failed load is not repeated at once: callers are told how long the key is
// left alone.
func ExampleCooldownError() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{Cooldown: time.Minute})
	defer guard.Close()
	ctx := context.Background()

	load := func(context.Context, string) (string, error) { return "", errors.New("database is down") }
	_, err := guard.Get(ctx, "1", load)
	fmt.Println(err)

	_, err = guard.Get(ctx, "1", load)
	if cooling, ok := errors.AsType[*cacheguard.CooldownError](err); ok {
		fmt.Println(errors.Is(err, cacheguard.ErrCooldown), cooling.Left > 50*time.Second, cooling.Reason)
	}
	// Output:
	// database is down
	// true true database is down
}

// A result that is for its caller alone: those who waited load for themselves,
// all at once, and so does who comes in the next ten seconds.
func ExamplePassError() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{})
	defer guard.Close()
	ctx := context.Background()

	load := func(context.Context, string) (string, error) {
		fmt.Println("loaded")
		return "for you alone", &cacheguard.PassError{For: 10 * time.Second}
	}
	for range 2 {
		v, err := guard.Get(ctx, "basket", load)
		fmt.Println(v, err)
	}
	// Output:
	// loaded
	// for you alone <nil>
	// loaded
	// for you alone <nil>
}

// Hooks are told what happens. Each is optional.
func ExampleHooks() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{
		Hooks: cacheguard.Hooks{
			Load: func(l cacheguard.LoadInfo) { fmt.Println("asked the origin, error:", l.Err) },
			Fill: func(f cacheguard.FillInfo) { fmt.Println("stored", f.Size, "bytes, error:", f.Err) },
		},
	})
	_, _ = guard.Get(context.Background(), "1", loadProduct)
	guard.Close() // waits for the hooks, too
	// Output:
	// loaded 1
	// asked the origin, error: <nil>
	// stored 6 bytes, error: <nil>
}

// Several may listen to one guard.
func ExampleJoinHooks() {
	tell := func(who string) cacheguard.Hooks {
		return cacheguard.Hooks{Answer: func(a cacheguard.AnswerInfo) { fmt.Println(who, a.State) }}
	}
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{
		Hooks: cacheguard.JoinHooks(tell("metrics:"), tell("logs:")),
	})
	defer guard.Close()
	_ = guard.Set(context.Background(), "1", "lamp")
	_, _ = guard.Get(context.Background(), "1", loadProduct)
	// Output:
	// metrics: fresh
	// logs: fresh
}

// Settings that are allowed and seldom meant, for the log of a process that
// starts.
func ExampleSettings_Advice() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{
		Cooldown: -1,
		Hooks: cacheguard.Hooks{Opened: func(info cacheguard.GuardInfo) func() {
			for _, sentence := range info.Settings.Advice() {
				fmt.Println(strings.Contains(strings.ToLower(sentence), "cooldown"))
			}
			return nil
		}},
	})
	guard.Close()
	// Output:
	// true
}

// Values that are bytes already are stored as they are.
func ExampleBytes() {
	guard, _ := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[[]byte]{Codec: cacheguard.Bytes()})
	defer guard.Close()
	page, err := guard.Get(context.Background(), "/", func(context.Context, string) ([]byte, error) {
		return []byte("<!doctype html>"), nil
	})
	fmt.Printf("%s %v\n", page, err)
	// Output:
	// <!doctype html> <nil>
}
