package storetest

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// manyChecks: what is done for many keys is what is done for each.
var manyChecks = []Check{
	{"many/each key has its own result", func(t *trial) {
		keys := make([]store.Key, 20)
		claims := make([]store.Claim, len(keys))
		for i := range keys {
			keys[i] = t.key(fmt.Sprintf("many %d", i))
			claims[i] = t.ask(keys[i], "A/1")
		}
		t.grant(keys[3], "B/1")
		t.set(keys[7], "there")

		verdicts, errs := t.st.ClaimMany(t.ctx, claims)
		if errs != nil || len(verdicts) != len(keys) {
			t.Fatalf("ClaimMany: %d verdicts, %v", len(verdicts), errs)
		}
		var fills []store.Filling
		for i, v := range verdicts {
			want := store.Granted
			switch i {
			case 3:
				want = store.Held
			case 7:
				want = store.Changed
			}
			if v.Outcome != want {
				t.Errorf("key %d was answered %v, want %v", i, v.Outcome, want)
			}
			if v.Outcome == store.Granted {
				if v.Grant.Key != keys[i] {
					t.Errorf("grant %d is for %v", i, v.Grant.Key)
				}
				fills = append(fills, store.Filling{Grant: v.Grant, Content: t.value(fmt.Sprint("value ", i))})
			}
		}
		// One of them is overtaken, one is large.
		t.invalidate(fills[0].Grant.Key)
		large := bytes.Repeat([]byte("x"), 256<<10)
		fills[1].Content.Payload = large
		errs = t.st.FillMany(t.ctx, fills)
		if len(errs) != len(fills) {
			t.Fatalf("FillMany: %d errors for %d fills, one of them fenced", len(errs), len(fills))
		}
		for i, err := range errs {
			switch {
			case i == 0 && !errors.Is(err, store.ErrFenced):
				t.Errorf("the fenced fill: %v, want ErrFenced", err)
			case i > 0 && err != nil:
				t.Errorf("fill %d: %v", i, err)
			}
		}
		entries, errs := t.st.LoadMany(t.ctx, keys)
		if errs != nil || len(entries) != len(keys) {
			t.Fatalf("LoadMany: %d entries, %v", len(entries), errs)
		}
		for i, e := range entries {
			want := fmt.Sprint("value ", i)
			switch keys[i] {
			case keys[3], fills[0].Grant.Key:
				if e.Kind != store.None {
					t.Errorf("key %d: %v is there, want none", i, e.Kind)
				}
				continue
			case keys[7]:
				want = "there"
			case fills[1].Grant.Key:
				want = string(large)
			}
			if e.Kind != store.Value || string(e.Payload) != want || e.Fresh <= 0 || e.Left < e.Fresh {
				t.Errorf("key %d: %v of %d bytes, fresh for %v, kept for %v", i, e.Kind, len(e.Payload), e.Fresh, e.Left)
			}
		}
	}},
	{"many/bytes that cannot be read spoil their own key alone", func(t *trial) {
		good, bad := t.key("good"), t.key("bad")
		t.set(good, "v")
		_, err := t.Plant(bad, Random)
		t.can("hold random bytes", err)
		entries, errs := t.st.LoadMany(t.ctx, []store.Key{bad, good})
		if errs != nil {
			t.Fatalf("LoadMany: %v", errs)
		}
		if entries[0].Kind != store.None || entries[0].Fault == nil {
			t.Errorf("the bad key: %+v, want a fault", entries[0])
		}
		if entries[1].Kind != store.Value || string(entries[1].Payload) != "v" {
			t.Errorf("the good key: %+v", entries[1])
		}
	}},
	{"many/no keys are nothing to do", func(t *trial) {
		if entries, errs := t.st.LoadMany(t.ctx, nil); len(entries) != 0 || errs != nil {
			t.Errorf("LoadMany of none: %v, %v", entries, errs)
		}
		if verdicts, errs := t.st.ClaimMany(t.ctx, nil); len(verdicts) != 0 || errs != nil {
			t.Errorf("ClaimMany of none: %v, %v", verdicts, errs)
		}
		if errs := t.st.FillMany(t.ctx, nil); errs != nil {
			t.Errorf("FillMany of none: %v", errs)
		}
	}},
}
