package main

import (
	"bytes"
	_ "embed"
	"html/template"
	"net/http"
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
	var buf bytes.Buffer
	err := pageTemplate.Execute(&buf, map[string]any{
		"Mode": cfg.mode, "Store": store, "Origin": originName, "Load": cfg.load, "TTL": cfg.ttl, "Grace": cfg.grace, "Pool": cfg.pool,
		"InMemory": cfg.origin == "", "Count": memProducts,
	})
	if err != nil {
		panic(err) // the template and its data are both ours
	}
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
		w.Write(buf.Bytes())
	}
}
