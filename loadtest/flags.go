package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// options are what the flags say.
type options struct {
	scenarios     []scenario
	modes         []string
	replicas      int
	clients       int // of each replica
	load          time.Duration
	rounds        int
	duration      time.Duration // of a soak
	rate          int           // requests a second, where they come at a rate
	span          time.Duration // for which they do
	redis         string
	redisPriority bool
	json          string
	html          string
	target        target
	list          bool
	excused       []string // names of promises that do not decide the exit status
}

// callers is how many ask at once.
func (o options) callers() int { return o.replicas * o.clients }

// ordinary are the scenarios that are run unless others are named: a minute that
// shows what it is about. The others break things, and take their time.
const ordinary = "cold,expiry,invalidate"

// allModes are the modes of demo-api.
var allModes = []string{"guard", "local", "none"}

func parseFlags(args []string, out io.Writer) (options, error) {
	var o options
	var names, modes string
	fs := flag.NewFlagSet("loadtest", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&names, "scenario", ordinary, "`names` of the scenarios to run, with commas between them, or all; -list explains them")
	fs.StringVar(&modes, "mode", strings.Join(allModes, ","), "`how` the origin is protected: guard (one load for the fleet), local (one for each process), none (one for each request)")
	fs.IntVar(&o.replicas, "replicas", 4, "demo-api `processes`")
	fs.IntVar(&o.clients, "clients", 50, "`callers` of each process")
	fs.DurationVar(&o.load, "load", 100*time.Millisecond, "`time` that the origin takes to answer")
	fs.IntVar(&o.rounds, "rounds", 5, "`times` that each storm is repeated")
	fs.DurationVar(&o.duration, "duration", time.Minute, "`time` that the scenario soak takes")
	fs.StringVar(&o.redis, "redis", "", "`address` or URL of a Redis to use (default: a redis-server from PATH is started, or an embedded one)")
	fs.BoolVar(&o.redisPriority, "redis-priority", true, "give the redis-server that is started the processor before the fleet, as it would have one on a machine of its own (needs root, or on Linux CAP_SYS_NICE; without that it waits like all others)")
	fs.StringVar(&o.json, "json", "", "`file` to write the results to")
	fs.StringVar(&o.html, "html", "", "`file` to write the report to, as one page with plots that needs nothing else")
	fs.Func("target", "`URLs`, with commas between them, of somebody's running service to ask instead of a fleet: in storms of -clients for each, and then at -rate", func(list string) (err error) {
		o.target.urls, err = targetURLs(list)
		return err
	})
	fs.IntVar(&o.rate, "rate", 0, fmt.Sprintf("`requests` a second, sent when they are due whatever the answers do: in the scenario steady (default %d), or to a -target (default %d)", steadyRate, targetRate))
	fs.DurationVar(&o.span, "for", 10*time.Second, "`time` for which requests are sent at -rate")
	fs.Func("excuse", "`names` of promises, with commas between them, whose breaking is shown and does not count, such as floor on a machine that has other work", func(list string) error {
		o.excused = strings.Split(list, ",")
		return nil
	})
	fs.BoolVar(&o.list, "list", false, "say what scenarios there are, and what each promises")

	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(out, "loadtest runs cache-miss storms against a fleet of demo-api processes.\n\nFlags:")
		fs.SetOutput(out)
		fs.PrintDefaults()
		return o, err
	}
	if err != nil {
		return o, fmt.Errorf("%w; see -help", err)
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("%q is not a flag; see -help", fs.Arg(0))
	}
	rated := false
	fs.Visit(func(f *flag.Flag) { rated = rated || f.Name == "rate" })
	if !rated {
		o.rate = steadyRate
	}
	if len(o.target.urls) > 0 {
		if !rated {
			o.rate = targetRate
		}
		return o, o.checkTarget(fs)
	}
	if o.scenarios, err = scenariosNamed(names, o.replicas); err != nil {
		return o, err
	}
	if err = promisesNamed(o.excused); err != nil {
		return o, err
	}
	if o.modes, err = modesNamed(modes); err != nil {
		return o, err
	}
	return o, o.check()
}

