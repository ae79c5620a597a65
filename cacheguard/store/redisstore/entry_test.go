package redisstore

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

const testNow = int64(1_800_000_000_000_000)

func sampleEntry(kind store.Kind) []byte {
	return EntryBytes("products:{42}", 77, testNow-2_000_000, store.Content{Kind: kind, Payload: []byte("a payload"),
		TTL: time.Minute, Grace: time.Hour, Cost: 20 * time.Millisecond})
}

func TestAnEntryReadsBack(t *testing.T) {
	e := decode(sampleEntry(store.Value), "products:{42}", testNow)
	want := store.Entry{Kind: store.Value, Token: 77, Payload: []byte("a payload"), Age: 2 * time.Second, Fresh: 58 * time.Second,
		Left: time.Hour + 58*time.Second, TTL: time.Minute, Cost: 20 * time.Millisecond}
	if e.Fault != nil || !bytes.Equal(e.Payload, want.Payload) || e.Kind != want.Kind || e.Token != want.Token || e.Age != want.Age ||
		e.Fresh != want.Fresh || e.Left != want.Left || e.TTL != want.TTL || e.Cost != want.Cost || e.HandOver {
		t.Errorf("read %+v, want %+v", e, want)
	}
	if e := decode(sampleEntry(store.Absent), "products:{42}", testNow); e.Kind != store.Absent || e.Payload != nil {
		t.Errorf("absent reads as %+v", e)
	}
}

// The clock stepped back an hour after the entry was written: it may be an hour
// old, so it is stale, and it is not of negative age.
func TestAnEntryOfTheFutureIsStale(t *testing.T) {
	e := decode(sampleEntry(store.Value), "products:{42}", testNow-time.Hour.Microseconds())
	if e.Fault != nil || e.Fresh > 0 || e.Age < 0 || e.Left <= 0 {
		t.Errorf("read %+v", e)
	}
}

// Whatever bit falls over in memory or on the way, a reader gets the payload
// that was written or none.
func TestAnyFlippedBitIsAFaultOrHarmless(t *testing.T) {
	whole := sampleEntry(store.Value)
	for i := range len(whole) * 8 {
		b := bytes.Clone(whole)
		b[i/8] ^= 1 << (i % 8)
		e := decode(b, "products:{42}", testNow)
		if e.Fault == nil && (e.Kind != store.Value || string(e.Payload) != "a payload") {
			t.Errorf("bit %d: %+v", i, e)
		}
		if e.Fault == nil && i/8 >= atKind {
			t.Errorf("bit %d of the body is not noticed", i)
		}
	}
}

func TestATruncatedEntryIsAFault(t *testing.T) {
	whole := sampleEntry(store.Value)
	for n := range len(whole) {
		e := decode(whole[:n], "products:{42}", testNow)
		if e.Fault == nil || e.Kind != store.None || store.ClassOf(e.Fault) != store.ClassData {
			t.Errorf("%d bytes: %+v", n, e)
		}
		if want := n >= minToken; (e.Token == 77) != want {
			t.Errorf("%d bytes: token %d", n, e.Token)
		}
	}
	if e := decode(append(whole, 0), "products:{42}", testNow); e.Fault == nil {
		t.Error("bytes behind the end are not noticed")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{}, "n", testNow)
	for _, kind := range []store.Kind{store.Value, store.Absent, store.Pass} {
		f.Add(sampleEntry(kind), "products:{42}", testNow)
		f.Add(sampleEntry(kind)[:50], "products:{42}", testNow)
	}
	f.Fuzz(func(t *testing.T, b []byte, name string, now int64) {
		before := bytes.Clone(b)
		e := decode(b, name, now&(timeLimit-1))
		if !bytes.Equal(b, before) {
			t.Fatal("decode changed its input")
		}
		if e.Token != tokenOf(b) {
			t.Errorf("token %d, the rule says %d", e.Token, tokenOf(b))
		}
		if e.Fault != nil {
			if e.Kind != store.None || e.Payload != nil || e.HandOver || store.ClassOf(e.Fault) != store.ClassData {
				t.Errorf("a fault and %+v", e)
			}
			return
		}
		if e.Kind < store.Value || e.Kind > store.Pass || e.Left <= 0 || e.Age < 0 || e.Cost < 0 || e.TTL < 0 || e.Token <= 0 {
			t.Errorf("read %+v", e)
		}
		if !bytes.Contains(b, []byte(name)) {
			t.Error("an entry without the name was believed")
		}
	})
}

func FuzzParseEvent(f *testing.F) {
	f.Add("")
	f.Add("\x05\x00\x00\x00\x00\x00\x00\x00\x01id")
	f.Add(CarriedMessage("id", "payload"))
	f.Fuzz(func(t *testing.T, payload string) {
		e, entry, ok := parseEvent(payload)
		if ok && (e.Kind < store.Filled || e.Kind > store.Expired || e.Token < 0 || len(entry)+len(e.ID) != len(payload)-9) {
			t.Errorf("%q is %+v with %q", payload, e, entry)
		}
		if entry == "" {
			return
		}
		if got := decode([]byte(entry), entryName(store.Key{Space: "s", ID: e.ID}), 1); got.Fault == nil && !strings.Contains(entry, e.ID) {
			t.Errorf("%q brought an entry of another key", payload)
		}
	})
}
