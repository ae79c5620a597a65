package slogguard_test

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/slogguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

func Example() {
	untimed := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "took" {
			return slog.Attr{}
		}
		return a
	}
	logs := slogguard.New(slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: untimed})), slogguard.Options{})
	products, err := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[string]{
		Namespace: "products",
		Hooks:     logs.Hooks("products"),
	})
	if err != nil {
		panic(err)
	}
	defer products.Close()
	logs.Advise("this is where redisstore's Store.Advice goes")

	load := func(context.Context, string) (string, error) { return "", errors.New("no row for ann@example.org") }
	_, _ = products.Get(context.Background(), "1", load) // the log says that it failed, not whose it was
	// Output:
	// level=WARN msg="cacheguard: a setting is seldom meant" advice="this is where redisstore's Store.Advice goes"
	// level=ERROR msg="cacheguard: a load failed" guard=products
}
