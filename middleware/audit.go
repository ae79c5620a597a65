package middleware

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Unkeyed is a part of a request that an answer depends on although two requests
// that differ in it are answered by the same entry: an unkeyed input. Whoever
// sends it first decides what everybody else gets.
type Unkeyed struct {
	// Input is the name of the request field, or "?" and the name of a parameter
	// of the query that Options.Query leaves out of the key.
	Input string

	// Value is what was sent; "": the field was taken away.
	Value string

	// Differs is what came out different: "status", "body", or the name of a
	// field. Parts that differ from run to run anyway are not among them.
	Differs []string

	// Reflected: the value came back in the answer.
	Reflected bool

	// Stored: the other answer would be stored too, if that request came first.
	// With Reflected it means that a client can write into everybody's page.
	Stored bool

	// URL is that of the request. It may hold what is private to a user.
	URL string
}

// String says it in a sentence, fit for a log.
func (u Unkeyed) String() string {
	what := fmt.Sprintf("%s of %s depends on %s (tried %q)", strings.Join(u.Differs, ", "), u.URL, u.Input, u.Value)
	if u.Reflected {
		what += ", which comes back in the answer"
	}
	return what + ", and neither Vary nor the key says so"
}

// auditor looks for unkeyed inputs. Nothing tells which fields of a request a
// handler reads; so it runs the handler again, with fields changed that make no
// difference to the key, and compares. All at once first: for most pages that is
// the end of it. Only what differs is tried one by one.
type auditor struct {
	told  func(Unkeyed)
	queue chan struct{} // audits that run or wait; those beyond it are left out
	turn  chan struct{} // one audit at a time
	seen  recent        // keys that were audited
}

const (
	maxAudits  = 64
	auditEvery = 10 * time.Minute // for one key

	// auditRuns bounds an audit's time, in FillLimits.
	auditRuns = 10
)

func newAuditor(told func(Unkeyed)) *auditor {
	if told == nil {
		return nil
	}
	return &auditor{told: told, queue: make(chan struct{}, maxAudits), turn: make(chan struct{}, 1)}
}

// audit looks, in the background, for what p depends on without saying so.
func (f *fill) audit(p *response) {
	c, a := f.c, f.c.auditor
	if a == nil || f.body != nil {
		return
	}
	select {
	case a.queue <- struct{}{}:
	default:
		return
	}
	if a.seen.claim(f.key, 1, auditEvery) != 0 || !c.enter() {
		<-a.queue
		return
	}
	go func() {
		defer c.runs.Done()
		defer func() { <-a.queue }()
		select {
		case a.turn <- struct{}{}:
			defer func() { <-a.turn }()
		case <-c.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(f.req.Context()), auditRuns*c.opts.FillLimit)
		defer cancel()
		defer context.AfterFunc(c.ctx, cancel)()
		(&audit{f: f, p: p, ctx: ctx}).do()
	}()
}

// audit is one of them.
type audit struct {
	f   *fill
	p   *response
	ctx context.Context

	usual    sample          // what the request is answered with
	unstable map[string]bool // parts that are different each time
}

// try is a change of a request.
type try struct {
	input  string
	value  string
	canary string // to be looked for in the answer; "": it would be found in any
	apply  func(r *http.Request)
}

// do runs the audit. It ends early if the cache is closed or time is up.
func (a *audit) do() {
	a.usual, a.unstable = a.run(nil), make(map[string]bool)
	a.learnUnstable()
	for _, round := range a.rounds() {
		if found, _ := a.compare(round); len(found) == 0 {
			continue
		}
		for _, t := range round {
			a.single(t)
		}
	}
}

// single makes one try, and tells of it if it made a difference.
func (a *audit) single(t try) {
	found, s := a.compare([]try{t})
	if len(found) == 0 {
		return
	}
	reflected := s.reflects(t)
	if !reflected {
		// A page that changes every minute has changed for its own reasons.
		a.learnUnstable()
		found = slices.DeleteFunc(found, func(part string) bool { return a.unstable[part] })
	}
	if len(found) == 0 || a.ctx.Err() != nil {
		return
	}
	r := a.f.req
	a.f.c.auditor.told(Unkeyed{
		Input: t.input, Value: t.value, Differs: found, Reflected: reflected, Stored: s.stored,
		URL: scheme(r) + "://" + r.Host + r.URL.RequestURI(),
	})
}

// compare makes the tries together, and returns the parts of the answer that
// they change.
func (a *audit) compare(tries []try) (found []string, s sample) {
	s = a.run(tries)
	if a.ctx.Err() != nil {
		return nil, s
	}
	found = slices.DeleteFunc(a.usual.differs(s), func(part string) bool { return a.unstable[part] })
	for _, t := range tries {
		if s.reflects(t) {
			found = append(found, s.with(t.canary)...) // however unstable that part is
		}
	}
	slices.Sort(found)
	return slices.Compact(found), s
}

// learnUnstable runs the request as it is once more, to learn what differs from
// run to run.
func (a *audit) learnUnstable() {
	for _, part := range a.usual.differs(a.run(nil)) {
		a.unstable[part] = true
	}
}

