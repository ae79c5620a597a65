package lease_test

import (
	"context"
	"errors"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/lease"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/internal/pgtest"
	"github.com/cacheguard-go/cacheguard/internal/redistest"
)

// docs/fencing.md shows three ways to change what was read. They are here, to be
// compiled and run; TestTheDocsShowWhatIsTested compares.

const products = `
CREATE TABLE products (
	id         text   PRIMARY KEY,
	stock      bigint NOT NULL,
	version    bigint NOT NULL DEFAULT 0,
	last_token bigint NOT NULL DEFAULT 0
)`

// changeUnderLease lets one process of the fleet at a time decide on the stock.
func changeUnderLease(ctx context.Context, locker *lease.Locker, db *pgxpool.Pool, id string, decide func(stock int64) int64) error {
	return locker.Do(ctx, "stock/"+id, func(ctx context.Context, token store.Token) error {
		var stock int64
		if err := db.QueryRow(ctx, `SELECT stock FROM products WHERE id = $1`, id).Scan(&stock); err != nil {
			return err // pgx.ErrNoRows: no such product
		}
		tag, err := db.Exec(ctx, `UPDATE products SET stock = $3, last_token = $2 WHERE id = $1 AND last_token < $2`,
			id, int64(token), decide(stock))
		if err == nil && tag.RowsAffected() == 0 {
			err = store.ErrFenced // the row is there: it was read above
		}
		return err
	})
}

// changeByVersion lets all decide at once; whoever writes first wins, the
// others decide anew.
func changeByVersion(ctx context.Context, db *pgxpool.Pool, id string, decide func(stock int64) int64) error {
	for range maxTries {
		var stock, version int64
		err := db.QueryRow(ctx, `SELECT stock, version FROM products WHERE id = $1`, id).Scan(&stock, &version)
		if err != nil {
			return err
		}
		tag, err := db.Exec(ctx, `UPDATE products SET stock = $3, version = version + 1 WHERE id = $1 AND version = $2`,
			id, version, decide(stock))
		if err != nil || tag.RowsAffected() == 1 {
			return err
		}
	}
	return errBusy
}

// changeByWatch is the same for a stock that is in Redis: EXEC does nothing if
// the key was written since WATCH.
func changeByWatch(ctx context.Context, client redis.UniversalClient, id string, decide func(stock int64) int64) error {
	key := "stock:" + id
	for range maxTries {
		err := client.Watch(ctx, func(tx *redis.Tx) error {
			stock, err := tx.Get(ctx, key).Int64()
			if err != nil {
				return err // redis.Nil: no such product
			}
			decided := decide(stock)
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
				p.Set(ctx, key, decided, redis.KeepTTL)
				return nil
			})
			return err
		}, key)
		if !errors.Is(err, redis.TxFailedErr) {
			return err
		}
	}
	return errBusy
}

const maxTries = 100

var errBusy = errors.New("others write this product all the time")

func TestTheDocsShowWhatIsTested(t *testing.T) {
	source, err := os.ReadFile("fencing_test.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/fencing.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?s)```(?:go|sql)\n(.*?)```").FindAllSubmatch(page, -1)
	if len(blocks) != 4 {
		t.Errorf("%d blocks of code, want a table and three functions", len(blocks))
	}
	for _, b := range blocks {
		if code := strings.TrimSpace(string(b[1])); !strings.Contains(string(source), code) {
			t.Errorf("this is not what is tested:\n%s", code)
		}
	}
}

