package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// What is here is served only with -loadtest: it lets a client choose how long
// its request takes.

// whileFed returns a context that ends when input does, if that is a pipe: so
// whoever started this process and is gone, killed, or may not signal it, has
// ended it all the same. The read ends with the process.
func whileFed(ctx context.Context, input *os.File) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if info, err := input.Stat(); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
		go func() {
			defer cancel()
			_, _ = io.Copy(io.Discard, input)
		}()
	}
	return ctx, cancel
}

// getFloor answers as a product is answered, header by header, after a plain
// sleep instead of a cache: the least that callers over HTTP can see of a load
// of that length on this machine. loadtest judges latencies by it.
func getFloor(w http.ResponseWriter, r *http.Request) {
	d, err := time.ParseDuration(r.URL.Query().Get("sleep"))
	if err != nil || d < 0 || d > loadLimit {
		http.Error(w, "sleep must be a duration from 0s to "+loadLimit.String(), http.StatusBadRequest)
		return
	}
	if sleep(r.Context(), d) != nil {
		return // nobody is there to read an answer
	}
	id := r.PathValue("id")
	w.Header().Set("X-Origin-Loads", "1")
	answerEntry(w, cacheguard.Entry[product]{Value: product{ID: id, Name: id + ", version 1", Price: 101, Stock: 999, Version: 1}})
}

// startAtOnce holds a request until the instant that its header names, so that
// the requests of many clients, sent, read and routed before, begin in all
// processes of a machine at the same time. Without it a herd of requests comes in
// as fast as the processors can read them, and what is measured is the reading.
func startAtOnce(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if at := r.Header.Get(atHeader); at != "" {
			nanos, err := strconv.ParseInt(at, 10, 64)
			wait := time.Until(time.Unix(0, nanos))
			if err != nil || wait > maxHold {
				http.Error(w, atHeader+" must be Unix nanoseconds, at most "+maxHold.String()+" ahead", http.StatusBadRequest)
				return
			}
			// Nothing can end this sleep: to wake up from one that a context could
			// have ended takes longer, and all wake up at once.
			time.Sleep(wait)
		}
		next.ServeHTTP(w, r)
	})
}

const (
	atHeader = "Loadtest-At"   // an instant in Unix nanoseconds
	maxHold  = 5 * time.Second // less than drainLimit
)