// rounds are the tries that make no difference to the key, in sets to be made
// together: no set has two of one input.
func (a *audit) rounds() (rounds [][]try) {
	count := make(map[string]int)
	for _, t := range a.f.c.opts.tries(a.f.req) {
		if !a.sameKey(t) {
			continue
		}
		n := count[t.input]
		count[t.input]++
		if n == len(rounds) {
			rounds = append(rounds, nil)
		}
		rounds[n] = append(rounds[n], t)
	}
	return rounds
}

// sameKey tells whether the changed request would be answered by the entry of
// the request as it is. That is what makes an input unkeyed, whatever reason it
// is not in the key for.
func (a *audit) sameKey(t try) bool {
	c, was := a.f.c, a.f.req
	r := a.request(a.ctx, []try{t})
	adm := c.opts.admit(r, false)
	if adm.bypass != "" || adm.credentialed != a.f.adm.credentialed || !c.keys.selects(r, a.p.selecting) {
		return false
	}
	key, err := c.keys.primary(r)
	usual, usualErr := c.keys.primary(was)
	if err == nil && usualErr == nil && c.keys.hasExtras() {
		key, err = c.keys.withExtras(key, "", r, nil)
		usual, usualErr = c.keys.withExtras(usual, "", was, nil)
	}
	return err == nil && usualErr == nil && key == usual
}

// request is the request with the tries applied.
func (a *audit) request(ctx context.Context, tries []try) *http.Request {
	r := a.f.req.Clone(a.f.route(ctx))
	for _, t := range tries {
		t.apply(r)
	}
	return r
}

// sample is what of an answer is compared.
type sample struct {
	status int // zero: the handler did not return
	header http.Header
	body   []byte
	whole  bool // all of the body is there
	stored bool // it would be, if it were an answer
}

// run asks the handler. Nobody gets the answer, and nothing is stored.
func (a *audit) run(tries []try) (s sample) {
	c, asked := a.f.c, time.Now()
	if a.ctx.Err() != nil || c.ctx.Err() != nil {
		return s
	}
	ctx, timeout := context.WithTimeout(a.ctx, c.opts.FillLimit)
	defer timeout()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r := a.request(ctx, tries)
	t := newRun(c.opts.MaxBody, nil, cancel, func(int, http.Header) verdict { return verdict{class: classStore} })
	done := make(chan struct{})
	go func() { // for a handler that calls runtime.Goexit
		defer close(done)
		defer func() { _ = recover() }() // a difference too: its status is zero
		a.f.next.ServeHTTP(t.writerFor(a.f.shape), r)
		t.finish(nil)
		v := c.opts.judge(question{
			credentialed: a.f.adm.credentialed, origin: r.Header.Get("Origin"), now: time.Now(), delay: time.Since(asked), policy: *a.f.policy,
		}, t.status, t.sent)
		s = sample{status: t.status, header: c.opts.kept(t.sent, volatile), body: t.buf, whole: !t.isAlone(), stored: v.class == classStore}
	}()
	<-done
	return s
}

// volatile are fields that say when an answer was made.
var volatile = []string{"Date", "Expires", "Set-Cookie"}

// differs names the parts that differ.
func (s sample) differs(o sample) (parts []string) {
	if s.status != o.status {
		parts = append(parts, "status")
	}
	if s.whole && o.whole && !bytes.Equal(s.body, o.body) {
		parts = append(parts, "body")
	}
	for name := range s.header {
		if !slices.Equal(s.header[name], o.header[name]) {
			parts = append(parts, name)
		}
	}
	for name := range o.header {
		if _, ok := s.header[name]; !ok {
			parts = append(parts, name)
		}
	}
	slices.Sort(parts)
	return parts
}

// with names the parts that a text is in, in any case.
func (s sample) with(text string) (parts []string) {
	text = strings.ToLower(text)
	if bytes.Contains(bytes.ToLower(s.body), []byte(text)) {
		parts = append(parts, "body")
	}
	for name, values := range s.header {
		if strings.Contains(strings.ToLower(strings.Join(values, "\n")), text) {
			parts = append(parts, name)
		}
	}
	return parts
}

// reflects tells whether what was tried has come back.
func (s sample) reflects(t try) bool { return t.canary != "" && len(s.with(t.canary)) > 0 }

