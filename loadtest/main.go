// Command loadtest shows the storm, and what is left of it behind cacheguard.
//
// It starts a fleet of demo-api processes, one Redis for them and one origin
// whose loads it counts, lets many callers ask at one instant, checks every
// answer, prints a table, and exits non-zero when a promise is broken.
//
//	go run ./loadtest
//	go run ./loadtest -list
//	go run ./loadtest -target http://localhost:8080/products/1 -rate 500
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, func() {
		stop()
		fmt.Fprintln(os.Stderr, "\nloadtest: ending in order; a second signal ends it as it is")
	})
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "loadtest:", err)
		os.Exit(1)
	}
}

// run does what args say. The table goes to out, progress to log.
func run(ctx context.Context, args []string, out, log io.Writer) error {
	opts, err := parseFlags(args, out)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	if opts.list {
		listScenarios(out, opts)
		return nil
	}
	for flag, file := range map[string]string{"html": opts.html, "json": opts.json} {
		if file == "" {
			continue
		}
		if err := mayWrite(file); err != nil {
			return fmt.Errorf("-%s cannot be written: %w", flag, err)
		}
	}
	if len(opts.target.urls) > 0 {
		return askTarget(ctx, opts, out, newProgress(log))
	}
	rep, runErr := runAll(ctx, opts, newProgress(log))
	if len(rep.Results) == 0 {
		if ctx.Err() != nil {
			return errors.New("interrupted before anything was measured")
		}
		return runErr
	}
	printReport(out, opts, rep)
	if opts.json != "" {
		runErr = errors.Join(runErr, writeJSON(opts.json, rep))
	}
	if opts.html != "" {
		runErr = errors.Join(runErr, writePage(opts.html, newPage(opts, rep, time.Now())))
	}
	if broken := rep.broken(opts.excused...); broken > 0 {
		runErr = errors.Join(runErr, fmt.Errorf("promises broken: %d; the table says which", broken))
	}
	if runErr == nil && ctx.Err() != nil {
		runErr = errors.New("interrupted when all had been measured; the report is complete")
	}
	return runErr
}

// runAll runs each scenario in each mode. What was measured before an error or
// an interruption is in the report all the same.
func runAll(ctx context.Context, opts options, progress *progress) (rep report, err error) {
	defer progress.end()
	dir, err := os.MkdirTemp("", "cacheguard-loadtest-")
	if err != nil {
		return rep, fmt.Errorf("no place for temporary files: %w", err)
	}
	defer os.RemoveAll(dir)

	progress.say("building demo-api")
	binary := filepath.Join(dir, "demo-api")
	if err := buildDemo(ctx, binary); err != nil {
		return rep, interrupted(ctx, err)
	}
	redis, err := openRedis(ctx, opts.redis, dir, opts.redisPriority)
	if err != nil {
		return rep, interrupted(ctx, err)
	}
	defer redis.Close()
	rep.Redis = redis.info
	progress.say("using " + redis.info.describe())

	origin, err := startOrigin(opts.load)
	if err != nil {
		return rep, err
	}
	defer origin.Close()

	plan := newPlan(opts)
	progress.say(fmt.Sprintf("scenarios: %d, in modes: %d; this will take about %s", len(opts.scenarios), len(opts.modes), roughly(plan.left(plan.began))))
	progress.watch(plan, origin.allLoads)

	st := &stage{opts: opts, binary: binary, redis: redis, origin: origin, progress: progress}
	for _, sc := range opts.scenarios {
		for _, mode := range opts.modes {
			plan.begin(time.Now())
			var t tally
			err := within(ctx, stepLimit(sc.takes(opts)), func(ctx context.Context) (err error) {
				t, err = st.run(ctx, sc, mode)
				return err
			})
			plan.done(time.Now())
			if gone := redis.gone(ctx); gone != nil {
				err = errors.Join(gone, err)
			}
			if len(t.rounds) > 0 {
				rep.Results = append(rep.Results, t.result(err == nil))
			}
			if err != nil {
				return rep, interrupted(ctx, fmt.Errorf("%s, mode %s: %w", sc.name, mode, err))
			}
		}
	}
	return rep, nil
}

// interrupted says so if that is why err came.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return errors.New("interrupted; what is shown was measured before")
	}
	return err
}
