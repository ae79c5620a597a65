package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// postStock asks a process for a change of stock.
func postStock(t *testing.T, p process, id, body string) reply {
	t.Helper()
	return call(t, "POST", p.url+"/products/"+id+"/stock", body)
}

// testStock checks what the stock route does, on a fresh origin of any kind:
// product 1 has 10 in stock.
func testStock(t *testing.T, p process) {
	t.Helper()
	for _, path := range []string{"/products/1", "/products"} {
		if r := call(t, "GET", p.url+path, ""); r.status != http.StatusOK {
			t.Fatalf("GET %s: %d %s", path, r.status, r.body)
		}
	}
	changed := postStock(t, p, "1", `{"delta": -3}`).product(t)
	if changed.ID != "1" || changed.Stock != 7 || changed.Version != 2 {
		t.Errorf("POST answers %+v, want a stock of 7 in version 2", changed)
	}
	if got := call(t, "GET", p.url+"/products/1", "").product(t); got != changed {
		t.Errorf("a reader after it gets %+v, want %+v", got, changed)
	}
	if list := call(t, "GET", p.url+"/products", ""); !strings.Contains(list.body, `"stock":7,"version":2`) {
		t.Error("the list after it is still the old one")
	}
	if r := postStock(t, p, "1", `{"delta": -8}`); r.status != http.StatusConflict || !strings.Contains(r.body, "not that much in stock") {
		t.Errorf("more than there is: %d %s", r.status, r.body)
	}
	if r := postStock(t, p, "none", `{"delta": 1}`); r.status != http.StatusNotFound {
		t.Errorf("of no product: %d %s", r.status, r.body)
	}
	if got := call(t, "PUT", p.url+"/products/1", `{"name": "Lamp", "price": 1499}`).product(t); got.Stock != 7 {
		t.Errorf("a PUT changed the stock: %+v", got)
	}
}

func TestStockIsChangedInMemory(t *testing.T) { testStock(t, start(t, "-load", "1ms")) }

func TestStockIsChangedAtAnOrigin(t *testing.T) {
	testStock(t, start(t, "-origin", patchableOrigin(t)))
}

// patchableOrigin serves the products of memory, as -origin asks.
func patchableOrigin(t *testing.T) (url string) {
	o := newMemOrigin(10, 0)
	mux := http.NewServeMux()
	send := func(w http.ResponseWriter, v any, err error) {
		switch {
		case errors.Is(err, cacheguard.ErrNotFound):
			http.NotFound(w, nil)
		case errors.Is(err, store.ErrFenced):
			http.Error(w, "late", http.StatusConflict)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			answer(w, v)
		}
	}
	mux.HandleFunc("GET /products", func(w http.ResponseWriter, r *http.Request) {
		list, err := o.List(r.Context())
		send(w, list, err)
	})
	mux.HandleFunc("GET /products/{id}", func(w http.ResponseWriter, r *http.Request) {
		p, err := o.Load(r.Context(), r.PathValue("id"))
		send(w, p, err)
	})
	mux.HandleFunc("PUT /products/{id}", func(w http.ResponseWriter, r *http.Request) {
		p, err := readProduct(r.Body)
		if err == nil {
			p.ID = r.PathValue("id")
			p, err = o.Write(r.Context(), p)
		}
		send(w, p, err)
	})
	mux.HandleFunc("PATCH /products/{id}", func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Stock, Token int64 }
		err := json.NewDecoder(r.Body).Decode(&in)
		var p product
		if err == nil {
			p, err = o.SetStock(r.Context(), store.Token(in.Token), r.PathValue("id"), in.Stock)
		}
		send(w, p, err)
	})
	return fakeOrigin(t, mux.ServeHTTP)
}

func TestAChangeOfStockThatIsNoneIsRefused(t *testing.T) {
	p := start(t, "-load", "0")
	for body, says := range map[string]string{
		``:                          "is not a change of stock",
		`[]`:                        "is not a change of stock",
		`{"delta": "1"}`:            "is not a change of stock",
		`{"delta": 1.5}`:            "is not a change of stock",
		`{"delta": 1, "stock": 10}`: "is not a change of stock",
		`{}`:                        "missing or 0",
		`{"delta": 0}`:              "missing or 0",
		`{"delta": 1}{}`:            "one JSON object",
	} {
		if r := postStock(t, p, "1", body); r.status != http.StatusBadRequest || !strings.Contains(r.body, says) {
			t.Errorf("POST %s: %d %s; want 400 and %q", body, r.status, r.body, says)
		}
	}
	for _, delta := range []string{"9223372036854775807", "-9223372036854775808", "2147483647"} {
		if r := postStock(t, p, "1", `{"delta": `+delta+`}`); r.status != http.StatusConflict {
			t.Errorf("delta %s: %d %s; want 409", delta, r.status, r.body)
		}
	}
	if got := call(t, "GET", p.url+"/products/1", "").product(t); got.Version != 1 {
		t.Errorf("something was written: %+v", got)
	}
}

