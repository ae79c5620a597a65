package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"
)

// origin is where the fleet's products are. It lives in this process, so it
// knows what is true: how often each product was asked for, and its version at
// every moment.
type origin struct {
	url     string
	service time.Duration // how long a load takes
	server  *http.Server
	served  chan error

	mu     sync.Mutex
	items  map[string]*item // guarded by mu
	active int              // loads under way; guarded by mu
	asked  int64            // loads of all products; guarded by mu
}

type item struct {
	version int64
	loads   int64    // questions for it
	active  int64    // of these under way
	most    int64    // of these under way at once
	fails   bool     // they are answered with an error
	changes []change // in the number under way, for the plots; at most maxChanges
}

// productOf is what version v of a product looks like: each field follows from
// the key and the version, so that a mixture of two cannot pass for either.
func productOf(key string, v int64) product {
	return product{ID: key, Name: fmt.Sprintf("%s, version %d", key, v), Price: 100 + v, Stock: 1000 - v, Version: v}
}

func startOrigin(service time.Duration) (*origin, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("the origin finds no port: %w", err)
	}
	o := &origin{url: "http://" + ln.Addr().String(), service: service, items: map[string]*item{}, served: make(chan error, 1)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /products/{id}", o.get)
	mux.HandleFunc("PUT /products/{id}", o.put)
	o.server = &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { o.served <- o.server.Serve(ln) }()
	return o, nil
}

// Close ends the server and everything that it does.
func (o *origin) Close() error {
	err := o.server.Close()
	if served := <-o.served; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// get answers with the product as it was when the question came, after the
// service time: like a query that sees the rows of its beginning. So an answer
// can be old when it arrives, which is what fences are for.
func (o *origin) get(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("id")
	version, fails := o.begin(key)
	defer o.end(key)
	if version == 0 {
		http.NotFound(w, r)
		return
	}
	select {
	case <-time.After(o.service):
	case <-r.Context().Done():
		return
	}
	if fails {
		http.Error(w, "the origin is told to fail", http.StatusServiceUnavailable)
		return
	}
	writeProduct(w, productOf(key, version))
}

// put commits a new version at once, whatever is sent.
func (o *origin) put(w http.ResponseWriter, r *http.Request) {
	key := r.PathValue("id")
	if o.version(key) == 0 {
		http.NotFound(w, r)
		return
	}
	writeProduct(w, productOf(key, o.write(key)))
}

func writeProduct(w http.ResponseWriter, p product) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(p) // that the client is gone is the client's affair
}

// begin counts a load and returns the version that it sees, 0 if there is no such
// product, and whether it is to fail.
func (o *origin) begin(key string) (version int64, fails bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.active++
	o.asked++
	it := o.items[key]
	if it == nil {
		return 0, false
	}
	it.loads++
	it.active++
	it.most = max(it.most, it.active)
	it.changed(+1)
	return it.version, it.fails
}

func (o *origin) end(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.active--
	if it := o.items[key]; it != nil {
		it.active--
		it.changed(-1)
	}
}

// changed notes when the number of loads under way changed. o.mu is held.
func (it *item) changed(by int) {
	if len(it.changes) < maxChanges {
		it.changes = append(it.changes, change{time.Now(), by})
	}
}

// maxChanges is enough for a storm of maxCallers without any protection.
const maxChanges = 2 * maxCallers

// changes are those of some products' loads, in their order.
func (o *origin) changes(keys ...string) (all []change) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, key := range keys {
		all = append(all, o.items[key].changes...)
	}
	slices.SortStableFunc(all, func(a, b change) int { return a.at.Compare(b.at) })
	return all
}

// fail makes the loads of a product fail from now on, or not.
func (o *origin) fail(key string, fails bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.items[key].fails = fails
}

// most is how many loads of a product were under way at once.
func (o *origin) most(key string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.items[key].most
}

// create makes a product, in its version 1.
func (o *origin) create(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.items[key] = &item{version: 1}
}

// write commits the next version of a product and returns it. The fleet is not
// told.
func (o *origin) write(key string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	it := o.items[key]
	it.version++
	return it.version
}

// version is the newest of a product; 0: no such product.
func (o *origin) version(key string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if it := o.items[key]; it != nil {
		return it.version
	}
	return 0
}

// loads is how often a product was asked for.
func (o *origin) loads(key string) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.items[key].loads
}

// forgetLoads starts the count of a product anew.
func (o *origin) forgetLoads(key string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	it := o.items[key]
	it.loads, it.most, it.changes = 0, 0, nil
}

// allLoads is how often it was asked for anything.
func (o *origin) allLoads() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked
}

// busy is how many loads are under way.
func (o *origin) busy() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.active
}

// settle waits until no load is under way, and for as long again as a process
// may take to make up its mind about another.
func (o *origin) settle(ctx context.Context) error {
	quiet := 0
	for range int((o.service + 10*time.Second) / settleStep) {
		if quiet = quiet + 1; o.busy() > 0 {
			quiet = 0
		}
		if quiet == settleSteps {
			return nil
		}
		if err := pause(ctx, settleStep); err != nil {
			return err
		}
	}
	return errors.New("the origin is still asked long after the last caller was answered")
}

// Quiet for 50 ms: ten times what a claim and its answer take.
const (
	settleStep  = 5 * time.Millisecond
	settleSteps = 10
)

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
