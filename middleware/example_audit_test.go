package middleware_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
	"github.com/cacheguard-go/cacheguard/middleware"
)

// A page that anybody can put a link into, for everybody else: in development,
// the audit finds it.
func ExampleOptions_audit() {
	found := make(chan middleware.Unkeyed, 1)
	pages, err := middleware.New(memstore.New(memstore.Options{}), middleware.Options{
		Policy: middleware.Policy{Lifetime: time.Minute},
		Audit:  func(u middleware.Unkeyed) { found <- u },
	})
	if err != nil {
		panic(err)
	}
	defer pages.Close()
	h := pages.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Header.Get("X-Forwarded-Host")
		if host == "" {
			host = r.Host
		}
		fmt.Fprintf(w, `<a href="https://%s/reset">`, host)
	}))

	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "http://shop.example/", nil))
	u := <-found
	fmt.Println(u.Input, u.Differs, "reflected:", u.Reflected, "stored:", u.Stored)
	// Output:
	// X-Forwarded-Host [body] reflected: true stored: true
}

// audited has what an audit finds in the log.
func audited(opts middleware.Options) middleware.Options {
	opts.Audit = func(u middleware.Unkeyed) { slog.Warn(u.String(), "input", u.Input, "reflected", u.Reflected) }
	return opts
}

var _ = audited
