package main

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
	"time"
)

//go:embed page.html
var pageHTML string

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// page is what a browser finds at /: what there is, and how it is set up.
func page(cfg config, originName string) http.HandlerFunc {
	store := "in the memory of this process"
	if cfg.redis != "" {
		store = "a Redis that the fleet shares"
	}
	data := pageData{
		Mode: cfg.mode, Store: store, Origin: originName, InMemory: cfg.origin == "" && cfg.postgres == "", Products: memProducts,
		Load: cfg.load, TTL: cfg.ttl, Grace: cfg.grace, Pool: cfg.pool,
	}
	return func(w http.ResponseWriter, r *http.Request) {
		data := data
		data.Host = r.Host
		var buf bytes.Buffer
		if err := pageTemplate.Execute(&buf, data); err != nil {
			http.Error(w, "the page cannot be made", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		w.Write(buf.Bytes())
	}
}

// pageData is what page.html shows.
type pageData struct {
	Host, Mode, Store, Origin string
	InMemory                  bool
	Products, Pool            int
	Load, TTL, Grace          time.Duration
}
