// Command reach measures how close the library comes to what it stands on, and
// prints each figure beside what it is to reach. It reports and judges nothing
// else: it exits 0 whether or not a figure is reached.
//
//	cd internal/reach && go run .
//
// reaches.go says what is to be reached. The figures come from the benchmarks of
// the repository, each the median of -count runs, and from the load test. Only
// what stands in one row was measured together.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "reach:", err)
		os.Exit(1)
	}
}

// options are what the flags say.
type options struct {
	count  int
	time   time.Duration
	rounds int
	only   *regexp.Regexp
	doc    string
	root   string
}

func parseFlags(args []string, out io.Writer) (o options, err error) {
	fs := flag.NewFlagSet("reach", flag.ContinueOnError)
	fs.SetOutput(out)
	fs.IntVar(&o.count, "count", 7, "`runs` of each benchmark, of which the median counts")
	fs.DurationVar(&o.time, "time", 500*time.Millisecond, "`time` of each run")
	fs.IntVar(&o.rounds, "rounds", 20, "`storms` of each shape")
	only := fs.String("only", "", "`regexp`: only the figures whose line matches (default: all)")
	fs.StringVar(&o.doc, "doc", "", "`file` whose marked section is to be replaced by the tables")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("%q is not a flag; see -help", fs.Arg(0))
	}
	if o.count < 1 || o.time <= 0 || o.rounds < 1 {
		return o, errors.New("-count, -time and -rounds must be above zero")
	}
	if o.only, err = regexp.Compile(*only); err != nil {
		return o, fmt.Errorf("-only: %w", err)
	}
	o.root, err = repository()
	return o, err
}

// repository is the folder of the library's module, above this one's.
func repository() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return "", fmt.Errorf("run it in its own folder, as cd internal/reach && go run .: %w", err)
	}
	return strings.TrimSuffix(strings.TrimSpace(string(out)), "/internal/reach"), nil
}

// run does what args say. The tables go to out, progress to log.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	o, err := parseFlags(args, log)
	if err != nil {
		return err
	}
	p := newPage(ctx)
	wanted := wantedBy(o.only)
	m := measured{samples: samples{}}
	if err := m.samples.measure(ctx, o, wanted.benchmarks(), log); err != nil {
		return err
	}
	if m.storms, err = storm(ctx, o, wanted.stages(), log); err != nil {
		return err
	}
	p.fill(wanted, m)
	p.print(out)
	if o.doc != "" {
		return p.writeInto(o.doc)
	}
	return nil
}
