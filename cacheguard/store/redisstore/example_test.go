package redisstore_test

import (
	"context"
	"fmt"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/redisstore"
)

// The client stays the caller's: it is closed last.
func ExampleNew() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer rdb.Close()
	s, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	products, err := cacheguard.New(s, cacheguard.Options[string]{Namespace: "products"})
	if err != nil {
		log.Fatal(err)
	}
	defer products.Close()
}

// A client that may read from replicas is refused: they answer with what was
// invalidated a moment ago.
func ExampleNew_replicas() {
	rdb := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"localhost:7000"}, RouteByLatency: true})
	defer rdb.Close()
	_, err := redisstore.New(rdb, redisstore.Options{})
	fmt.Println(err != nil)
	// Output:
	// true
}

// At its start, a process asks whether the server permits what is needed, and
// logs what is seldom meant.
func ExampleStore_Check() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer rdb.Close()
	s, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	if err := s.Check(context.Background(), "products"); err != nil {
		log.Fatal(err)
	}
}

func ExampleStore_Advice() {
	rdb := redis.NewClient(&redis.Options{Addr: "localhost:6379", ContextTimeoutEnabled: true})
	defer rdb.Close()
	s, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()
	advice, err := s.Advice(context.Background(), "products")
	for _, sentence := range advice {
		log.Print(sentence)
	}
	if err != nil {
		log.Print(err) // the server could not be asked
	}
}
