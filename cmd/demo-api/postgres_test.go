package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/internal/pgtest"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

func newDatabase(t *testing.T, server *pgtest.Server) (dsn string) {
	t.Helper()
	dsn, err := server.NewDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return dsn
}

func openDatabase(t *testing.T, dsn string) *pgOrigin {
	t.Helper()
	o, _, err := openPostgres(t.Context(), dsn, 4)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

// query returns the one value that a statement gives.
func query[V any](t *testing.T, o *pgOrigin, sql string, args ...any) (v V) {
	t.Helper()
	if err := o.db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestProductsInPostgres(t *testing.T) {
	server := pgtest.Start(t)

	t.Run("are those that there are in memory", func(t *testing.T) {
		got, err := openDatabase(t, newDatabase(t, server)).List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want, err := newMemOrigin(memProducts, 0).List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Fatalf("%d products, want %d", len(got), len(want))
		}
		for i := range want {
			if got[i] != want[i] {
				t.Errorf("product %+v, want %+v", got[i], want[i])
			}
		}
	})

	t.Run("are made once by many processes that start at once", func(t *testing.T) {
		dsn := newDatabase(t, server)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				o, _, err := openPostgres(t.Context(), dsn, 1)
				if err != nil {
					t.Error(err)
					return
				}
				o.Close()
			})
		}
		wg.Wait()
		if n := query[int](t, openDatabase(t, dsn), "SELECT count(*) FROM products"); n != memProducts {
			t.Errorf("%d products, want %d", n, memProducts)
		}
	})

	t.Run("stay as they are when a process starts", func(t *testing.T) {
		dsn := newDatabase(t, server)
		written, err := openDatabase(t, dsn).Write(t.Context(), product{ID: "3", Name: "Lamp", Price: 5})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := openDatabase(t, dsn).Load(t.Context(), "3"); err != nil || got != written || got.Version != 2 {
			t.Errorf("product %+v, %v; want %+v", got, err, written)
		}
	})

	t.Run("are behind the cache", func(t *testing.T) {
		dsn := newDatabase(t, server)
		o, p := openDatabase(t, dsn), start(t, "-postgres", dsn)
		first := call(t, "GET", p.url+"/products/1", "").product(t)
		query[int](t, o, "UPDATE products SET price = 1 WHERE id = '1' RETURNING 1") // nobody tells the cache
		second := call(t, "GET", p.url+"/products/1", "")
		if second.state() != "fresh" || second.product(t) != first {
			t.Errorf("state %s, %s: the second read went past the cache", second.state(), second.body)
		}
		written := call(t, "PUT", p.url+"/products/1", `{"name": "Lamp", "price": 1499}`).product(t)
		if got := call(t, "GET", p.url+"/products/1", ""); got.state() != "rebuilt" || got.product(t) != written || written.Price != 1499 {
			t.Errorf("after a write: state %s, %s; want %+v", got.state(), got.body, written)
		}
		if r := call(t, "PUT", p.url+"/products/none", `{"name":"x","price":1}`); r.status != http.StatusNotFound {
			t.Errorf("PUT of what is not there: %d", r.status)
		}
	})

	t.Run("have a stock", func(t *testing.T) { testStock(t, start(t, "-postgres", newDatabase(t, server))) })

	t.Run("have a fence", func(t *testing.T) {
		o := openDatabase(t, newDatabase(t, server))
		testFence(t, o)
		_, err := o.SetStock(t.Context(), 7, "1", 9)
		var fenced *fencedError
		if !errors.As(err, &fenced) || fenced.Last != 43 || !strings.Contains(err.Error(), "token 7 came after 43") {
			t.Errorf("%v; want that it names both tokens", err)
		}
		if _, err := o.SetStock(t.Context(), 43, "1", 9); !errors.As(err, &fenced) {
			t.Errorf("a statement that is sent again: %v; want that it is refused", err)
		}
	})

	t.Run("do not have ids that are no text", func(t *testing.T) {
		p := start(t, "-postgres", newDatabase(t, server))
		for _, id := range []string{"%00", "1%00", "%FF"} {
			if r := call(t, "GET", p.url+"/products/"+id, ""); r.status != http.StatusNotFound {
				t.Errorf("GET %s: %d %s", id, r.status, r.body)
			}
			if r := call(t, "PUT", p.url+"/products/"+id, `{"name":"x","price":1}`); r.status != http.StatusNotFound {
				t.Errorf("PUT %s: %d %s", id, r.status, r.body)
			}
			if r := postStock(t, p, id, `{"delta":1}`); r.status != http.StatusNotFound {
				t.Errorf("POST %s: %d %s", id, r.status, r.body)
			}
		}
	})

	t.Run("are not made in a table of somebody else's", func(t *testing.T) {
		dsn := newDatabase(t, server)
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(context.Background())
		if _, err := conn.Exec(t.Context(), "CREATE TABLE products (sku text)"); err != nil {
			t.Fatal(err)
		}
		_, _, err = openPostgres(t.Context(), dsn, 1)
		if err == nil || !strings.Contains(err.Error(), "use a database of the demo's own") || strings.Contains(err.Error(), "\n") {
			t.Errorf("openPostgres = %v; want one line that says what to do", err)
		}
	})
}

