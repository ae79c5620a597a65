package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// serverStats are what a Redis counts.
type serverStats struct {
	CPU      float64 // microseconds of its processors
	Commands float64 // those inside scripts too
	Sent     float64 // bytes that it has sent
	Received float64 // bytes that it has got
	Clients  float64
	Memory   float64 // bytes in use
}

// stats asks for them.
func stats(ctx context.Context, client *redis.Client) (s serverStats, err error) {
	text, err := client.Info(ctx, "stats", "cpu", "clients", "memory").Result()
	if err != nil {
		return s, err
	}
	fields := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			fields[name] = v
		}
	}
	for name, into := range map[string]*float64{
		"total_commands_processed": &s.Commands, "total_net_output_bytes": &s.Sent, "total_net_input_bytes": &s.Received,
		"connected_clients": &s.Clients, "used_memory": &s.Memory, "used_cpu_user": &s.CPU,
	} {
		v, ok := fields[name]
		if !ok {
			return s, fmt.Errorf("the server does not tell %s", name)
		}
		*into = v
	}
	s.CPU = (s.CPU + fields["used_cpu_sys"]) * 1e6
	return s, nil
}

// since is what came after an earlier look. Clients and memory are as they are.
func (s serverStats) since(before serverStats) serverStats {
	s.CPU -= before.CPU
	s.Commands -= before.Commands
	s.Sent -= before.Sent
	s.Received -= before.Received
	return s
}

// looking is what one look costs, so that it can be taken off.
func looking(ctx context.Context, client *redis.Client) (s serverStats, err error) {
	const looks = 20
	first, err := stats(ctx, client)
	last := first
	for range looks {
		if err == nil {
			last, err = stats(ctx, client)
		}
	}
	d := last.since(first)
	return serverStats{CPU: d.CPU / looks, Commands: d.Commands / looks, Sent: d.Sent / looks, Received: d.Received / looks}, err
}

// flush empties a Redis.
func flush(ctx context.Context, addr string) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	return client.FlushAll(ctx).Err()
}

// idling is what a second costs in which nothing is asked, beside the looks.
func idling(ctx context.Context, client *redis.Client, look serverStats) (s serverStats, err error) {
	before, err := stats(ctx, client)
	if err != nil {
		return s, err
	}
	begun := time.Now()
	if err := pause(ctx, 1500*time.Millisecond); err != nil {
		return s, err
	}
	after, err := stats(ctx, client)
	return after.since(before).since(look).times(1 / time.Since(begun).Seconds()), err
}

// times is so many of it.
func (s serverStats) times(n float64) serverStats {
	return serverStats{CPU: n * s.CPU, Commands: n * s.Commands, Sent: n * s.Sent, Received: n * s.Received}
}
