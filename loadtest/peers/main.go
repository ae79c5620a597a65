// Command peers puts cacheguard beside what people use today: the same storms,
// faults and hits for each, in one run, so that ratios hold.
//
//	go run .
//	go run . -short -only cacheguard,redislock
//	go run . -capacity
//
// It starts a redis-server of its own (one must be on PATH), and for each
// strategy processes of this program, whose origin it is.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/zeromicro/go-zero/core/logx"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

func main() {
	logx.Disable() // go-zero tells its memory every minute otherwise
	if name := os.Getenv(envStrategy); name != "" {
		exit(work(name))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it as it is
	exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func exit(err error) {
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// options are what the flags say.
type options struct {
	only  []strategy
	storm int           // storms of each shape
	keys  int           // of each fault
	hits  time.Duration // of each number of goroutines
	short bool
	json  string
	doc   string

	capacity bool
}

func parseFlags(args []string, out io.Writer) (o options, err error) {
	fs := flag.NewFlagSet("peers", flag.ContinueOnError)
	fs.SetOutput(out)
	only := fs.String("only", "", "`parts` of the names of the strategies to run, with commas between them (default: all)")
	short := fs.Bool("short", false, "few storms, keys and reads: a look, not a measurement")
	fs.StringVar(&o.json, "json", "", "`file` to write the results to")
	fs.StringVar(&o.doc, "doc", "", "`file` whose marked section is to be replaced by the tables")
	fs.BoolVar(&o.capacity, "capacity", false, "measure instead how this library's cost grows with processes, callers, load time and keys")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("%q is not a flag; see -help", fs.Arg(0))
	}
	o.storm, o.keys, o.hits, o.short = 10, 5, 400*time.Millisecond, *short
	if *short {
		o.storm, o.keys, o.hits = 2, 2, 50*time.Millisecond
	}
	o.only, err = strategiesNamed(*only)
	return o, err
}

func strategiesNamed(list string) (found []strategy, err error) {
	for part := range strings.SplitSeq(list, ",") {
		n := len(found)
		for _, s := range strategies {
			same := func(t strategy) bool { return t.name == s.name }
			if strings.Contains(s.name, strings.TrimSpace(part)) && !slices.ContainsFunc(found, same) {
				found = append(found, s)
			}
		}
		if len(found) == n {
			var names []string
			for _, s := range strategies {
				names = append(names, s.name)
			}
			return nil, fmt.Errorf("-only %q is part of no further name; there are: %s", part, strings.Join(names, ", "))
		}
	}
	return found, nil
}

func strategyNamed(name string) (strategy, error) {
	for _, s := range append(strategies, plain) {
		if s.name == name {
			return s, nil
		}
	}
	return strategy{}, fmt.Errorf("there is no strategy %q", name)
}

// run does what args say. The tables go to out, progress to log.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	o, err := parseFlags(args, log)
	if err != nil {
		return err
	}
	var results interface{ page() page }
	if o.capacity {
		results, err = withStage(ctx, log, func(st *stage, _ *redistest.Server) (capacity, error) { return st.measureCapacity(ctx, o) })
	} else {
		results, err = withStage(ctx, log, func(st *stage, server *redistest.Server) (report, error) { return st.compare(ctx, o, server) })
	}
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	if err != nil {
		return err
	}
	results.page().print(out)
	if o.json != "" {
		err = errors.Join(err, writeJSON(o.json, results))
	}
	if o.doc != "" {
		err = errors.Join(err, results.page().writeInto(o.doc))
	}
	return err
}

// withStage runs measure with a Redis and an origin, which are gone when it
// returns.
func withStage[R any](ctx context.Context, log io.Writer, measure func(*stage, *redistest.Server) (R, error)) (none R, err error) {
	dir, err := os.MkdirTemp("", "cacheguard-peers-")
	if err != nil {
		return none, err
	}
	defer os.RemoveAll(dir)
	server, err := redistest.StartServer(ctx, dir)
	if err != nil {
		return none, fmt.Errorf("%w; install it to run this", err)
	}
	defer server.Stop()
	begin := time.Now()
	st, err := newStage(server.Addr, func(format string, args ...any) {
		fmt.Fprintf(log, "%6.1fs  %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
	})
	if err != nil {
		return none, err
	}
	defer st.Close()
	return measure(st, server)
}

// compare runs everything for all strategies.
func (st *stage) compare(ctx context.Context, o options, server *redistest.Server) (rep report, err error) {
	begin := time.Now()
	rep = newReport(begin, o)
	if rep.Redis, err = redisVersion(ctx, server.Addr); err != nil {
		return rep, err
	}
	var fleets []strategy
	for _, s := range o.only {
		if !s.hitsOnly {
			fleets = append(fleets, s)
		}
	}
	for _, s := range fleets {
		if err := st.attempt(ctx, s, o, rep.of(s)); err != nil {
			return rep, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if err := st.together(ctx, fleets, server, &rep); err != nil {
		return rep, err
	}
	for _, s := range o.only {
		st.say("hits: %s", s.name)
		if rep.of(s).Hits, err = st.hits(ctx, s, o.hits); err != nil {
			return rep, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	rep.Seconds = time.Since(begin).Seconds()
	return rep, nil
}

// attempt runs what needs the machine for itself, and once more if that fails:
// a strategy that passes a call's timeout on to its caller fails when the machine
// stops for as long.
func (st *stage) attempt(ctx context.Context, s strategy, o options, out *result) (err error) {
	for n := range maxAttempts {
		if err = flush(ctx, st.redis); err != nil {
			return err
		}
		once := *out
		if err = st.alone(ctx, s, o, &once); err == nil {
			*out = once
			return nil
		}
		if ctx.Err() != nil {
			return err
		}
		st.say("%s, attempt %d: %v", s.name, n+1, err)
	}
	return err
}

const maxAttempts = 3

// alone runs what needs the machine for itself.
func (st *stage) alone(ctx context.Context, s strategy, o options, out *result) error {
	st.say("storms: %s", s.name)
	f, err := st.start(ctx, s, maxFleet)
	if err != nil {
		return err
	}
	defer f.stop()
	if err := f.rehearse(ctx); err != nil {
		return err
	}
	for _, shape := range shapes {
		storms, err := f.storm(ctx, shape, o.storm)
		if err != nil {
			return fmt.Errorf("storm of %v: %w", shape, err)
		}
		out.Storms = append(out.Storms, storms)
	}
	st.say("faults: %s", s.name)
	faults, err := f.fault(ctx, o.keys)
	out.Faults = &faults
	return err
}

// together runs what is about seconds for all strategies at one time.
func (st *stage) together(ctx context.Context, all []strategy, server *redistest.Server, rep *report) error {
	if len(all) == 0 {
		return nil
	}
	st.say("all together: starting")
	crowds, err := st.startCrowds(ctx, all)
	if err != nil {
		return err
	}
	defer crowds.stop()
	out := map[string]*outage{}
	for _, s := range all {
		out[s.name] = new(outage)
		rep.of(s).Outage = out[s.name]
	}
	st.say("all together: a load that fails")
	if err := crowds.fail(ctx, out); err != nil {
		return err
	}
	st.say("all together: Redis is stopped for %v", hangFor)
	return crowds.hang(ctx, server, out)
}
