package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// server answers HTTP.
type server struct {
	catalogue *catalogue
	live      *live
}

func newServer(cfg config, l *live, p *pages, m *metrics, draining *atomic.Bool) http.Handler {
	srv := &server{catalogue: l.catalogue, live: l}
	r := chi.NewRouter()
	r.Use(middleware.Recoverer, limitTime)
	var held chi.Middlewares
	if cfg.loadtest {
		held = chi.Middlewares{startAtOnce}
		r.With(held...).Get("/floor/{id}", getFloor)
	}
	r.Get("/", page(cfg, l.catalogue.origin.name))
	r.Get("/live/page.js", asset("text/javascript", liveJS))
	r.Get("/live/page.css", asset("text/css", liveCSS))
	r.Route("/live", l.routes)
	r.Route("/pages", func(r chi.Router) {
		r = r.With(held...)
		p.routes(r)
		if cfg.loadtest {
			r.With(p.cached).Method(http.MethodGet, "/kinds/{kind}/{id}", new(kinds))
		}
	})
	r.Get("/products", srv.listProducts)
	r.With(held...).Get("/products/{id}", srv.getProduct)
	r.Put("/products/{id}", srv.putProduct)
	r.Post("/products/{id}/stock", srv.postStock)
	r.Get("/healthz", healthy)
	r.Method(http.MethodGet, "/readyz", readiness{l.back.store, draining})
	r.Method(http.MethodGet, "/metrics", m.handler())
	return r
}

// limitTime bounds what a request may wait for.
func limitTime(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answerLimit)
		defer cancel()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

func (s *server) getProduct(w http.ResponseWriter, r *http.Request) {
	id := r.PathValue("id")
	defer s.live.asked(id)()
	entry, err := s.catalogue.Product(r.Context(), id)
	if err != nil {
		fail(w, r, err)
		return
	}
	w.Header().Set("X-Origin-Loads", strconv.FormatInt(s.catalogue.origin.LoadsOf(id), 10))
	answerEntry(w, entry)
}

func (s *server) listProducts(w http.ResponseWriter, r *http.Request) {
	entry, err := s.catalogue.Products(r.Context())
	if err != nil {
		fail(w, r, err)
		return
	}
	answerEntry(w, entry)
}

// putProduct answers when the write is committed and the cache was told.
func (s *server) putProduct(w http.ResponseWriter, r *http.Request) {
	p, err := readProduct(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.ID = r.PathValue("id")
	written, err := s.catalogue.Write(r.Context(), p)
	if err != nil {
		fail(w, r, err)
		return
	}
	answer(w, written)
}

// answerEntry answers with what was cached, and with headers that tell where it
// came from. They are here to be looked at and for loadtest; a service would
// keep them to itself.
func answerEntry[V any](w http.ResponseWriter, e cacheguard.Entry[V]) {
	w.Header().Set("X-Cacheguard-State", e.State.String())
	w.Header().Set("X-Cacheguard-Coalesced", strconv.FormatBool(e.Coalesced))
	w.Header().Set("X-Cacheguard-Age", e.Age.Round(time.Millisecond).String())
	w.Header().Set("X-Cacheguard-Token", strconv.FormatInt(int64(e.Token), 10))
	answer(w, e.Value)
}

func answer(w http.ResponseWriter, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		http.Error(w, "the answer cannot be written as JSON", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Write(body)
}

// fail answers an error: there is never an empty answer in its place. What the
// error says goes to the log: it may quote the origin.
func fail(w http.ResponseWriter, r *http.Request, err error) {
	var cooldown *cacheguard.CooldownError
	switch {
	case errors.Is(err, cacheguard.ErrNotFound):
		http.Error(w, "no such product", http.StatusNotFound)
		return
	case errors.Is(err, context.Canceled) && r.Context().Err() != nil:
		return // nobody is there to read an answer
	case errors.As(err, &cooldown):
		retryLater(w, cooldown.Left, "the origin failed a moment ago and is left alone")
	case errors.Is(err, cacheguard.ErrWaitLimit), errors.Is(err, context.DeadlineExceeded):
		retryLater(w, time.Second, "the product did not come in time")
	case errors.Is(err, errNotInvalidated):
		retryLater(w, time.Second, errNotInvalidated.Error())
	case errors.Is(err, cacheguard.ErrClosed):
		retryLater(w, time.Second, "this server is going away")
	default:
		http.Error(w, "the origin failed", http.StatusBadGateway)
	}
	slog.Warn("request failed", "method", r.Method, "error", err)
}

// retryLater answers 503 with the whole seconds after which to try again.
func retryLater(w http.ResponseWriter, after time.Duration, why string) {
	w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(after.Seconds())))))
	http.Error(w, why, http.StatusServiceUnavailable)
}

// readProduct reads what a PUT replaces: name and price, both of them.
func readProduct(body io.Reader) (product, error) {
	var in struct {
		Name  *string `json:"name"`
		Price *int64  `json:"price"`
		Stock *int64  `json:"stock"` // known only to say where it is changed
	}
	dec := json.NewDecoder(body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		return product{}, fmt.Errorf("the body is not a product (%w); send {\"name\": \"Lamp\", \"price\": 1499}", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return product{}, errors.New("something follows the product; send one JSON object")
	}
	switch {
	case in.Stock != nil:
		return product{}, errors.New("a PUT leaves the stock alone, which changes meanwhile; POST {\"delta\": -1} to /products/{id}/stock")
	case in.Name == nil || in.Price == nil:
		return product{}, errors.New("a PUT replaces the product: send name and price (in cents)")
	case *in.Name == "" || len(*in.Name) > maxName || strings.ContainsRune(*in.Name, 0):
		return product{}, fmt.Errorf("name must have 1 to %d bytes, none of them zero", maxName)
	case *in.Price < 0:
		return product{}, errors.New("price must not be negative")
	}
	return product{Name: *in.Name, Price: *in.Price}, nil
}

const (
	maxBody = 64 << 10
	maxName = 200
)
