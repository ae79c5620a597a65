package cacheguard

import (
	"context"
	"errors"
	"testing"
)

// What a loader says after its context has ended is explained by that.
func TestResultOfALoadWhoseContextHasEnded(t *testing.T) {
	cut, own := errors.New("cut"), errors.New("own")
	for _, c := range []struct {
		name    string
		ended   bool
		err     error
		is, not []error
	}{
		{"own error", false, own, []error{own}, []error{cut}},
		{"absent", false, ErrNotFound, []error{ErrNotFound}, []error{cut}},
		{"value after the end", true, nil, []error{nil}, nil},
		{"own error after the end", true, own, []error{cut, own}, nil},
		{"the cause itself", true, cut, []error{cut}, nil},
		{"absent after the end", true, ErrNotFound, []error{cut}, []error{ErrNotFound}},
		{"absent because of the cause", true, errors.Join(ErrNotFound, cut), []error{cut}, []error{ErrNotFound}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			if c.ended {
				cancel(cut)
			}
			l := &loading[string]{ctx: ctx}
			r := l.finished(result[string]{value: "v", err: c.err})
			for _, is := range c.is {
				if !errors.Is(r.err, is) {
					t.Errorf("%v is not %v", r.err, is)
				}
			}
			for _, not := range c.not {
				if errors.Is(r.err, not) {
					t.Errorf("%v is %v", r.err, not)
				}
			}
		})
	}
}
