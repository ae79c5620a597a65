package compressed_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/compressed"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

type article struct{ Title, Text string }

// A guard whose large values are kept compressed.
func Example() {
	codec, err := compressed.New(cacheguard.JSON[article](), compressed.Options{})
	if err != nil {
		log.Fatal(err)
	}
	articles, err := cacheguard.New(memstore.New(memstore.Options{}), cacheguard.Options[article]{Codec: codec})
	if err != nil {
		log.Fatal(err)
	}
	defer articles.Close()

	a, err := articles.Get(context.Background(), "leases", func(context.Context, string) (article, error) {
		return article{Title: "Leases", Text: strings.Repeat("A lease may fail. ", 1000)}, nil
	})
	fmt.Println(a.Title, len(a.Text), err)
	// Output: Leases 18000 <nil>
}
