//go:build unix

package deploy_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/child"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// rig is a fleet under load, as an operator has it: demo-api processes on one
// Redis and one origin, readers, and a Prometheus with our rules.
type rig struct {
	t      testing.TB
	origin *origin
	redis  *redistest.Server
	fleet  []*process
	prom   *process
	client *http.Client
	ids    atomic.Int64 // of products that nobody has asked for yet
	paused int          // times that a process was

	storming context.CancelFunc
	storm    sync.WaitGroup
}

// process is a child that serves HTTP.
type process struct {
	*child.Child
	addr string
}

// replicas is the size of the fleet.
const replicas = 3

func newRig(t testing.TB) *rig {
	t.Helper()
	prometheus := tool(t, "prometheus")
	r := &rig{t: t, redis: redistest.Start(t), origin: newOrigin(t), client: &http.Client{Timeout: time.Minute}}
	binary := filepath.Join(t.TempDir(), "demo-api")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../cmd/demo-api").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	var targets []string
	for range replicas {
		p := start(t, regexp.MustCompile(`serving on http://(\S+)`), binary,
			"-addr", "127.0.0.1:0", "-redis", r.redis.Addr, "-origin", r.origin.url, "-ttl", "1s", "-grace", "2s")
		r.fleet = append(r.fleet, p)
		targets = append(targets, p.addr)
	}
	r.prom = startPrometheus(t, prometheus, targets)
	t.Cleanup(r.client.CloseIdleConnections)
	return r
}

// start starts a program and waits until it says where it serves.
func start(t testing.TB, serving *regexp.Regexp, binary string, args ...string) *process {
	t.Helper()
	cmd := exec.Command(binary, args...)
	output, said := io.Pipe()
	cmd.Stdout, cmd.Stderr = said, said
	c, err := child.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop(10 * time.Second) })
	addr, log := make(chan string, 1), make(chan string, 1)
	go func() {
		var lines []string
		for scan := bufio.NewScanner(output); scan.Scan(); {
			lines = append(lines[max(0, len(lines)-50):], scan.Text())
			if m := serving.FindStringSubmatch(scan.Text()); m != nil && len(addr) == 0 {
				addr <- m[1]
			}
		}
		log <- strings.Join(lines, "\n")
	}()
	go func() { <-c.Done(); said.Close() }()
	select {
	case a := <-addr:
		return &process{c, a}
	case end := <-log:
		t.Fatalf("%s ended at once:\n%s", filepath.Base(binary), end)
	case <-time.After(time.Minute):
		t.Fatalf("%s does not serve", filepath.Base(binary))
	}
	return nil
}

// shorter makes the rules' minutes into seconds, so that what takes an operator
// ten minutes takes a test twenty seconds. Nothing else is changed.
var shorter = strings.NewReplacer(
	"[10m]", "[20s]", "[5m]", "[10s]", "offset 1h", "offset 30s",
	"for: 5m", "for: 2s", "for: 2m", "for: 2s", "for: 1m", "for: 2s",
)

func startPrometheus(t testing.TB, binary string, targets []string) *process {
	t.Helper()
	dir := t.TempDir()
	config := fmt.Sprintf(`
global: {scrape_interval: 1s, evaluation_interval: 1s}
rule_files: [cacheguard.rules.yml]
scrape_configs:
  - job_name: shop
    static_configs: [{targets: ["%s"]}]
`, strings.Join(targets, `", "`))
	for name, text := range map[string]string{"prometheus.yml": config, "cacheguard.rules.yml": shorter.Replace(read(t, rulesFile))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	// It does not say which port it took: give it one that was free just now.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	p := start(t, regexp.MustCompile(`(Server is ready to receive web requests)`), binary,
		"--config.file="+filepath.Join(dir, "prometheus.yml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+addr)
	p.addr = addr
	return p
}

// sample is one series of a query's answer.
type sample struct {
	labels map[string]string
	value  float64
}

// query asks Prometheus.
func (r *rig) query(expr string) []sample {
	r.t.Helper()
	resp, err := r.client.Get("http://" + r.prom.addr + "/api/v1/query?query=" + url.QueryEscape(expr))
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
			}
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		r.t.Fatal(err)
	}
	if answer.Error != "" {
		r.t.Fatalf("%s: %s", expr, answer.Error)
	}
	var samples []sample
	for _, s := range answer.Data.Result {
		text, _ := s.Value[1].(string)
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			r.t.Fatal(err)
		}
		samples = append(samples, sample{s.Metric, v})
	}
	return samples
}

// number is the only value of a query, or 0 if it has none.
func (r *rig) number(expr string) float64 {
	r.t.Helper()
	samples := r.query(expr)
	if len(samples) > 1 {
		r.t.Fatalf("%s has %d series", expr, len(samples))
	}
	if len(samples) == 0 {
		return 0
	}
	return samples[0].value
}

// scrapes is how often each process was looked at in the last minutes.
func (r *rig) scrapes() float64 { return r.number(`min(count_over_time(up[5m]))`) }

