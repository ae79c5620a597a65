package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// run is one comparison under way.
type run struct {
	options
	progress *progress
	report   report
}

// compare runs the sections that were asked for. The report holds those that
// came to their end, also when one did not.
func compare(ctx context.Context, o options, p *progress) (report, error) {
	r := &run{options: o, progress: p, report: newReport(time.Now(), o)}
	var err error
	if r.report.Redis, err = serverVersion(ctx); err != nil {
		return r.report, err
	}
	// One that fails ends the others: what they would tell could not be trusted.
	group, ctx := errgroup.WithContext(ctx)
	seconds := make([]float64, len(o.sections)) // 0: it did not come to its end
	for i, s := range o.sections {
		if s.beside {
			group.Go(func() error { return r.runSection(ctx, s, &seconds[i]) })
		}
	}
	group.Go(func() error {
		for i, s := range o.sections {
			if s.beside {
				continue
			}
			if err := r.runSection(ctx, s, &seconds[i]); err != nil {
				return err
			}
		}
		return nil
	})
	err = group.Wait()
	for i, s := range o.sections {
		if seconds[i] > 0 {
			r.report.Sections = append(r.report.Sections, sectionRun{s.name, seconds[i]})
		}
	}
	return r.report, err
}

func (r *run) runSection(ctx context.Context, s section, seconds *float64) error {
	begin := time.Now()
	if err := s.run(ctx, r); err != nil {
		return fmt.Errorf("%s: %w", s.name, err)
	}
	*seconds = time.Since(begin).Seconds()
	return nil
}

// withStage runs measure with a Redis and an origin, which are gone when it
// returns.
func withStage(ctx context.Context, p *progress, measure func(*stage, *redistest.Server) error) error {
	return withServer(ctx, func(server *redistest.Server) error {
		st, err := newStage(server.Addr, p)
		if err != nil {
			return err
		}
		defer st.Close()
		return measure(st, server)
	})
}

// withServer is withStage without an origin.
func withServer(ctx context.Context, measure func(*redistest.Server) error) error {
	dir, err := os.MkdirTemp("", "cacheguard-peers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	server, err := redistest.StartServer(ctx, dir)
	if errors.Is(err, redistest.ErrNoServer) {
		return fmt.Errorf("%w: install it to run this", err)
	}
	if err != nil {
		return err
	}
	defer server.Stop()
	return measure(server)
}

func serverVersion(ctx context.Context) (version string, err error) {
	err = withServer(ctx, func(server *redistest.Server) error {
		version, err = redisVersion(ctx, server.Addr)
		return err
	})
	return version, err
}

// miss notes that a strategy could not be measured, which the section's tables
// then say. Only the end of ctx is an error.
func (r *run) miss(ctx context.Context, s strategy, section string, err error) error {
	if err == nil || ctx.Err() != nil {
		return err
	}
	r.progress.say("%s is left out: %v", s.name, err)
	res := r.report.of(s)
	if res.Missing == nil {
		res.Missing = map[string]string{}
	}
	res.Missing[section] = err.Error()
	return nil
}

// maxAttempts is how often a section tries a strategy: one that passes a call's
// timeout on to its caller fails when the machine stops for as long.
const maxAttempts = 3

// attempt runs measure until it succeeds, on a fleet of its own each time.
func attempt(ctx context.Context, p *progress, s strategy, processes int, measure func(f *fleet) error) (err error) {
	for n := range maxAttempts {
		err = withStage(ctx, p, func(st *stage, server *redistest.Server) error {
			_ = server.Prefer() // as one on a machine of its own would be; a user who may not does without
			f, err := st.start(ctx, s, processes)
			if err != nil {
				return err
			}
			defer f.stop()
			if err := f.rehearse(ctx); err != nil {
				return err
			}
			return measure(f)
		})
		if err == nil || ctx.Err() != nil {
			return err
		}
		p.say("%s, attempt %d: %v", s.name, n+1, err)
	}
	return err
}
