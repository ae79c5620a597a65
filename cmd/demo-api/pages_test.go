package main

import (
	"net/http"
	"strings"
	"sync"
	"testing"
)

func (r reply) hit() bool { return strings.Contains(r.header.Get("Cache-Status"), "; hit") }

func TestAPageIsMadeOnceForTheFleet(t *testing.T) {
	origin := start(t, "-mode", "none", "-load", "100ms", "-ttl", "1ms")
	redis := embeddedRedis(t)
	fleet := []process{
		start(t, "-redis", redis.Addr(), "-origin", origin.url),
		start(t, "-redis", redis.Addr(), "-origin", origin.url),
	}
	answers := make([]reply, 20)
	var wg sync.WaitGroup
	for i := range answers {
		wg.Go(func() { answers[i] = call(t, "GET", fleet[i%2].url+"/pages/products/7", "") })
	}
	wg.Wait()
	for _, a := range answers {
		if p := a.product(t); p.ID != "7" || p.Version != 1 || a.header.Get("Cache-Status") == "" || a.header.Get("Etag") == "" {
			t.Errorf("got %+v, %v", p, a.header)
		}
	}
	if loads := call(t, "GET", origin.url+"/products/7", "").header.Get("X-Origin-Loads"); loads != "2" {
		t.Errorf("the origin was asked %s times, want once for the fleet and once by this question", loads)
	}
}

func TestAWriteInvalidatesThePagesOfTheProductInEveryProcess(t *testing.T) {
	origin := start(t, "-mode", "none", "-load", "1ms", "-ttl", "1ms")
	redis := embeddedRedis(t)
	one := start(t, "-redis", redis.Addr(), "-origin", origin.url)
	two := start(t, "-redis", redis.Addr(), "-origin", origin.url)
	paths := []string{"/pages/products/7", "/pages/products/7?from=mail", "/pages/products", "/pages/products?a;b&%zz"}
	for _, path := range paths {
		call(t, "GET", one.url+path, "")
		if a := call(t, "GET", two.url+path, ""); !a.hit() {
			t.Fatalf("%s is not kept for the other process: %v", path, a.header)
		}
	}
	call(t, "GET", one.url+"/pages/products/8", "")

	call(t, "PUT", one.url+"/products/7", `{"name": "Lamp", "price": 1499}`).product(t)
	for _, path := range paths {
		if a := call(t, "GET", two.url+path, ""); !strings.Contains(a.body, `"Lamp"`) {
			t.Errorf("after the write, %s is %d %.100s", path, a.status, a.body)
		}
	}
	if a := call(t, "GET", two.url+"/pages/products/8", ""); !a.hit() {
		t.Error("the page of another product was invalidated too")
	}
}

func TestAChangeOfStockInvalidatesThePage(t *testing.T) {
	p := start(t, "-load", "1ms")
	before := call(t, "GET", p.url+"/pages/products/7", "").product(t)
	call(t, "POST", p.url+"/products/7/stock", `{"delta": -1}`).product(t)
	if after := call(t, "GET", p.url+"/pages/products/7", "").product(t); after.Stock != before.Stock-1 {
		t.Errorf("stock %d, and after one was sold %d", before.Stock, after.Stock)
	}
}

func TestPagesOfNoProductAreKeptAsSuch(t *testing.T) {
	p := start(t, "-load", "1ms")
	for i, hit := range []bool{false, true} {
		if a := call(t, "GET", p.url+"/pages/products/nothing", ""); a.status != http.StatusNotFound || a.hit() != hit {
			t.Errorf("question %d: %d, %v", i, a.status, a.header)
		}
	}
}

func TestThereIsNoPageCacheInOtherModes(t *testing.T) {
	p := start(t, "-load", "1ms", "-mode", "none")
	for range 2 {
		if a := call(t, "GET", p.url+"/pages/products/1", ""); a.product(t).ID != "1" || a.header.Get("Cache-Status") != "" {
			t.Errorf("got %v", a.header)
		}
	}
}

func TestPagesOfKindsAreServedForLoadtestAlone(t *testing.T) {
	if a := call(t, "GET", start(t).url+"/pages/kinds/private/x?sleep=0s", ""); a.status != http.StatusNotFound {
		t.Errorf("without -loadtest: %d", a.status)
	}
	p := start(t, "-loadtest")
	for kind := range kindHeaders {
		if a := call(t, "GET", p.url+"/pages/kinds/"+kind+"/x?sleep=1ms", ""); a.status != http.StatusOK || a.header.Get("X-Page-At-Once") != "1" || !strings.Contains(a.body, kind) {
			t.Errorf("%s: %d %s %v", kind, a.status, a.body, a.header)
		}
	}
	for _, path := range []string{"/pages/kinds/other/x?sleep=1ms", "/pages/kinds/private/x", "/pages/kinds/private/x?sleep=1h"} {
		if a := call(t, "GET", p.url+path, ""); a.status != http.StatusBadRequest {
			t.Errorf("%s: %d", path, a.status)
		}
	}
}
