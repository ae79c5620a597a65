package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"
)

// config is what the flags say.
type config struct {
	addr     string
	redis    string
	origin   string
	postgres string
	mode     string
	load     time.Duration
	pool     int
	ttl      time.Duration
	grace    time.Duration
	drain    time.Duration

	upstream upstreamConfig

	loadtest bool
	controls bool
}

// modes are the ways to protect the origin, the best first.
var modes = []string{"guard", "local", "none"}

// parseFlags returns what args say, or an error of one sentence that says what
// to write instead. Help goes to out.
func parseFlags(args []string, out io.Writer) (config, error) {
	var cfg config
	fs := flag.NewFlagSet("demo-api", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&cfg.addr, "addr", ":8080", "`address` to serve on")
	fs.StringVar(&cfg.redis, "redis", "", "`address` or URL of a Redis that a fleet shares, several with commas for a Cluster (default: a store in memory, of this process alone)")
	fs.StringVar(&cfg.origin, "origin", "", "`URL` of a catalogue to ask instead of the one in memory, so that a fleet has one origin (GET /products/{id}, GET /products, PUT and, for the stock, PATCH /products/{id})")
	fs.StringVar(&cfg.postgres, "postgres", "", "`DSN` of a PostgreSQL database to keep the products in instead of in memory (postgres://user:password@host:5432/database); the table is made if it is not there")
	fs.StringVar(&cfg.mode, "mode", modes[0], "how the origin is protected: guard (one load for the fleet), local (one for each process), none (one for each request)")
	fs.DurationVar(&cfg.load, "load", 100*time.Millisecond, "service `time` of the origin in memory")
	fs.IntVar(&cfg.pool, "pool", 20, "`connections` to the origin, for which its callers queue")
	fs.DurationVar(&cfg.ttl, "ttl", 10*time.Second, "`time` that a product is fresh")
	fs.DurationVar(&cfg.grace, "grace", time.Minute, "`time` after the -ttl in which the stale product is served while one process loads it anew")
	fs.DurationVar(&cfg.drain, "drain", 0, "`time` to go on serving after SIGTERM, while /readyz says no")
	fs.StringVar(&cfg.upstream.url, "upstream", "", "`URL` of a server to be the HTTP cache of, instead of serving the catalogue; what it says may be kept is kept, and with -ttl what says nothing too")
	fs.StringVar(&cfg.upstream.admin, "admin", "", "with -upstream: `address` to serve /metrics, /readyz and /healthz on, without authentication, since every path of -addr is the upstream's")
	fs.BoolVar(&cfg.upstream.storeSetCookie, "store-set-cookie", false, "with -upstream: keep answers that set a cookie, and give everybody that cookie")
	fs.DurationVar(&cfg.upstream.staleIfError, "stale-if-error", 0, "with -upstream: `time` after its lifetime in which an answer that does not say so itself is served when the upstream fails")
	fs.StringVar(&cfg.upstream.targets, "targets", "", "with -upstream: `names` of the targeted Cache-Control fields to obey, the most specific first, with commas between them (default: CDN-Cache-Control)")
	fs.BoolVar(&cfg.controls, "controls", false, "let callers on other machines use the controls of the page, which break the demo; without it, only those on this one")
	fs.BoolVar(&cfg.loadtest, "loadtest", false, "serve what loadtest measures with: /floor/{id}?sleep=DURATION, an answer without a store, and a header that holds a request until an instant; ends when its standard input is a pipe and ends")

	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(out, "demo-api serves a product catalogue through cacheguard.\n\nFlags:")
		fs.SetOutput(out)
		fs.PrintDefaults()
		return cfg, err
	}
	if err != nil {
		return cfg, fmt.Errorf("%w; see -help", err)
	}
	if fs.NArg() > 0 {
		return cfg, fmt.Errorf("%q is not a flag; see -help", fs.Arg(0))
	}
	given := map[string]bool{}
	fs.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if cfg.upstream.url != "" && given["ttl"] {
		cfg.upstream.ttl = cfg.ttl
	}
	return cfg, cfg.check(given)
}

// check returns the first thing that is wrong.
func (cfg config) check(given map[string]bool) error {
	switch {
	case !slices.Contains(modes, cfg.mode):
		return fmt.Errorf("-mode %s is unknown; use one of %s", cfg.mode, strings.Join(modes, ", "))
	case cfg.load < 0 || cfg.load >= loadLimit:
		return fmt.Errorf("-load %v is out of range; use 0 to less than %v, after which a load is given up", cfg.load, loadLimit)
	case cfg.pool < 1 || cfg.pool > maxPool:
		return fmt.Errorf("-pool %d is out of range; use 1 to %d connections", cfg.pool, maxPool)
	case cfg.ttl <= 0 || cfg.ttl > maxLife:
		return fmt.Errorf("-ttl %v is out of range; use more than 0 and at most %v", cfg.ttl, maxLife)
	case cfg.grace < 0 || cfg.grace > maxLife:
		return fmt.Errorf("-grace %v is out of range; use 0 to %v", cfg.grace, maxLife)
	case cfg.drain < 0 || cfg.drain > time.Minute:
		return fmt.Errorf("-drain %v is out of range; use 0 to 1m", cfg.drain)
	case cfg.origin != "" && cfg.postgres != "":
		return errors.New("-origin and -postgres are two places for the products; leave one of them out")
	case cfg.origin != "" && given["load"]:
		return errors.New("-load is the service time of the origin in memory and says nothing about -origin; leave one of them out")
	case cfg.postgres != "" && given["load"]:
		return errors.New("-load is the service time of the origin in memory and says nothing about -postgres; leave one of them out")
	}
	if err := cfg.checkUpstream(given); err != nil {
		return err
	}
	return errors.Join(checkURL("origin", cfg.origin), checkURL("upstream", cfg.upstream.url))
}

// checkURL says what is wrong with a flag that names a server, if it is given.
func checkURL(name, text string) error {
	if text == "" {
		return nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("-%s %s is not the URL of a server; use one such as http://127.0.0.1:9000", name, text)
	}
	return nil
}

// checkUpstream refuses flags that would do nothing.
func (cfg config) checkUpstream(given map[string]bool) error {
	if cfg.upstream.url == "" {
		for _, name := range []string{"admin", "store-set-cookie", "stale-if-error", "targets"} {
			if given[name] {
				return fmt.Errorf("-%s is for the cache in front of another server; use it with -upstream", name)
			}
		}
		return nil
	}
	for _, name := range []string{"origin", "postgres", "mode", "load", "pool", "grace", "controls", "loadtest"} {
		if given[name] {
			return fmt.Errorf("-%s is for the catalogue, which -upstream replaces; leave one of them out", name)
		}
	}
	if u, err := url.Parse(cfg.upstream.url); err == nil && (u.User != nil || u.RawQuery != "" || u.Fragment != "") {
		return errors.New("-upstream is a URL with a user, a query or a fragment; use scheme, host and path alone")
	}
	if d := cfg.upstream.staleIfError; d < 0 || d > maxLife {
		return fmt.Errorf("-stale-if-error %v is out of range; use 0 to %v", d, maxLife)
	}
	return nil
}

const (
	maxPool = 10_000
	maxLife = 24 * time.Hour

	// loadLimit bounds one load of the origin (the guard's LoadLimit).
	loadLimit = 30 * time.Second

	// answerLimit bounds one request: a wait for another process's holder
	// (by default LoadLimit + the longest lease) ends before it.
	answerLimit = 2*loadLimit + 5*time.Second
)
