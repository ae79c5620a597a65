package middleware

import (
	"fmt"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/compressed"
	"github.com/cacheguard-go/cacheguard/cacheguard/sealed"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// besidesBody is room for what is stored with a body: its header, above all.
const besidesBody = 1 << 20

// storage returns the store as the cache uses it, and how entries are written
// there. What is compressed is read whether or not this process compresses, so
// that a deploy may mix both.
func (o *Options) storage(s store.Store) (store.Store, cacheguard.Codec[*response], error) {
	above := o.CompressAbove
	if above == 0 {
		above = -1
	}
	c, err := compressed.New[*response](codec{}, compressed.Options{Above: above, MaxSize: int(o.MaxBody) + besidesBody})
	if err != nil {
		return nil, nil, fmt.Errorf("middleware: %w", err)
	}
	if len(o.SealKeys) == 0 {
		return s, c, nil
	}
	believed, err := sealed.New(s, sealed.Options{Keys: o.SealKeys})
	if err != nil {
		return nil, nil, fmt.Errorf("middleware: Options.SealKeys: %w", err)
	}
	return believed, c, nil
}
