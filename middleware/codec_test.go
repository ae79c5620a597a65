package middleware

import (
	"net/http"
	"reflect"
	"testing"
	"time"
)

func sampleResponse() *response {
	return &response{
		status:    203,
		header:    http.Header{"Content-Type": {"text/plain"}, "X-Many": {"1", "", "2"}, "X-None": {}},
		body:      []byte("body\x00\xff"),
		trailer:   http.Header{"X-Sum": {"5"}},
		selecting: []selector{{name: "Accept", value: "a,b"}, {name: "Foo", absent: true}},
		branch:    newBranch(), epoch: newBranch(), parent: newBranch(), parentEpoch: newBranch(),
		base: time.Second, lifetime: time.Minute, swr: 2 * time.Second, sie: 3 * time.Second, grace: time.Hour,
		rules: rulePublic | ruleNeverStale,
		tags:  []tag{{name: "t", hard: "h", soft: "s"}},
	}
}

func TestStoredResponsesComeBackAsTheyWere(t *testing.T) {
	for name, p := range map[string]*response{
		"full":  sampleResponse(),
		"empty": {status: 204, header: http.Header{}, selecting: []selector{}, body: []byte{}},
	} {
		data, err := codec{}.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		got, err := codec{}.Decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, p.ready()) {
			t.Errorf("%s:\n got %+v\nwant %+v", name, got, p)
		}
	}
}

func TestDamagedBytesAreAnError(t *testing.T) {
	whole, _ := codec{}.Encode(sampleResponse())
	body := len(sampleResponse().body)
	for n := range len(whole) - body {
		if _, err := (codec{}).Decode(whole[:n]); err == nil {
			t.Fatalf("the first %d of %d bytes are a response", n, len(whole))
		}
	}
	newer := append([]byte{formatVersion + 1}, whole[1:]...)
	if _, err := (codec{}).Decode(newer); err == nil {
		t.Error("another format is a response")
	}
	for _, h := range []http.Header{
		{"X-A": {"1\r\nSet-Cookie: evil=1"}}, {"X-A\r\nSet-Cookie": {"1"}}, {"X A": {"1"}}, {"": {"1"}}, {"x-a": {"1"}}, {"X-A": {"\x00"}},
	} {
		p := sampleResponse()
		p.header = h
		data, _ := codec{}.Encode(p)
		if _, err := (codec{}).Decode(data); err == nil {
			t.Errorf("header %q came back", h)
		}
	}
}

// Whatever the bytes, decoding must not panic, must not make more than the bytes
// can hold, and what comes out must be fit to be sent and come back the same.
func FuzzDecode(f *testing.F) {
	data, _ := codec{}.Encode(sampleResponse())
	f.Add(data)
	f.Add([]byte{formatVersion})
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := codec{}.Decode(data)
		if err != nil {
			return
		}
		if p.status < 200 || p.status > 999 || !storable(p.header) || !storable(p.trailer) {
			t.Fatalf("unfit: %+v", p)
		}
		if p.ttl() < 0 || p.grace < 0 || p.base < 0 || p.age(0) < 0 {
			t.Fatalf("negative: %+v", p)
		}
		again, err := codec{}.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		q, err := codec{}.Decode(again)
		if err != nil || !reflect.DeepEqual(p, q) {
			t.Fatalf("not the same: %+v, %+v, %v", p, q, err)
		}
	})
}

func BenchmarkDecode(b *testing.B) {
	data, _ := codec{}.Encode(sampleResponse())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := (codec{}).Decode(data); err != nil {
			b.Fatal(err)
		}
	}
}
