package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// answered makes, of any bytes, what a server or somebody in its place may
// answer to a script: numbers, texts, nothing, lists of these.
func answered(b []byte) any {
	list := []any{}
	for len(b) > 0 {
		kind, n := b[0]%4, int(b[0]/4)
		b = b[1:]
		n = min(n, len(b))
		part := b[:n]
		b = b[n:]
		switch kind {
		case 0:
			var v int64
			for _, digit := range part {
				v = v<<8 | int64(digit)
			}
			list = append(list, v)
		case 1:
			list = append(list, string(part))
		case 2:
			list = append(list, nil)
		case 3:
			list = append(list, answered(part))
		}
	}
	return list
}

// Whatever comes back from a script is read as what it is or refused.
func FuzzRepliesOfScripts(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{4, 1, 8, 1, 2, 8, 0, 77, 5, 'b', 0, 0})                                 // granted
	f.Add([]byte{4, 3, 8, 1, 2, 4, 9, 13, 'p', '/', '1', 4, 7})                          // held
	f.Add([]byte{4, 4, 8, 1, 2, 4, 9, 13, 'p', '/', '1', 9, 'n', 'o'})                   // cooling
	f.Add([]byte{8, 1, 1, 8, 1, 2, 4, 9, 13, 'p', '/', '1', 4, 7})                       // an outcome that is none, and looks like one in eight bits
	f.Add([]byte{4, 3, 8, 1, 2, 32, 0x7f, 0, 0, 0, 0, 0, 0, 1, 13, 'p', '/', '1', 4, 7}) // held for longer than a duration lasts
	f.Add([]byte{4, 1, 8, 1, 2, 32, 0x7f, 0, 0, 0, 0, 0, 0, 1, 5, 'b', 0, 0})            // a token beyond all tokens
	f.Add([]byte{9, '1', '2', 9, '3', '4'})                                              // a time; pairs of Check
	f.Fuzz(func(t *testing.T, b []byte) {
		v := answered(b)
		cmd := redis.NewCmd(context.Background(), "evalsha")
		cmd.SetVal(v)
		if r, err := readReply(cmd); err == nil {
			_ = r.now()
			c := store.Claim{Key: store.Key{Space: "s", ID: "k"}, Holder: "p/1", Length: time.Second}
			if verdict, ok := readVerdict(r, c); ok {
				judgeVerdict(t, verdict, c)
				if int64(verdict.Outcome) != r.outcome() {
					t.Errorf("outcome %d was read as %v", r.outcome(), verdict.Outcome)
				}
			}
		} else if !errors.Is(err, errReply) {
			t.Errorf("readReply: %v", err)
		}
		if now, err := readTime(v); err == nil && now < 0 {
			t.Errorf("the time %d was believed", now)
		}
		if denied, err := readFailures(v); err != nil && classify(err) == "" {
			t.Errorf("readFailures: %v, %v", denied, err)
		}
	})
}

func judgeVerdict(t *testing.T, v store.Verdict, c store.Claim) {
	switch v.Outcome {
	case store.Granted:
		if v.Grant.Token <= 0 || v.Grant.Token >= 2*tokenLimit || v.Grant.Key != c.Key || v.Grant.Holder != c.Holder || v.Grant.Length != c.Length {
			t.Errorf("granted %+v", v.Grant)
		}
	case store.Held, store.Cooling:
		if v.Left < 0 {
			t.Errorf("%v for another %v", v.Outcome, v.Left)
		}
	case store.Changed:
	default:
		t.Errorf("outcome %d was believed", v.Outcome)
	}
}

// Any text of an error has a class of the fixed set: it is a metric's label.
func FuzzClassesOfErrorReplies(f *testing.F) {
	for _, text := range []string{"", "OOM command", "ERR Error running script (call to f_1): @user_script:12: -READONLY x", "ERR : -", "noauth", "MOVED 1 a:1"} {
		f.Add(text)
	}
	known := map[store.Class]bool{}
	for _, c := range []store.Class{store.ClassTimeout, store.ClassConnection, store.ClassPool, store.ClassReadOnly, store.ClassFull, store.ClassLoading,
		store.ClassCluster, store.ClassDenied, store.ClassData, store.ClassCanceled, store.ClassOther} {
		known[c] = true
	}
	f.Fuzz(func(t *testing.T, text string) {
		if class := classifyReply(text); !known[class] {
			t.Errorf("%q is of class %q", text, class)
		}
	})
}
