package main

import (
	"bytes"
	_ "embed" // what a browser gets
	"html/template"
	"net/http"
	"time"
)

//go:embed live.html
var pageHTML string

//go:embed live.js
var liveJS []byte

//go:embed live.css
var liveCSS []byte

var pageTemplate = template.Must(template.New("page").Parse(pageHTML))

// page is what a browser finds at /: what happens, what there is, and how it is
// set up. It needs nothing from elsewhere.
func page(cfg config, originName string) http.HandlerFunc {
	store := "in the memory of this process"
	if cfg.redis != "" {
		store = "a Redis that the fleet shares"
	}
	data := pageData{
		Modes: modes, Mode: cfg.mode, StormTimes: stormTimes,
		Store: store, Redis: cfg.redis != "", Origin: originName, InMemory: cfg.origin == "" && cfg.postgres == "", Products: memProducts,
		Load: cfg.load, TTL: cfg.ttl, Grace: cfg.grace, Pool: cfg.pool, MaxCallers: maxCallers,
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
		w.Header().Set("Content-Security-Policy",
			"default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		w.Write(buf.Bytes())
	}
}

// asset is a file that the page asks for. It is not kept by browsers: the next
// build may have another.
func asset(kind string, data []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind+"; charset=utf-8")
		w.Header().Set("Cache-Control", "no-cache")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Write(data)
	}
}

// pageData is what live.html shows before its script runs.
type pageData struct {
	Host, Mode, Store, Origin  string
	Modes, StormTimes          []string
	InMemory, Redis            bool
	Products, Pool, MaxCallers int
	Load, TTL, Grace           time.Duration
}
