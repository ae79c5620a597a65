package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// A service that stalls is to be asked all the same: with callers that wait for
// their answers, a stall would be a few slow answers among many.
func TestAStallIsInTheLatencyOfAllRequestsThatWereDueInIt(t *testing.T) {
	const stall = 800 * time.Millisecond
	begin := time.Now()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		since := time.Since(begin)
		if since > 500*time.Millisecond && since < 500*time.Millisecond+stall {
			time.Sleep(500*time.Millisecond + stall - since)
		}
	}))
	defer server.Close()
	r, err := steady(t.Context(), []string{server.URL}, 200, 2*time.Second, newProgress(io.Discard))
	if err != nil {
		t.Fatal(err)
	}
	if r.Requests < 390 || r.Requests > 402 || r.Errors > 0 {
		t.Errorf("%d requests, %d errors (%s); want 400 of 200 a second in 2s", r.Requests, r.Errors, r.Error)
	}
	// Two fifths were due in the stall, and waited half of it on average.
	if r.LatencyMS.P99 < 700 || r.LatencyMS.P90 < 400 {
		t.Errorf("p90 %v, p99 %v ms in a stall of %v", r.LatencyMS.P90, r.LatencyMS.P99, stall)
	}
}

func TestATargetIsAskedInStormsAndAtARate(t *testing.T) {
	var asked, atOnce, most atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if n := atOnce.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer atOnce.Add(-1)
		time.Sleep(50 * time.Millisecond)
		io.WriteString(w, "x")
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "r.json")
	var out bytes.Buffer
	err := run(t.Context(), []string{"-target", server.URL + "/a," + server.URL + "/b", "-clients", "10", "-rounds", "2", "-rate", "50", "-for", "1s", "-json", file}, &out, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rep targetReport
	if err := json.Unmarshal(data, &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Storms.Requests != 40 || rep.Storms.Errors != 0 || rep.Storms.LatencyMS.P50 < 50 {
		t.Errorf("storms: %+v", rep.Storms)
	}
	if most.Load() < 15 {
		t.Errorf("at most %d at once in storms of 20", most.Load())
	}
	if n := rep.Steady.Requests; n < 45 || n > 52 || int64(n+40) != asked.Load() {
		t.Errorf("%d requests at a rate of 50 for 1s, and %d in all at the service", n, asked.Load())
	}
	if !strings.Contains(out.String(), "steady") {
		t.Errorf("the table lacks a row:\n%s", &out)
	}
}

func TestATargetThatFailsIsAnError(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	err := run(t.Context(), []string{"-target", server.URL, "-clients", "2", "-rounds", "1", "-rate", "10", "-for", "1s"}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "status 404") {
		t.Errorf("err = %v, want one that tells the status", err)
	}
}

func TestAnInterruptedTargetShowsWhatItHas(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	begin := time.Now()
	err := run(ctx, []string{"-target", server.URL, "-clients", "2", "-rounds", "1", "-for", "60s"}, &out, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "interrupted") || time.Since(begin) > 20*time.Second {
		t.Errorf("err = %v after %v", err, time.Since(begin))
	}
	if !strings.Contains(out.String(), "steady") {
		t.Errorf("what was measured is not shown:\n%s", &out)
	}
}

func TestATargetInterruptedInAStormShowsTheStormsBefore(t *testing.T) {
	var asked atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 5 { // the second of the second storm
			cancel()
			<-r.Context().Done()
		}
	}))
	defer server.Close()
	var out bytes.Buffer
	err := run(ctx, []string{"-target", server.URL, "-clients", "3", "-rounds", "100"}, &out, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "interrupted") || strings.Contains(err.Error(), "no good answer") {
		t.Errorf("err = %v, want that it was interrupted, and no errors of our own doing", err)
	}
	if !strings.Contains(out.String(), "\n  storms  ") {
		t.Errorf("what was measured is not shown:\n%s", &out)
	}
}

func TestATargetRefusesWhatIsAboutAFleet(t *testing.T) {
	for _, args := range [][]string{
		{"-target", "localhost:8080"},
		{"-target", "ftp://host/x"},
		{"-target", "http://host/", "-mode", "guard"},
		{"-target", "http://host/", "-rate", "0"},
		{"-target", "http://host/", "-for", "1h"},
		{"-target", "http://host/", "-clients", "20000"},
	} {
		if _, err := parseFlags(args, io.Discard); err == nil {
			t.Errorf("%q were accepted", args)
		}
	}
}
