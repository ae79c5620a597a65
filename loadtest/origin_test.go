package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func ask(t *testing.T, o *origin, method, key string) (status int, p product) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, o.url+productPath(key), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(body, &p); err != nil {
			t.Fatal(err)
		}
	}
	return resp.StatusCode, p
}

func TestOriginCountsLoadsAndVersionsByProduct(t *testing.T) {
	o, err := startOrigin(time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	o.create("a b/c")
	o.create("other")
	for range 3 {
		if status, p := ask(t, o, "GET", "a b/c"); status != 200 || p != productOf("a b/c", 1) {
			t.Fatalf("GET: %d, %+v", status, p)
		}
	}
	if status, p := ask(t, o, "PUT", "a b/c"); status != 200 || p != productOf("a b/c", 2) {
		t.Fatalf("PUT: %d, %+v", status, p)
	}
	if n, m := o.loads("a b/c"), o.loads("other"); n != 3 || m != 0 {
		t.Errorf("loads %d and %d, want 3 and 0", n, m)
	}
	if o.forgetLoads("a b/c"); o.loads("a b/c") != 0 || o.version("a b/c") != 2 {
		t.Errorf("after forgetLoads: %d loads, version %d", o.loads("a b/c"), o.version("a b/c"))
	}
	if status, _ := ask(t, o, "GET", "never made"); status != http.StatusNotFound {
		t.Errorf("GET of what is not there: %d", status)
	}
	if status, _ := ask(t, o, "PUT", "never made"); status != http.StatusNotFound {
		t.Errorf("PUT of what is not there: %d", status)
	}
}

// What a load brings is what was true when it began: otherwise no storm could
// tell a fence from none.
func TestOriginAnswersWithTheVersionOfTheBeginning(t *testing.T) {
	o, err := startOrigin(200 * time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	o.create("k")
	got := make(chan product, 1)
	go func() { _, p := ask(t, o, "GET", "k"); got <- p }()
	for o.busy() == 0 {
		time.Sleep(time.Millisecond)
	}
	o.write("k")
	if p := <-got; p.Version != 1 {
		t.Errorf("version %d, want 1", p.Version)
	}
}

func TestSettleWaitsForLoadsUnderWay(t *testing.T) {
	o := &origin{items: map[string]*item{}, service: time.Millisecond}
	o.begin("k")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := o.settle(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("settle with a load under way = %v, want the context's error", err)
	}
	o.end("k")
	if err := o.settle(t.Context()); err != nil {
		t.Errorf("settle = %v", err)
	}
}

func TestARedisThatIsNotThereIsOneClearSentence(t *testing.T) {
	_, err := openRedis(t.Context(), "127.0.0.1:1", t.TempDir(), true)
	if err == nil || !strings.Contains(err.Error(), "no Redis answers at 127.0.0.1:1") {
		t.Errorf("openRedis = %v", err)
	}
}