// openProducts returns a database with one product, "lamp", of which there are
// ten.
func openProducts(t *testing.T) *pgxpool.Pool {
	t.Helper()
	db, err := pgxpool.New(t.Context(), pgtest.Start(t).DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	for _, sql := range []string{products, `INSERT INTO products (id, stock) VALUES ('lamp', 10)`} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

func stockIn(t *testing.T, db *pgxpool.Pool) (stock int64) {
	t.Helper()
	if err := db.QueryRow(t.Context(), `SELECT stock FROM products WHERE id = 'lamp'`).Scan(&stock); err != nil {
		t.Fatal(err)
	}
	return stock
}

// take takes one.
func take(stock int64) int64 { return stock - 1 }

// allTake lets ten callers take one each, at once.
func allTake(t *testing.T, change func() error) {
	t.Helper()
	var wg sync.WaitGroup
	for range 10 {
		wg.Go(func() {
			if err := change(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestALeaseAndItsTokenLoseNoChange(t *testing.T) {
	db := openProducts(t)
	shared := memstore.New(memstore.Options{})
	locker := lease.New(shared, lease.Options{})
	defer locker.Close()
	allTake(t, func() error { return changeUnderLease(t.Context(), locker, db, "lamp", take) })
	if stock := stockIn(t, db); stock != 0 {
		t.Errorf("stock %d after ten of ten were taken", stock)
	}

	// The store forgets the lease while its holder decides; another one comes and
	// goes. The holder would be told, sooner or later: it writes before that.
	other := lease.New(shared, lease.Options{})
	defer other.Close()
	err := changeUnderLease(t.Context(), locker, db, "lamp", func(stock int64) int64 {
		if errs := shared.Invalidate(t.Context(), []store.Key{{Space: "lease", ID: "stock/lamp"}}); errs != nil {
			t.Error(errs)
		}
		if err := changeUnderLease(t.Context(), other, db, "lamp", func(int64) int64 { return 7 }); err != nil {
			t.Error(err)
		}
		return stock - 1
	})
	if !errors.Is(err, store.ErrFenced) {
		t.Errorf("the late holder's change: %v, want ErrFenced", err)
	}
	if stock := stockIn(t, db); stock != 7 {
		t.Errorf("stock %d, want the 7 of the later holder", stock)
	}
}

func TestAVersionLosesNoChange(t *testing.T) {
	db := openProducts(t)
	allTake(t, func() error { return changeByVersion(t.Context(), db, "lamp", take) })
	if stock := stockIn(t, db); stock != 0 {
		t.Errorf("stock %d after ten of ten were taken", stock)
	}
	decided := 0
	err := changeByVersion(t.Context(), db, "lamp", func(stock int64) int64 {
		if decided++; decided == 1 {
			if err := changeByVersion(t.Context(), db, "lamp", func(int64) int64 { return 7 }); err != nil {
				t.Error(err)
			}
		}
		return stock + 1
	})
	if stock := stockIn(t, db); err != nil || decided != 2 || stock != 8 {
		t.Errorf("%v; decided %d times, stock %d; want the second try on top of the other's 7", err, decided, stock)
	}
}

func TestWatchLosesNoChange(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr})
	defer client.Close()
	if err := client.Set(t.Context(), "stock:lamp", 10, 0).Err(); err != nil {
		t.Fatal(err)
	}
	allTake(t, func() error { return changeByWatch(t.Context(), client, "lamp", take) })
	if stock, err := client.Get(t.Context(), "stock:lamp").Int64(); err != nil || stock != 0 {
		t.Errorf("stock %d, %v after ten of ten were taken", stock, err)
	}
	decided := 0
	err := changeByWatch(t.Context(), client, "lamp", func(stock int64) int64 {
		if decided++; decided == 1 {
			if err := changeByWatch(t.Context(), client, "lamp", func(int64) int64 { return 7 }); err != nil {
				t.Error(err)
			}
		}
		return stock + 1
	})
	stock, getErr := client.Get(t.Context(), "stock:lamp").Int64()
	if err := errors.Join(err, getErr); err != nil || decided != 2 || stock != 8 {
		t.Errorf("%v; decided %d times, stock %d; want the second try on top of the other's 7", err, decided, stock)
	}
	if err := changeByWatch(t.Context(), client, "none", take); !errors.Is(err, redis.Nil) {
		t.Errorf("of no product: %v, want redis.Nil", err)
	}
}
