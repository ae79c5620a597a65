package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// page is the capacity for people: what was measured, and then what follows
// from it.
func (c capacity) page() page {
	c.perMessage, c.perPublisher = c.messages()
	return page{[]part{{
		name: "capacity",
		about: fmt.Sprintf("%s, %s, redis-server %s on the loopback, %d CPUs for everything; load of the machine at the beginning: %s; took %.0f s.",
			c.Date, c.Go, c.Redis, c.CPUs, c.Load, c.Seconds),
		tables: []table{
			costTable(c.Replicas, "Measured: processes", "processes", func(k cost) string { return fmt.Sprint(k.Processes) },
				"One cold key, 20 callers in each process, a load of 100ms; one storm, on average."),
			costTable(c.Callers, "Measured: callers", "callers of each process", func(k cost) string { return fmt.Sprint(k.Callers) },
				"The same with 4 processes."),
			costTable(c.Times, "Measured: time of a load", "load", loadTime,
				"The same with 4 processes of 20 callers. The first of its length: its lease is that of the shorter loads before, and is renewed; "+
					"those who wait look whenever it would have run out."),
			c.publishTable(), c.clusterTable(), c.unitTable(), c.projection(), c.memory(),
		},
	}}}
}

// serverTime is a dash where the server's own affairs, in so long a time, hide
// what was asked of it.
func serverTime(k cost) string {
	if k.LoadTime >= time.Second || k.Server.CPU <= 0 {
		return "-"
	}
	return number(k.Server.CPU)
}

// loadTime names a row.
func loadTime(k cost) string {
	if k.Untuned {
		return k.LoadTime.String() + ", the first"
	}
	return k.LoadTime.String()
}

func costTable(costs []cost, title, head string, value func(cost) string, notes string) table {
	t := table{title: title, notes: notes + " Sent: commands that each process sent. Redis: its processor time, less what it needs by itself in that time (a dash: that hides it), and the bytes that it received and sent.",
		head: []string{head, "loads", "sent", "Redis µs", "KiB in", "KiB out", "p99 over the load ms"}}
	for _, k := range costs {
		t.rows = append(t.rows, []string{value(k), span(k.Loads), number(k.Sent), serverTime(k),
			number(k.Server.Received / 1024), number(k.Server.Sent / 1024), fmt.Sprintf("%+.1f", k.Over)})
	}
	return t
}

func (c capacity) publishTable() table {
	t := table{title: "Measured: a message", head: []string{"subscribers", "Redis µs"},
		notes: fmt.Sprintf("Each PUBLISH of 40 bytes on its own. From the last two rows: %.1f µs for each subscriber more.", c.perMessage)}
	for _, p := range c.Publish {
		t.rows = append(t.rows, []string{fmt.Sprint(p.Subscribers), number(p.CPU)})
	}
	return t
}

// messages is what one subscriber more costs, and what a message costs besides.
func (c capacity) messages() (each, besides float64) {
	n := len(c.Publish)
	a, b := c.Publish[n-2], c.Publish[n-1]
	each = (b.CPU - a.CPU) / float64(b.Subscribers-a.Subscribers)
	return each, math.Max(0, b.CPU-each*float64(b.Subscribers))
}

// follower is what one process more costs Redis that waits for a key, and how
// many commands it sends: its look, its claim, and the message to it, with which
// a small value comes along if many wait. From the largest and the smallest
// fleet.
func (c capacity) follower() (micros, commands float64) {
	a, b := c.Replicas[0], c.Replicas[len(c.Replicas)-1]
	more := float64(b.Processes - a.Processes)
	return (b.Server.CPU - a.Server.CPU) / more, (b.Sent*float64(b.Processes) - a.Sent*float64(a.Processes)) / more
}

func (c capacity) unitTable() table {
	alone := c.Replicas[0].Sent
	follows, asks := c.follower()
	return table{title: "Measured: units", head: []string{"what", "costs"},
		notes: fmt.Sprintf("With %d keys of 1 KiB, each rebuilt and then read once by one of 4 processes.", c.Keys),
		rows: [][]string{
			{"a hit", fmt.Sprintf("1 command, %.1f µs of Redis", c.ReadCPU)},
			{"a rebuild that no other process waits for", fmt.Sprintf("%s commands, %.1f µs of Redis", number(alone), c.RebuildCPU)},
			{"one process more that waits for a rebuild", fmt.Sprintf("%s commands, %.1f µs of Redis, with the message to it", number(asks), follows)},
			{"a message to a process that does not wait", fmt.Sprintf("%.1f µs of Redis", c.perMessage)},
			{"a process that does nothing", fmt.Sprintf("%.2f commands a second", c.Idle)},
			{"an entry of 1 KiB", fmt.Sprintf("%.0f bytes of Redis", c.EntryBytes)},
			{"a lease record, for LoadLimit after its last use", fmt.Sprintf("%.0f bytes of Redis (%.0f s left when looked at)", c.RecordBytes, c.RecordLife.Seconds())},
			{"both, from used_memory", fmt.Sprintf("%.0f bytes of Redis", c.KeyBytes)},
			{"connections of a process, go-redis' default pool", fmt.Sprintf("%.1f at most", c.Connections)},
			{"rebuilds on this machine", fmt.Sprintf("%.0f a second", c.RebuildRate)},
		}}
}