// TestTheDatabaseRefusesALateWrite lets a process compute a stock and stops it,
// for longer than its lease, just before it writes.
func TestTheDatabaseRefusesALateWrite(t *testing.T) {
	redis, server := redistest.Start(t), pgtest.Start(t)
	dsn := newDatabase(t, server)
	a := startLateWriter(t, dsn, redis.Addr) // has read 10 and is about to write 9
	a.stop()
	b := start(t, "-postgres", dsn, "-redis", redis.Addr)
	taken := postStock(t, b, "1", `{"delta": -3}`).product(t) // waits for the end of A's lease
	if taken.Stock != 7 {
		t.Errorf("B leaves %d in stock, want 7", taken.Stock)
	}
	o := openDatabase(t, dsn)
	last := query[int64](t, o, selectToken, "1")
	if last <= a.token {
		t.Errorf("B wrote under token %d, A has %d: tokens must grow", last, a.token)
	}

	got := a.resume()
	if !got.IsFenced || got.Token != a.token || got.Last != last || got.IsNotFound {
		t.Errorf("A's write: %+v; want that it was fenced, token %d after %d", got, a.token, last)
	}
	if p, err := o.Load(t.Context(), "1"); err != nil || p != taken {
		t.Errorf("in the end there is %+v, %v; want what B wrote, %+v", p, err, taken)
	}
	if p := call(t, "GET", b.url+"/products/1", "").product(t); p != taken {
		t.Errorf("a reader gets %+v; want what B wrote, %+v", p, taken)
	}
}

// TestNobodyWaitsLongForAKilledWriter: the next one has the lease as soon as it
// runs out, and the killed one has written nothing.
func TestNobodyWaitsLongForAKilledWriter(t *testing.T) {
	redis, server := redistest.Start(t), pgtest.Start(t)
	dsn := newDatabase(t, server)
	b := start(t, "-postgres", dsn, "-redis", redis.Addr)
	a := startLateWriter(t, dsn, redis.Addr)
	a.process.Kill()
	killed := time.Now()
	taken := postStock(t, b, "1", `{"delta": -3}`).product(t)
	took := time.Since(killed)
	t.Logf("taken over %v after the kill, of a lease of %v", took, stockLease)
	// The last second is for a machine that is busy with other tests.
	if took > stockLease+time.Second {
		t.Errorf("taken over %v after the kill, of a lease of %v", took, stockLease)
	}
	if taken.Stock != 7 || taken.Version != 2 {
		t.Errorf("B leaves %+v, want a stock of 7 in version 2", taken)
	}
}

func TestADatabaseThatIsGoneIsNotAnAbsentProduct(t *testing.T) {
	server := pgtest.Start(t)
	o := openDatabase(t, newDatabase(t, server))
	server.Stop()
	for name, ask := range map[string]func() error{
		"Load":     func() error { _, err := o.Load(t.Context(), "1"); return err },
		"Write":    func() error { _, err := o.Write(t.Context(), product{ID: "1", Name: "x"}); return err },
		"SetStock": func() error { _, err := o.SetStock(t.Context(), 1, "1", 1); return err },
		"List":     func() error { _, err := o.List(t.Context()); return err },
	} {
		var fenced *fencedError
		if err := ask(); err == nil || errors.Is(err, cacheguard.ErrNotFound) || errors.As(err, &fenced) {
			t.Errorf("%s = %v; want an error of the database", name, err)
		}
	}
}