func (o options) check() error {
	switch {
	case o.replicas < 1 || o.replicas > maxReplicas:
		return fmt.Errorf("-replicas %d is out of range; use 1 to %d", o.replicas, maxReplicas)
	case o.clients < 1 || o.callers() > maxCallers:
		return fmt.Errorf("-clients %d is out of range; use at least 1, and at most %d in all replicas together", o.clients, maxCallers)
	case o.load < time.Millisecond || o.load > maxLoad:
		return fmt.Errorf("-load %v is out of range; use 1ms to %v", o.load, maxLoad)
	case o.duration < minDuration || o.duration > maxDuration:
		return fmt.Errorf("-duration %v is out of range; use %v to %v", o.duration, minDuration, maxDuration)
	case o.rounds < 1 || o.rounds > maxRounds:
		return fmt.Errorf("-rounds %d is out of range; use 1 to %d", o.rounds, maxRounds)
	}
	return o.checkRate()
}

func (o options) checkRate() error {
	switch {
	case o.rate < 1 || o.rate > maxRate:
		return fmt.Errorf("-rate %d is out of range; use 1 to %d", o.rate, maxRate)
	case o.span < time.Second || o.span > maxSpan:
		return fmt.Errorf("-for %v is out of range; use 1s to %v", o.span, maxSpan)
	}
	return nil
}

const (
	maxReplicas = 64
	maxCallers  = 10_000
	maxLoad     = 20 * time.Second // below the demo's LoadLimit
	maxRounds   = 1000

	// A soak of less has too few samples to tell growth from noise.
	minDuration = 10 * time.Second
	maxDuration = 24 * time.Hour

	maxRate = 10_000
	maxSpan = 10 * time.Minute
)

// modesNamed returns the modes in list, each once.
func modesNamed(list string) ([]string, error) {
	var found []string
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if !slices.Contains(allModes, name) {
			return nil, fmt.Errorf("-mode %q is unknown; use some of %s", name, strings.Join(allModes, ","))
		}
		if !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found, nil
}

// promisesNamed tells whether all names are those of promises.
func promisesNamed(names []string) error {
	var known []string
	for _, sc := range scenarios {
		for _, p := range sc.promises {
			if !slices.Contains(known, p.name) {
				known = append(known, p.name)
			}
		}
	}
	for _, name := range names {
		if !slices.Contains(known, name) {
			return fmt.Errorf("-excuse %q is unknown; use some of %s", name, strings.Join(known, ","))
		}
	}
	return nil
}

// scenariosNamed returns the scenarios in list, each once; of all, those that so
// many replicas can play.
func scenariosNamed(list string, replicas int) ([]scenario, error) {
	tooFew := func(sc scenario) bool { return replicas < sc.minReplicas }
	if list == "all" {
		return slices.DeleteFunc(slices.Clone(scenarios), func(sc scenario) bool { return sc.apart || tooFew(sc) }), nil
	}
	var found []scenario
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		named := func(sc scenario) bool { return sc.name == name }
		i := slices.IndexFunc(scenarios, named)
		if i < 0 {
			return nil, fmt.Errorf("-scenario %q is unknown; use all or some of %s", name, strings.Join(scenarioNames(), ","))
		}
		if tooFew(scenarios[i]) {
			return nil, fmt.Errorf("-scenario %s needs processes that go on when one is gone; use -replicas %d or more", name, scenarios[i].minReplicas)
		}
		if !slices.ContainsFunc(found, named) {
			found = append(found, scenarios[i])
		}
	}
	return found, nil
}

func scenarioNames() []string {
	var names []string
	for _, sc := range scenarios {
		names = append(names, sc.name)
	}
	return names
}