func TestNoChangeOfStockIsLostAmongManyAtOnce(t *testing.T) {
	redis := embeddedRedis(t)
	origin := patchableOrigin(t)
	args := []string{"-origin", origin, "-redis", redis.Addr()}
	fleet := []process{start(t, args...), start(t, args...)}
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			if r := postStock(t, fleet[i%2], "1", `{"delta": -1}`); r.status != http.StatusOK {
				t.Errorf("%d %s", r.status, r.body)
			}
		})
	}
	wg.Wait()
	for i, p := range fleet {
		if got := call(t, "GET", p.url+"/products/1", "").product(t); got.Stock != 0 || got.Version != 11 {
			t.Errorf("process %d: %+v, want a stock of 0 after 10 changes", i, got)
		}
	}
}

func TestStockIsLeftAloneWithoutALease(t *testing.T) {
	redis := embeddedRedis(t)
	p := start(t, "-load", "0", "-redis", redis.Addr())
	redis.Close()
	if r := postStock(t, p, "1", `{"delta": -1}`); r.status != http.StatusServiceUnavailable || r.header.Get("Retry-After") == "" {
		t.Errorf("%d %s; want 503 and when to ask again", r.status, r.body)
	}
	if got := call(t, "GET", p.url+"/products/1", "").product(t); got.Stock != 10 || got.Version != 1 {
		t.Errorf("product %+v; want it unchanged", got)
	}
}

// origins are those of this process, each with a product 1 with 10 in stock.
func origins(t *testing.T) map[string]origin {
	remote := newRemoteOrigin(patchableOrigin(t), 2)
	t.Cleanup(remote.client.CloseIdleConnections)
	return map[string]origin{"in memory": newMemOrigin(1, 0), "remote": remote}
}

func TestALateChangeOfStockIsFenced(t *testing.T) {
	for name, o := range origins(t) {
		t.Run(name, func(t *testing.T) { testFence(t, o) })
	}
}

// testFence checks the fence of any origin that has a product 1.
func testFence(t *testing.T, o origin) {
	t.Helper()
	ctx := t.Context()
	if p, err := o.SetStock(ctx, 42, "1", 7); err != nil || p.Stock != 7 {
		t.Fatalf("SetStock under token 42: %+v, %v", p, err)
	}
	_, err := o.SetStock(ctx, 41, "1", 9)
	var fenced *fencedError
	if !errors.As(err, &fenced) || fenced.Token != 41 || !errors.Is(err, store.ErrFenced) {
		t.Errorf("SetStock under token 41: %v; want a *fencedError with that token", err)
	}
	if errors.Is(err, cacheguard.ErrNotFound) {
		t.Error("a fenced change looks like one of no product")
	}
	if p, err := o.Load(ctx, "1"); err != nil || p.Stock != 7 {
		t.Errorf("the late change came through: %+v, %v", p, err)
	}
	if _, err := o.SetStock(ctx, 43, "none", 1); !errors.Is(err, cacheguard.ErrNotFound) || errors.Is(err, store.ErrFenced) {
		t.Errorf("SetStock of no product: %v; want ErrNotFound", err)
	}
	if p, err := o.SetStock(ctx, 43, "1", 5); err != nil || p.Stock != 5 {
		t.Errorf("SetStock under token 43: %+v, %v", p, err)
	}
}

// TestEveryFailureOfAChangeHasItsAnswer: only where nothing was changed is a
// client told to ask again.
func TestEveryFailureOfAChangeHasItsAnswer(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		retry  bool
	}{
		{errOutOfStock, 409, false},
		{&fencedError{Token: 41, Last: 42}, 409, false},
		{&store.HeldError{}, 503, true},
		{store.ErrLost, 503, true},
		{&store.Fault{Op: "claim", Class: store.ClassConnection, Err: io.EOF}, 503, true},
		{errors.Join(errInDoubt, store.ErrLost, context.Canceled), 502, false},
		{errors.Join(errNotInvalidated, &store.Fault{Op: "invalidate", Class: store.ClassTimeout, Err: io.EOF}), 502, false},
		{cacheguard.ErrNotFound, 404, false},
		{io.ErrUnexpectedEOF, 502, false},
	} {
		w := httptest.NewRecorder()
		failStock(w, httptest.NewRequestWithContext(t.Context(), "POST", "/products/1/stock", nil), c.err)
		if w.Code != c.status || (w.Header().Get("Retry-After") != "") != c.retry {
			t.Errorf("%v: %d, Retry-After %q; want %d, %v", c.err, w.Code, w.Header().Get("Retry-After"), c.status, c.retry)
		}
	}
}