// suspects are fields that handlers, and the libraries under them, are known to
// read. Each is tried with values that make a difference to whoever does; %s is
// a text that occurs nowhere else. None asks for more than GET does.
var suspects = []struct {
	name   string
	values []string
}{
	{"X-Forwarded-Host", []string{"%s.invalid"}},
	{"X-Host", []string{"%s.invalid"}},
	{"X-Forwarded-Server", []string{"%s.invalid"}},
	{"X-Http-Host-Override", []string{"%s.invalid"}},
	{"Forwarded", []string{"for=192.0.2.71;host=%s.invalid;proto=https", "for=192.0.2.71;host=%s.invalid;proto=http"}},
	{"X-Forwarded-Proto", []string{"https", "http"}},
	{"X-Forwarded-Scheme", []string{"https", "http"}},
	{"X-Forwarded-Ssl", []string{"on"}},
	{"Front-End-Https", []string{"on"}},
	{"X-Forwarded-Port", []string{"48151"}},
	{"X-Forwarded-Prefix", []string{"/%s"}},
	{"X-Forwarded-Path", []string{"/%s"}},
	{"X-Original-Url", []string{"/%s"}},
	{"X-Rewrite-Url", []string{"/%s"}},
	{"X-Forwarded-For", []string{"192.0.2.72"}},
	{"X-Real-Ip", []string{"192.0.2.73"}},
	{"X-Client-Ip", []string{"192.0.2.74"}},
	{"True-Client-Ip", []string{"192.0.2.75"}},
	{"Cf-Connecting-Ip", []string{"192.0.2.76"}},
	{"X-Http-Method-Override", []string{http.MethodHead}},
	{"X-Method-Override", []string{http.MethodHead}},
	{"X-Http-Method", []string{http.MethodHead}},
	{"User-Agent", []string{"Mozilla/5.0 (iPhone; Mobile) %s", "%s"}},
	{"Accept", []string{"application/json", "text/html", "application/xml"}},
	{"Accept-Language", []string{"de", "fr", "en"}},
	{"Accept-Encoding", []string{"gzip", "identity", "br"}},
	{"Accept-Charset", []string{"iso-8859-1"}},
	{"Origin", []string{"https://%s.invalid"}},
	{"Referer", []string{"https://%s.invalid/"}},
	{"X-Requested-With", []string{"XMLHttpRequest"}},
	{"Save-Data", []string{"on"}},
	{"Dnt", []string{"1"}},
	{"Sec-Ch-Ua-Mobile", []string{"?1"}},
	{"Sec-Fetch-Site", []string{"cross-site"}},
	{"X-Debug", []string{"%s"}},
	{"X-Request-Id", []string{"%s"}},
}

// tries are all changes that are worth a try on r.
func (o *Options) tries(r *http.Request) (tries []try) {
	field := func(name, format string) {
		text := newCanary()
		value := strings.ReplaceAll(format, "%s", text)
		t := try{input: name, value: value, apply: func(r *http.Request) { r.Header[name] = []string{value} }}
		if value != format {
			t.canary = text
		} else if strings.HasPrefix(value, "192.0.2.") || value == "48151" {
			t.canary = value // documentation's addresses, and a port, that no page is likely to have
		}
		tries = append(tries, t)
	}
	for name := range r.Header {
		tries = append(tries, try{input: name, apply: func(r *http.Request) { delete(r.Header, name) }})
	}
	for _, s := range suspects {
		for _, format := range s.values {
			field(s.name, format)
		}
	}
	for _, name := range o.AuditHeaders {
		field(name, "%s")
	}
	tries = slices.DeleteFunc(tries, func(t try) bool { return slices.Contains(o.HideHeaders, t.input) })
	tries = append(tries, o.cookieTries(r)...)
	tries = append(tries, o.queryTries()...)
	slices.SortStableFunc(tries, func(a, b try) int { return strings.Compare(a.input, b.input) })
	return tries
}

// cookieTries replace what Options.IgnoreCookies says means nothing.
func (o *Options) cookieTries(r *http.Request) (tries []try) {
	names := make(map[string]bool)
	for name := range cookies(r.Header["Cookie"]) {
		names[name] = true
	}
	for _, name := range o.IgnoreCookies {
		names[name] = name != "*"
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if !names[name] || slices.Contains(o.KeyCookies, name) {
			continue
		}
		text := newCanary()
		tries = append(tries, try{input: "Cookie", value: name + "=" + text, canary: text, apply: func(r *http.Request) {
			pairs := []string{name + "=" + text}
			for own, value := range cookies(r.Header["Cookie"]) {
				if own != name {
					pairs = append(pairs, own+"="+value)
				}
			}
			r.Header["Cookie"] = []string{strings.Join(pairs, "; ")}
		}})
	}
	return tries
}

// queryTries put parameters in front that Options.Query says mean nothing.
func (o *Options) queryTries() (tries []try) {
	names := slices.Clone(o.Query.Deny)
	if len(o.Query.Allow) > 0 {
		names = append(names, newCanary())
	}
	for _, name := range names {
		text := newCanary()
		pair := name + "=" + text
		tries = append(tries, try{input: "?" + name, value: text, canary: text, apply: func(r *http.Request) {
			r.URL.RawQuery = strings.TrimSuffix(pair+"&"+r.URL.RawQuery, "&")
			path, query, _ := strings.Cut(r.RequestURI, "?")
			if r.RequestURI != "" {
				r.RequestURI = path + "?" + strings.TrimSuffix(pair+"&"+query, "&")
			}
		}})
	}
	return tries
}

// newCanary returns a text that occurs nowhere else.
func newCanary() string { return "audit" + strings.ToLower(rand.Text()[:12]) }
