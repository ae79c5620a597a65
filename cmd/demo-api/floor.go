package main

import (
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
)

// getFloor answers as a product is answered, after a plain sleep instead of a
// cache: the least that callers over HTTP can see of a load of that length on
// this machine. loadtest judges latencies by it.
func getFloor(w http.ResponseWriter, r *http.Request) {
	d, err := time.ParseDuration(r.URL.Query().Get("sleep"))
	if err != nil || d < 0 || d > loadLimit {
		http.Error(w, "sleep must be a duration from 0s to "+loadLimit.String(), http.StatusBadRequest)
		return
	}
	if sleep(r.Context(), d) != nil {
		return // nobody is there to read an answer
	}
	id := chi.URLParam(r, "id")
	w.Header().Set("X-Cacheguard-State", "none")
	answer(w, product{ID: id, Name: "Product " + id, Version: 1})
}
