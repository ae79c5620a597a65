package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// pgOrigin is a catalogue in PostgreSQL (-postgres), one for a whole fleet.
type pgOrigin struct{ db *pgxpool.Pool }

// openPostgres connects to a database and makes the table of products there, if
// it is not there yet. The name that it returns holds no password.
func openPostgres(ctx context.Context, dsn string, connections int) (o *pgOrigin, name string, err error) {
	cfg, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		// Without the reason: it may quote the DSN, and so a password.
		return nil, "", errors.New("-postgres is not the DSN of a PostgreSQL; use one such as postgres://user:password@host:5432/database")
	}
	cfg.MaxConns = int32(connections)
	at := cfg.ConnConfig
	name = fmt.Sprintf("PostgreSQL at %s/%s", net.JoinHostPort(at.Host, strconv.Itoa(int(at.Port))), at.Database)
	db, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, "", fmt.Errorf("%s cannot be used: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	if err := db.Ping(ctx); err != nil {
		db.Close()
		return nil, "", fmt.Errorf("no %s answers (%s); start one there, or leave out -postgres for products in memory", name, oneLine(err))
	}
	if err := prepareProducts(ctx, db); err != nil {
		db.Close()
		return nil, "", fmt.Errorf("the table of products cannot be made in %s (%s); use a database of the demo's own", name, oneLine(err))
	}
	return &pgOrigin{db}, name, nil
}

// prepareLimit bounds the first look at a database and the making of the table.
const prepareLimit = 10 * time.Second

// prepareProducts makes and fills the table, once, however many processes start
// at the same moment: CREATE TABLE IF NOT EXISTS alone fails in one of two that
// run it at once, and an empty table seen by both would be filled by both.
func prepareProducts(ctx context.Context, db *pgxpool.Pool) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		for _, step := range []struct {
			sql  string
			args []any
		}{
			{"SELECT pg_advisory_xact_lock($1)", []any{prepareKey}}, // until the commit
			{createProducts, nil},
			{seedProducts, []any{memProducts}},
		} {
			if _, err := tx.Exec(ctx, step.sql, step.args...); err != nil {
				return err
			}
		}
		return nil
	})
}

const (
	// prepareKey tells the advisory lock of prepareProducts from others in the
	// database.
	prepareKey = 0x636163686567 // "cacheg"

	// last_token is the fence of the stock: the token of the last change.
	createProducts = `
CREATE TABLE IF NOT EXISTS products (
	id         text   PRIMARY KEY,
	name       text   NOT NULL,
	price      bigint NOT NULL CHECK (price >= 0),
	stock      bigint NOT NULL CHECK (stock >= 0),
	version    bigint NOT NULL DEFAULT 1,
	last_token bigint NOT NULL DEFAULT 0
)`

	// The same products as those in memory, if there are none.
	seedProducts = `
INSERT INTO products (id, name, price, stock)
SELECT i + 1, 'Product ' || i + 1, 199 + 100 * (i % 50), 10 + i % 90
FROM generate_series(0, $1::bigint - 1) AS i
WHERE NOT EXISTS (SELECT FROM products)`

	selectProduct  = `SELECT id, name, price, stock, version FROM products WHERE id = $1`
	selectProducts = `SELECT id, name, price, stock, version FROM products ORDER BY length(id), id COLLATE "C" LIMIT $1`

	updateProduct = `
UPDATE products SET name = $2, price = $3, version = version + 1
WHERE id = $1
RETURNING id, name, price, stock, version`

	// One statement, so that nothing can come between the comparison and the
	// write. Where two run at once the second waits for the first's commit and
	// then compares with what that wrote.
	updateStock = `
UPDATE products SET stock = $3, last_token = $2, version = version + 1
WHERE id = $1 AND last_token < $2
RETURNING id, name, price, stock, version`

	selectToken = `SELECT last_token FROM products WHERE id = $1`
)

// oneLine is what an error says, which may be several lines.
func oneLine(err error) string { return strings.Join(strings.Fields(err.Error()), " ") }

// maxList bounds a list of products.
const maxList = 10_000

func (o *pgOrigin) Load(ctx context.Context, id string) (product, error) {
	return o.one(ctx, selectProduct, id)
}

func (o *pgOrigin) List(ctx context.Context) ([]product, error) {
	rows, err := o.db.Query(ctx, selectProducts, maxList)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[product])
}

func (o *pgOrigin) Write(ctx context.Context, p product) (product, error) {
	return o.one(ctx, updateProduct, p.ID, p.Name, p.Price)
}

func (o *pgOrigin) SetStock(ctx context.Context, token store.Token, id string, stock int64) (product, error) {
	p, err := o.one(ctx, updateStock, id, int64(token), stock)
	if !errors.Is(err, cacheguard.ErrNotFound) {
		return p, err
	}
	// No row was written: there is none, or its fence is not below the token.
	// Rows are not deleted and fences do not go down, so a look afterwards tells.
	if _, err := o.Load(ctx, id); err != nil {
		return product{}, err
	}
	var last store.Token
	if err := o.db.QueryRow(ctx, selectToken, id).Scan(&last); err != nil {
		return product{}, err
	}
	return product{}, &fencedError{Token: token, Last: last}
}

// one runs a statement that is about the product with an id, its $1.
func (o *pgOrigin) one(ctx context.Context, sql, id string, args ...any) (product, error) {
	if !utf8.ValidString(id) || strings.ContainsRune(id, 0) {
		return product{}, cacheguard.ErrNotFound // PostgreSQL has no such text, and calls it an error
	}
	rows, err := o.db.Query(ctx, sql, append([]any{id}, args...)...)
	if err != nil {
		return product{}, err
	}
	p, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[product])
	if errors.Is(err, pgx.ErrNoRows) {
		return product{}, cacheguard.ErrNotFound
	}
	return p, err
}

// Close closes the connections.
func (o *pgOrigin) Close() error {
	o.db.Close()
	return nil
}
