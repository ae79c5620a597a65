package sealed_test

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/sealed"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/cacheguard/store/memstore"
)

func secret(name string) []byte { return bytes.Repeat([]byte(name), 32) }

// over is a sealed store over s, with keys of these names.
func over(t testing.TB, s store.Store, names ...string) *sealed.Store {
	t.Helper()
	var keys [][]byte
	for _, name := range names {
		keys = append(keys, secret(name))
	}
	out, err := sealed.New(s, sealed.Options{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

var (
	lamp  = store.Key{Space: "products", ID: "lamp"}
	chair = store.Key{Space: "products", ID: "chair"}
)

func set(t testing.TB, s store.Store, key store.Key, kind store.Kind, payload string) {
	t.Helper()
	c := store.Content{Kind: kind, Payload: []byte(payload), TTL: time.Hour, Grace: time.Hour}
	if err := s.Set(t.Context(), store.Write{Key: key, Content: c}); err != nil {
		t.Fatal(err)
	}
}

func load(t testing.TB, s store.Store, key store.Key) store.Entry {
	t.Helper()
	e, err := s.Load(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	many, errs := s.LoadMany(t.Context(), []store.Key{key})
	if errs != nil || len(many) != 1 {
		t.Fatalf("LoadMany: %v, %v", many, errs)
	}
	if many[0].Kind != e.Kind || !bytes.Equal(many[0].Payload, e.Payload) || (many[0].Fault == nil) != (e.Fault == nil) {
		t.Errorf("LoadMany says %v %q, Load says %v %q", many[0].Kind, many[0].Payload, e.Kind, e.Payload)
	}
	return e
}

// refused checks that e is a miss with a fault, which names its token all the
// same: a claim has to be able to say what it has seen.
func refused(t testing.TB, what string, e store.Entry) {
	t.Helper()
	if e.Kind != store.None || e.Payload != nil || store.ClassOf(e.Fault) != store.ClassData || e.Token == 0 {
		t.Errorf("%s: %v %q of token %d, fault %v; want a miss with a fault of class data", what, e.Kind, e.Payload, e.Token, e.Fault)
	}
}

func TestWhatAHolderOfTheKeyWroteIsReadAsItWas(t *testing.T) {
	s := over(t, memstore.New(memstore.Options{}), "a")
	for _, payload := range []string{"a lamp", "", strings.Repeat("x", 1<<20)} {
		set(t, s, lamp, store.Value, payload)
		if e := load(t, s, lamp); e.Kind != store.Value || string(e.Payload) != payload || e.Fault != nil {
			t.Errorf("%d bytes came back as %v, %d bytes, fault %v", len(payload), e.Kind, len(e.Payload), e.Fault)
		}
	}
	for _, kind := range []store.Kind{store.Absent, store.Pass} {
		set(t, s, lamp, kind, "")
		if e := load(t, s, lamp); e.Kind != kind || len(e.Payload) != 0 || e.Fault != nil {
			t.Errorf("%v came back as %v %q, fault %v", kind, e.Kind, e.Payload, e.Fault)
		}
	}
	if e := load(t, s, chair); e.Kind != store.None || e.Fault != nil {
		t.Errorf("where nothing is, there is %v, fault %v", e.Kind, e.Fault)
	}
}

func TestWhatWasWrittenWithoutTheKeyIsAMissAndAFault(t *testing.T) {
	under := memstore.New(memstore.Options{})
	s := over(t, under, "a")
	for name, other := range map[string]store.Store{"no key": under, "another key": over(t, under, "b")} {
		for _, kind := range []store.Kind{store.Value, store.Absent} {
			set(t, other, lamp, kind, "forged")
			refused(t, name+", "+kind.String(), load(t, s, lamp))
		}
	}
}

func TestAnEntryCopiedToAnotherKeyOrSpaceIsRefused(t *testing.T) {
	under := memstore.New(memstore.Options{})
	s := over(t, under, "a")
	set(t, s, lamp, store.Value, "a lamp")
	stored := string(load(t, under, lamp).Payload)
	for _, to := range []store.Key{
		chair,
		{Space: "prices", ID: "lamp"},
		{Space: "productsl", ID: "amp"}, // the same bytes in a row
		{Space: "product", ID: "slamp"},
	} {
		set(t, under, to, store.Value, stored)
		refused(t, to.Space+"/"+to.ID, load(t, s, to))
	}
	set(t, under, lamp, store.Value, stored)
	if e := load(t, s, lamp); string(e.Payload) != "a lamp" {
		t.Errorf("put back where it was: %v %q", e.Kind, e.Payload)
	}
}

func TestAChangeOfAnyBitIsRefused(t *testing.T) {
	under := memstore.New(memstore.Options{})
	s := over(t, under, "a")
	set(t, s, lamp, store.Value, "lamp")
	stored := load(t, under, lamp).Payload
	for i := range len(stored) * 8 {
		forged := slices.Clone(stored)
		forged[i/8] ^= 1 << (i % 8)
		set(t, under, lamp, store.Value, string(forged))
		refused(t, "a bit changed", load(t, s, lamp))
	}
	for n := range stored {
		set(t, under, lamp, store.Value, string(stored[:n]))
		refused(t, "cut short", load(t, s, lamp))
	}
	set(t, under, lamp, store.Value, string(stored)+"s")
	refused(t, "made longer", load(t, s, lamp))
}

func TestKeysAreChangedWithoutAMiss(t *testing.T) {
	under := memstore.New(memstore.Options{})
	before, during, after := over(t, under, "old", "new"), over(t, under, "new", "old"), over(t, under, "new")
	set(t, before, lamp, store.Value, "by the old key")
	set(t, during, chair, store.Value, "by the new key")
	for _, s := range []store.Store{before, during} {
		for _, key := range []store.Key{lamp, chair} {
			if e := load(t, s, key); e.Kind != store.Value {
				t.Errorf("%s: %v", key.ID, e.Fault)
			}
		}
	}
	if e := load(t, after, chair); e.Kind != store.Value {
		t.Errorf("the first key did not sign: %v", e.Fault)
	}
	refused(t, "by a key that is gone", load(t, after, lamp))
}

// A forged entry costs a load, is told to the hooks, and is replaced.
func TestAGuardLoadsWhatIsForgedAnewAndTellsIt(t *testing.T) {
	under := memstore.New(memstore.Options{})
	var faults []store.Class
	g, err := cacheguard.New(over(t, under, "a"), cacheguard.Options[string]{
		Namespace: "products",
		Hooks:     cacheguard.Hooks{Fault: func(f cacheguard.FaultInfo) { faults = append(faults, f.Class) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	loads := 0
	get := func() string {
		t.Helper()
		v, err := g.Get(t.Context(), "lamp", func(context.Context, string) (string, error) { loads++; return "true", nil })
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	set(t, under, lamp, store.Value, `"forged"`)
	if v := get(); v != "true" || loads != 1 || !slices.Contains(faults, store.ClassData) {
		t.Errorf("got %q after %d loads, faults %v", v, loads, faults)
	}
	set(t, under, lamp, store.Absent, "")
	if v := get(); v != "true" || loads != 2 {
		t.Errorf("got %q after %d loads, want the forged absence to be no answer", v, loads)
	}
	if v := get(); v != "true" || loads != 2 {
		t.Errorf("got %q after %d loads, want what was loaded to be kept", v, loads)
	}
}

// A method of the contract that carries an entry has to be one that seals or
// opens it: one that is added later must not pass by unsealed.
func TestEveryMethodThatCarriesAnEntryIsTheSealedOne(t *testing.T) {
	carries := map[reflect.Type]bool{
		reflect.TypeFor[store.Entry](): true, reflect.TypeFor[store.Content](): true,
		reflect.TypeFor[store.Filling](): true, reflect.TypeFor[store.Write](): true,
		reflect.TypeFor[[]store.Entry](): true, reflect.TypeFor[[]store.Filling](): true, reflect.TypeFor[[]store.Write](): true,
	}
	contract := reflect.TypeFor[store.Store]()
	var found []string
	for m := range contract.Methods() {
		if slices.ContainsFunc(slices.Concat(slices.Collect(m.Type.Ins()), slices.Collect(m.Type.Outs())), func(t reflect.Type) bool { return carries[t] }) {
			found = append(found, m.Name)
		}
	}
	under := memstore.New(memstore.Options{})
	s := over(t, under, "a")
	ctx := t.Context()
	grant := func(key store.Key) store.Grant {
		v, err := s.Claim(ctx, store.Claim{Key: key, Holder: "p/1", Length: time.Minute, Keep: time.Minute})
		if err != nil || v.Outcome != store.Granted {
			t.Fatal(v.Outcome, err)
		}
		return v.Grant
	}
	c := store.Content{Kind: store.Value, Payload: []byte("v"), TTL: time.Hour, HandOver: time.Second}
	checks := map[string]func(key store.Key) error{
		"Fill": func(key store.Key) error { return s.Fill(ctx, grant(key), c) },
		"FillMany": func(key store.Key) error {
			return errors.Join(s.FillMany(ctx, []store.Filling{{Grant: grant(key), Content: c}})...)
		},
		"Set":  func(key store.Key) error { return s.Set(ctx, store.Write{Key: key, Content: c}) },
		"Load": nil, "LoadMany": nil, // see load
	}
	slices.Sort(found)
	if want := slices.Sorted(maps.Keys(checks)); !slices.Equal(found, want) {
		t.Fatalf("the contract's methods that carry entries are %v; this test knows of %v", found, want)
	}
	for name, write := range checks {
		key := store.Key{Space: "s", ID: name}
		if write == nil {
			continue
		}
		if err := write(key); err != nil {
			t.Fatal(name, err)
		}
		if e := load(t, under, key); len(e.Payload) <= len("v") {
			t.Errorf("%s wrote %q", name, e.Payload)
		}
		if e := load(t, s, key); string(e.Payload) != "v" {
			t.Errorf("%s: read %q, fault %v", name, e.Payload, e.Fault)
		}
	}
	if string(c.Payload) != "v" || c.Kind != store.Value {
		t.Error("a write changed its caller's content")
	}
}

func TestOptionsOutOfRangeSayWhatToWrite(t *testing.T) {
	under := memstore.New(memstore.Options{})
	for name, keys := range map[string][][]byte{
		"none": nil, "too many": slices.Repeat([][]byte{secret("a")}, 9), "too short": {secret("a"), make([]byte, 31)},
	} {
		if _, err := sealed.New(under, sealed.Options{Keys: keys}); err == nil || !strings.Contains(err.Error(), "use ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := sealed.New(nil, sealed.Options{Keys: [][]byte{secret("a")}}); err == nil {
		t.Error("no store: no error")
	}
	key := secret("a")
	s, err := sealed.New(under, sealed.Options{Keys: [][]byte{key}})
	if err != nil {
		t.Fatal(err)
	}
	clear(key) // it is the caller's
	set(t, s, lamp, store.Value, "v")
	if e := load(t, over(t, under, "a"), lamp); string(e.Payload) != "v" {
		t.Errorf("signed with another key than was given: %v", e.Fault)
	}
}

// No bytes that were not sealed are believed, whatever they look like.
func FuzzOpen(f *testing.F) {
	under := memstore.New(memstore.Options{})
	s := over(f, under, "a", "b")
	set(f, s, lamp, store.Value, "lamp")
	stored := slices.Clone(load(f, under, lamp).Payload)
	f.Add(stored, "products", "lamp")
	f.Add(stored[:33], "products", "lamp")
	f.Add([]byte{0xc5}, "", "")
	f.Add([]byte(nil), "products", "chair")
	f.Fuzz(func(t *testing.T, payload []byte, space, id string) {
		key := store.Key{Space: space, ID: id}
		under := memstore.New(memstore.Options{})
		set(t, under, key, store.Value, string(payload))
		e := load(t, over(t, under, "a", "b"), key)
		if own := key == lamp && bytes.Equal(payload, stored); own != (e.Kind == store.Value) || own == (e.Fault != nil) {
			t.Errorf("%x under %q is %v, fault %v", payload, key, e.Kind, e.Fault)
		}
	})
}

func BenchmarkLoad(b *testing.B) {
	for name, size := range map[string]int{"1KiB": 1 << 10, "64KiB": 64 << 10} {
		under := memstore.New(memstore.Options{})
		s := over(b, under, "a")
		set(b, s, lamp, store.Value, strings.Repeat("x", size))
		for kind, s := range map[string]store.Store{"bare": under, "sealed": s} {
			b.Run(kind+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					_, _ = s.Load(b.Context(), lamp)
				}
			})
		}
	}
}

// broadcasting is a store whose listeners are told what a test says.
type broadcasting struct {
	store.Store
	tell func(store.Event)
}

func (s *broadcasting) Listen(_ string, fn func(store.Event)) (stop func()) {
	s.tell = fn
	return func() {}
}

func TestWhatAMessageBringsIsBelievedLikeWhatIsRead(t *testing.T) {
	under := &broadcasting{Store: memstore.New(memstore.Options{})}
	s := over(t, under, "a")
	var got store.Event
	defer s.Listen(lamp.Space, func(ev store.Event) { got = ev })()
	set(t, s, lamp, store.Value, "a lamp")
	sealedLamp := load(t, under, lamp)
	set(t, s, chair, store.Value, "a chair")
	sealedChair := load(t, under, chair)
	forged := store.Entry{Kind: store.Value, Token: 7, Payload: []byte("forged")}
	for name, c := range map[string]struct {
		brings *store.Entry
		want   string
	}{
		"nothing":                {nil, ""},
		"what a holder wrote":    {&sealedLamp, "a lamp"},
		"what somebody made up":  {&forged, ""},
		"what is of another key": {&sealedChair, ""},
	} {
		under.tell(store.Event{Kind: store.Filled, ID: lamp.ID, Token: 7, Entry: c.brings})
		if got.Kind != store.Filled || got.ID != lamp.ID || (got.Entry == nil) != (c.want == "") {
			t.Errorf("%s: heard %+v", name, got)
			continue
		}
		if got.Entry != nil && string(got.Entry.Payload) != c.want {
			t.Errorf("%s: brought %q, want %q", name, got.Entry.Payload, c.want)
		}
	}
}