func (c capacity) clusterTable() table {
	list := func(counts []int) string {
		return strings.ReplaceAll(strings.Trim(fmt.Sprint(counts), "[]"), " ", ", ")
	}
	return table{title: "Measured: messages in a cluster", head: []string{"what", "is"},
		notes: fmt.Sprintf("%d primaries. A process listens at any node, and a message reaches all of them, wherever it was published.", c.Cluster.Nodes),
		rows: [][]string{
			{fmt.Sprintf("%d processes with one namespace: subscriptions of each node", clusterStores), list(c.Cluster.Listening)},
			{fmt.Sprintf("%d processes with a namespace each: subscriptions of each node", clusterStores), list(c.Cluster.Spread)},
			{"a message that nobody listens to, for the node that it is published on", number(c.Cluster.Sending) + " µs"},
			{"the same, for each other node", number(c.Cluster.Passing) + " µs"},
		}}
}

// busy is the share of a processor that a Redis should have to do: what is left
// is for bursts.
const busy = 0.5

// projection is arithmetic.
func (c capacity) projection() table {
	t := table{title: "Calculated: Redis' work", head: []string{"situation", "commands", "messages", "Redis", "needs"},
		notes: fmt.Sprintf("From the units above. Needs: so that none is busier than %.0f %% of one processor. One is one Redis. Primaries: of a cluster, over which keys spread. "+
			"Nodes: of a cluster, over which the processes that listen spread; or groups of processes with namespaces of their own, each on a Redis of its own.", 100*busy)}
	for _, s := range c.situations() {
		if s.once {
			t.rows = append(t.rows, []string{s.what, group(s.commands), group(s.messages), fmt.Sprintf("%.1f ms", s.micros/1000), "one"})
			continue
		}
		t.rows = append(t.rows, []string{s.what, group(s.commands) + "/s", group(s.messages) + "/s", fmt.Sprintf("%.2f processors", s.micros/1e6), s.needs()})
	}
	return t
}

// situation is something that a fleet does in a second, or once.
type situation struct {
	what                       string
	commands, messages, micros float64
	once                       bool
}

func (s situation) needs() string {
	n := math.Ceil(s.micros / 1e6 / busy)
	switch {
	case n <= 1:
		return "one"
	case s.messages > s.commands: // most of it is messages
		return fmt.Sprintf("%.0f nodes", n)
	}
	return fmt.Sprintf("%.0f primaries", n)
}

func (c capacity) situations() []situation {
	alone := c.Replicas[0].Sent
	follows, asks := c.follower()
	// With few of many waiting, the value does not come along with the message:
	// those who wait read it, which is a hit.
	rebuilt := func(what string, processes, waiting float64) situation {
		return situation{what: what, commands: 1000 * (alone + waiting*(asks+1)), messages: 1000 * processes,
			micros: 1000 * (c.RebuildCPU + waiting*(follows+c.ReadCPU) + (processes-1-waiting)*c.perMessage)}
	}
	written := c.RebuildCPU / alone // one of its commands
	return []situation{
		{what: "1,000 replicas all ask for one cold key", commands: alone + 999*asks, messages: 1000, micros: c.RebuildCPU + 999*follows, once: true},
		{what: "1,000 replicas that do nothing", commands: 1000 * c.Idle, micros: 1000 * c.Idle * c.ReadCPU},
		{what: "100,000 hits a second", commands: 1e5, micros: 1e5 * c.ReadCPU},
		{what: "100,000 rebuilds a second, nobody waits (a long tail, or grace and early refresh)", commands: 1e5 * alone, micros: 1e5 * c.RebuildCPU},
		rebuilt("1,000 rebuilds a second, each with one process waiting, 100 replicas", 100, 1),
		rebuilt("1,000 rebuilds a second, each with one process waiting, 1,000 replicas", 1000, 1),
		{what: "1,000 invalidations a second, 1,000 replicas", commands: 1000, messages: 1e6, micros: 1000 * (written + 1000*c.perMessage)},
		{what: "the same in 20 namespaces, of which each replica uses one", commands: 1000, messages: 5e4, micros: 1000 * (written + 50*c.perMessage)},
	}
}

// memory is arithmetic too: what is kept, and for whom there must be room.
func (c capacity) memory() table {
	const keys, replicas = 1e7, 1000.0
	memory := func(bytes float64) string {
		if bytes < 1e9 {
			return fmt.Sprintf("%.0f MB", bytes/1e6)
		}
		return fmt.Sprintf("%.1f GB", bytes/1e9)
	}
	perHour := keys / time.Hour.Seconds() * c.LoadLimit.Seconds() // records there at a time
	return table{title: "Calculated: memory and connections", head: []string{"situation", "needs"},
		notes: "From the units above. A process has its pool and one connection for messages; Redis' own limit (`maxclients`) is 10,000 unless it is set.",
		rows: [][]string{
			{"10 million entries of 1 KiB", memory(keys*c.KeyBytes-keys*c.RecordBytes) + " of Redis"},
			{fmt.Sprintf("their records, each rebuilt once an hour, LoadLimit %v", c.LoadLimit), fmt.Sprintf("%s records at a time, %s", group(perHour), memory(perHour*c.RecordBytes))},
			{"their records, if all are rebuilt within LoadLimit", memory(keys * c.RecordBytes)},
			{"1,000 replicas, go-redis' default pool on a machine like this", group(replicas*c.Connections) + " connections"},
			{"1,000 replicas, `PoolSize` 8", group(replicas*9) + " connections"},
		}}
}

// group writes a number with commas.
func group(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
