package sealed_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/sealed"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

// A guard that answers with nothing that was not written by a holder of the
// key. A service has its key from where it has its other secrets.
func Example() {
	key := make([]byte, 32)
	_, _ = rand.Read(key)

	s, err := sealed.New(memstore.New(memstore.Options{}), sealed.Options{Keys: [][]byte{key}})
	if err != nil {
		log.Fatal(err)
	}
	prices, err := cacheguard.New(s, cacheguard.Options[int]{Namespace: "prices"})
	if err != nil {
		log.Fatal(err)
	}
	defer prices.Close()

	cents, err := prices.Get(context.Background(), "lamp", func(context.Context, string) (int, error) { return 1990, nil })
	fmt.Println(cents, err)
	// Output: 1990 <nil>
}
