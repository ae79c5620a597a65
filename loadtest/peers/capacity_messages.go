package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// publish measures what a message of a wake-up's size costs Redis.
func publish(ctx context.Context, client *redis.Client, addr string, subscribers int) (p published, err error) {
	const channel, messages = "peers-capacity", 300
	var all sync.WaitGroup
	defer all.Wait()
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range subscribers {
		conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
		if err != nil {
			return p, err
		}
		conns = append(conns, conn)
		if _, err := fmt.Fprintf(conn, "SUBSCRIBE %s\r\n", channel); err != nil {
			return p, err
		}
		r := bufio.NewReaderSize(conn, 1<<10)
		if _, err := r.ReadString(':'); err != nil { // the confirmation
			return p, err
		}
		all.Go(func() { _, _ = r.WriteTo(io.Discard) })
	}
	before, err := stats(ctx, client)
	if err != nil {
		return p, err
	}
	for range messages {
		n, err := client.Publish(ctx, channel, make([]byte, 40)).Result()
		if err != nil {
			return p, err
		}
		if n != int64(subscribers) {
			return p, fmt.Errorf("a message reached %d", n)
		}
	}
	after, err := stats(ctx, client)
	return published{subscribers, after.since(before).CPU / messages}, err
}
