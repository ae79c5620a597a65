package main

import (
	"fmt"
	"math"
	"time"
)

// page is the capacity for people: what was measured, and then what follows
// from it.
func (c capacity) page() page {
	c.perMessage, c.perPublisher = c.messages()
	return page{
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
			c.publishTable(), c.unitTable(), c.projection(),
		},
	}
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

// follower is what one process more costs Redis that waits for a key: its look,
// its claim, its look again and the message to it. From the largest and the
// smallest fleet.
func (c capacity) follower() float64 {
	a, b := c.Replicas[0], c.Replicas[len(c.Replicas)-1]
	return (b.Server.CPU - a.Server.CPU) / float64(b.Processes-a.Processes)
}

func (c capacity) unitTable() table {
	return table{title: "Measured: units", head: []string{"what", "costs"},
		notes: fmt.Sprintf("With %d keys of 1 KiB, each rebuilt and then read once by one of 4 processes.", c.Keys),
		rows: [][]string{
			{"a hit", fmt.Sprintf("1 command, %.1f µs of Redis", c.ReadCPU)},
			{"a rebuild that no other process waits for", fmt.Sprintf("3 commands, %.1f µs of Redis", c.RebuildCPU)},
			{"one process more that waits for a rebuild", fmt.Sprintf("3 commands, %.1f µs of Redis, with the message to it", c.follower())},
			{"a message to a process that does not wait", fmt.Sprintf("%.1f µs of Redis", c.perMessage)},
			{"a process that does nothing", fmt.Sprintf("%.2f commands a second", c.Idle)},
			{"an entry of 1 KiB", fmt.Sprintf("%.0f bytes of Redis", c.EntryBytes)},
			{"a lease record, for LoadLimit after its last use", fmt.Sprintf("%.0f bytes of Redis (%.0f s left when looked at)", c.RecordBytes, c.RecordLife.Seconds())},
			{"both, from used_memory", fmt.Sprintf("%.0f bytes of Redis", c.KeyBytes)},
			{"connections of a process, go-redis' default pool", fmt.Sprintf("%.1f at most", c.Connections)},
			{"rebuilds on this machine", fmt.Sprintf("%.0f a second", c.RebuildRate)},
		}}
}

// busy is the share of a processor that a Redis should have to do: what is left
// is for bursts.
const busy = 0.5

// projection is arithmetic.
func (c capacity) projection() table {
	t := table{title: "Calculated", head: []string{"situation", "commands", "messages", "Redis", "servers"},
		notes: fmt.Sprintf("From the units above. Servers: primaries of which none is busier than %.0f %% of one processor.", 100*busy)}
	row := func(what string, commands, messages, micros float64, perSecond bool) {
		if perSecond {
			t.rows = append(t.rows, []string{what, group(commands) + "/s", group(messages) + "/s",
				fmt.Sprintf("%.2f processors", micros/1e6), fmt.Sprint(max(1, math.Ceil(micros/1e6/busy)))})
			return
		}
		t.rows = append(t.rows, []string{what, group(commands), group(messages), fmt.Sprintf("%.1f ms", micros/1000), "1"})
	}
	waited := func(processes, waiting float64) (messages, micros float64) {
		if waiting == 0 {
			return 0, c.RebuildCPU
		}
		return processes, c.RebuildCPU + waiting*c.follower() + (processes-waiting)*c.perMessage
	}
	m, us := waited(1000, 999)
	row("1,000 replicas all ask for one cold key", 3000, m, us, false)
	row("1,000 replicas that do nothing", 1000*c.Idle, 0, 1000*c.Idle*c.ReadCPU, true)
	row("100,000 hits a second", 1e5, 0, 1e5*c.ReadCPU, true)
	row("100,000 rebuilds a second, nobody waits (a long tail, or grace and early refresh)", 3e5, 0, 1e5*c.RebuildCPU, true)
	m, us = waited(100, 1)
	row("1,000 rebuilds a second, each with one process waiting, 100 replicas", 1000*6, 1000*m, 1000*us, true)
	m, us = waited(1000, 1)
	row("1,000 rebuilds a second, each with one process waiting, 1,000 replicas", 1000*6, 1000*m, 1000*us, true)
	row("1,000 invalidations a second, 1,000 replicas", 1000, 1e6, 1000*(c.RebuildCPU/3+1000*c.perMessage), true)
	return t
}

// group writes a number with commas.
func group(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
