package lease

import (
	"errors"
	"sync"
	"testing"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

func TestFenceRefusesALowerToken(t *testing.T) {
	var f Fence
	failed := errors.New("disk full")
	for _, c := range []struct {
		token store.Token
		write error
		want  error
	}{
		{0, nil, store.ErrFenced}, // none
		{5, nil, nil},
		{5, nil, nil},
		{4, nil, store.ErrFenced},
		{9, failed, failed}, // admitted all the same: it may have been written
		{8, nil, store.ErrFenced},
	} {
		ran := false
		err := f.Admit(c.token, func() error { ran = true; return c.write })
		if !errors.Is(err, c.want) || ran == errors.Is(err, store.ErrFenced) {
			t.Errorf("Admit(%d) = %v, ran %v; want %v", c.token, err, ran, c.want)
		}
	}
}

func TestFencedWritesNeverGoBack(t *testing.T) {
	var f Fence
	var written store.Token // protected by the fence
	var writers sync.WaitGroup
	for token := store.Token(1); token <= 100; token++ {
		writers.Go(func() {
			err := f.Admit(token, func() error {
				if token < written {
					t.Errorf("%d written after %d", token, written)
				}
				written = token
				return nil
			})
			if err != nil && !errors.Is(err, store.ErrFenced) {
				t.Error(err)
			}
		})
	}
	writers.Wait()
	if written != 100 {
		t.Errorf("last written is %d, want 100", written)
	}
}
