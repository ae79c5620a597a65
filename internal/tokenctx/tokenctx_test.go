package tokenctx

import (
	"context"
	"testing"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

func TestContextWithoutATokenSaysSo(t *testing.T) {
	if got, ok := FromContext(context.Background()); ok || got != 0 {
		t.Fatalf("FromContext = %d, %v; want 0, false", got, ok)
	}
}

func TestInnerTokenHidesTheOuterOne(t *testing.T) {
	outer := WithToken(context.Background(), 7)
	inner := WithToken(outer, 9)
	for _, c := range []struct {
		ctx  context.Context
		want store.Token
	}{{outer, 7}, {inner, 9}, {context.WithoutCancel(inner), 9}} {
		if got, ok := FromContext(c.ctx); !ok || got != c.want {
			t.Errorf("FromContext = %d, %v; want %d, true", got, ok, c.want)
		}
	}
}
