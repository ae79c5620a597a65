// Command peers puts cacheguard beside what people use today: the same storms,
// faults and hits for each, in one run, so that ratios hold.
//
//	go run .
//	go run . -section storm,fault -only cacheguard,redislock
//	go run . -doc ../../docs/comparison.md
//	go run . -capacity
//
// It starts redis-servers of its own (one must be on PATH), and for each
// strategy processes of this program, whose origin it is. All is over within
// -limit.
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

	"github.com/redis/go-redis/v9"
	"github.com/zeromicro/go-zero/core/logx"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

func main() {
	logx.Disable()            // go-zero tells its memory every minute otherwise
	redis.SetLogger(silent{}) // a Redis that is stopped is what we want to see, not each dial to it
	if name := os.Getenv(envStrategy); name != "" {
		exit(work(name))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it as it is
	exit(runCommand(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// silent is a logger for go-redis.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func exit(err error) {
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "peers:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// options are what the flags say.
type options struct {
	sections []section
	only     []strategy
	limit    time.Duration
	short    bool
	json     string
	doc      string
	capacity bool

	// How much of each. -short makes them small.
	storms   int           // of each shape
	keys     int           // of each fault
	hits     time.Duration // of each number of goroutines
	slowFor  time.Duration // that loads which take long are asked for
	failFor  time.Duration
	hangFor  time.Duration // that Redis does not answer
	rounds   int           // of a wake-up of one key
	wakeKeys int           // at once
	commands int           // of each kind, of 1 KiB
}

var (
	whole = options{storms: 10, keys: 5, hits: 400 * time.Millisecond, slowFor: 40 * time.Second, failFor: 4 * time.Second,
		hangFor: 5 * time.Second, rounds: 100, wakeKeys: 1000, commands: 4000}
	short = options{storms: 2, keys: 2, hits: 50 * time.Millisecond, slowFor: time.Second, failFor: 2 * time.Second,
		hangFor: 2 * time.Second, rounds: 10, wakeKeys: 50, commands: 100, short: true}
)

func parseFlags(args []string, out io.Writer) (o options, err error) {
	fs := flag.NewFlagSet("peers", flag.ContinueOnError)
	fs.SetOutput(out)
	names := fs.String("section", "all", "`parts` of the comparison to run, with commas between them: "+sectionNames())
	only := fs.String("only", "", "`parts` of the names of the strategies to run, with commas between them (default: all)")
	small := fs.Bool("short", false, "few storms, keys and reads: a look, not a measurement")
	limit := fs.Duration("limit", 10*time.Minute, "end with an error, and what there is by then, after so long")
	asJSON := fs.String("json", "", "`file` to write the results to")
	doc := fs.String("doc", "", "`file` whose marked sections are to be replaced by what was run")
	capacity := fs.Bool("capacity", false, "measure instead how this library's cost grows with processes, callers, load time and keys")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("%q is not a flag; see -help", fs.Arg(0))
	}
	o = whole
	if *small {
		o = short
	}
	o.limit, o.json, o.doc, o.capacity = *limit, *asJSON, *doc, *capacity
	if o.doc != "" && (*small || *only != "") {
		return o, errors.New("-doc is for what was measured as a whole: leave -short and -only away")
	}
	if o.capacity && (*only != "" || *names != "all") {
		return o, errors.New("-capacity is about this library alone and has no sections: leave -only and -section away")
	}
	if o.sections, err = sectionsNamed(*names); err != nil {
		return o, err
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
	for _, s := range append(strategies, plain, idle) {
		if s.name == name {
			return s, nil
		}
	}
	return strategy{}, fmt.Errorf("there is no strategy %q", name)
}

// results are what a run brought.
type results interface {
	page() page
}

// runCommand does what args say. The tables go to out, progress to log. What
// was measured before an interrupt, the limit or a failure is shown all the
// same, but not written into a document.
func runCommand(ctx context.Context, args []string, out, log io.Writer) error {
	o, err := parseFlags(args, log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("it takes longer than -limit %v", o.limit))
	defer cancel()
	found, err := measure(ctx, o, log)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
		if errors.Is(err, context.Canceled) {
			err = errors.New("interrupted")
		}
	}
	if found == nil {
		return err
	}
	found.page().print(out)
	if o.json != "" {
		err = errors.Join(err, writeJSON(o.json, found))
	}
	if o.doc != "" && err == nil {
		err = found.page().writeInto(o.doc)
	}
	return err
}

func measure(ctx context.Context, o options, log io.Writer) (found results, err error) {
	if !o.capacity {
		total := 0
		for _, s := range o.sections {
			total += s.steps(o)
		}
		rep, err := compare(ctx, o, newProgress(log, total))
		if len(rep.Sections) == 0 {
			return nil, err
		}
		return rep, err
	}
	err = withStage(ctx, newProgress(log, capacitySteps(o)), func(st *stage, _ *redistest.Server) error {
		c, err := st.measureCapacity(ctx, o)
		if err == nil {
			found = c
		}
		return err
	})
	return found, err
}