// firing are the alerts of a guard that fire now.
func (r *rig) firing(guard string) (names []string) {
	r.t.Helper()
	for _, s := range r.query(`ALERTS{alertstate="firing",guard="` + guard + `"}`) {
		names = append(names, s.labels["alertname"])
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// firedSince are those that have fired at some time since begin.
func (r *rig) firedSince(begin time.Time, guard string) (names []string) {
	r.t.Helper()
	window := strconv.Itoa(int(time.Since(begin).Seconds())+1) + "s"
	for _, s := range r.query(`count by (alertname) (count_over_time(ALERTS{alertstate="firing",guard="` + guard + `"}[` + window + `]))`) {
		names = append(names, s.labels["alertname"])
	}
	return names
}

// until waits for something to become true, and says so if it does not.
func (r *rig) until(limit time.Duration, what string, holds func() bool) bool {
	r.t.Helper()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if holds() {
			return true
		}
	}
	r.t.Errorf("not within %v: %s", limit, what)
	return false
}

// read asks a process for something; what it answers is not looked at here.
func (r *rig) read(ctx context.Context, p *process, path string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.addr+path, nil)
	if err != nil {
		r.t.Error(err)
		return
	}
	if resp, err := r.client.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// write replaces a product. That the cache could not be told of it is no error
// here: it may be what a scenario is about.
func (r *rig) write(p *process, id string) {
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPut, "http://"+p.addr+"/products/"+id, strings.NewReader(`{"name":"n","price":1}`))
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusServiceUnavailable {
		text, _ := io.ReadAll(resp.Body)
		r.t.Fatalf("writing a product: %s: %s", resp.Status, text)
	}
}

// newID is a product that nobody has asked for.
func (r *rig) newID() string { return fmt.Sprintf("new-%d", r.ids.Add(1)) }

// startStorm lets readers come: to ten products that everybody wants, and to
// ones that nobody has asked for, which three callers of each process want at
// once.
func (r *rig) startStorm() {
	ctx, cancel := context.WithCancel(context.Background())
	r.storming = cancel
	r.storm.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			for _, p := range r.fleet {
				hot := fmt.Sprintf("/products/hot-%d", n%10)
				r.storm.Go(func() { r.read(ctx, p, hot) })
			}
			if n%10 == 0 {
				cold := "/products/" + r.newID()
				for i := range 3 * replicas {
					r.storm.Go(func() { r.read(ctx, r.fleet[i%replicas], cold) })
				}
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	})
	r.t.Cleanup(r.stopStorm)
}

func (r *rig) stopStorm() {
	r.storming()
	r.storm.Wait()
}

// startLister lets somebody ask for the list again and again.
func (r *rig) startLister() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var lister sync.WaitGroup
	lister.Go(func() {
		for ctx.Err() == nil {
			r.read(ctx, r.fleet[0], "/products")
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	})
	return func() { cancel(); lister.Wait() }
}

// origin is the products' origin, which does what a scenario wants.
type origin struct {
	url     string
	service atomic.Int64 // how long a load takes, in nanoseconds
	fails   atomic.Bool  // loads of products
	hangs   atomic.Bool  // loads of the list
	end     chan struct{}

	mu    sync.Mutex
	loads map[string]int // that have begun, by id; guarded by mu
}

func newOrigin(t testing.TB) *origin {
	o := &origin{loads: make(map[string]int), end: make(chan struct{})}
	o.takes(ordinary)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /products/{id}", o.get)
	mux.HandleFunc("PUT /products/{id}", func(w http.ResponseWriter, req *http.Request) { o.answer(w, req.PathValue("id")) })
	mux.HandleFunc("GET /products", o.list)
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Cleanup(func() { close(o.end) })
	o.url = s.URL
	return o
}

// ordinary is how long a load takes while nothing is wrong: long enough that a
// lease of twice that survives the pauses of a busy machine.
const ordinary = 500 * time.Millisecond

func (o *origin) takes(d time.Duration) { o.service.Store(int64(d)) }

func (o *origin) get(w http.ResponseWriter, req *http.Request) {
	id := req.PathValue("id")
	o.mu.Lock()
	o.loads[id]++
	o.mu.Unlock()
	select {
	case <-time.After(time.Duration(o.service.Load())):
	case <-o.end:
	}
	if o.fails.Load() {
		http.Error(w, "out of order", http.StatusInternalServerError)
		return
	}
	o.answer(w, id)
}

func (o *origin) list(w http.ResponseWriter, req *http.Request) {
	if o.hangs.Load() {
		select {
		case <-req.Context().Done():
		case <-o.end:
		}
		return
	}
	_, _ = io.WriteString(w, "[]")
}

func (o *origin) answer(w http.ResponseWriter, id string) {
	_ = json.NewEncoder(w).Encode(map[string]any{"id": id, "name": id, "price": 1, "stock": 1, "version": 1})
}

// loadsOf counts the loads of some products that have begun.
func (o *origin) loadsOf(ids []string) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		n += o.loads[id]
	}
	return n
}

func (o *origin) all() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, loads := range o.loads {
		n += loads
	}
	return n
}

// machine watches how late this process's own timers are: on a machine that
// starves, an alert about pauses is right.
type machine struct {
	worst atomic.Int64
	done  chan struct{}
}

func watchMachine(t testing.TB) *machine {
	m := &machine{done: make(chan struct{})}
	var watching sync.WaitGroup
	watching.Go(func() {
		const every = 10 * time.Millisecond
		for {
			due := time.Now().Add(every)
			select {
			case <-time.After(every):
				late := int64(time.Since(due))
				m.worst.Store(max(m.worst.Load(), late))
			case <-m.done:
				return
			}
		}
	})
	t.Cleanup(func() { close(m.done); watching.Wait() })
	return m
}

func (m *machine) late() time.Duration { return time.Duration(m.worst.Load()) }
