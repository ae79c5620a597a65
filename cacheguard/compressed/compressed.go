// Package compressed makes a codec that compresses what another one has
// encoded, with Zstandard, if that is large and becomes smaller:
//
//	codec, err := compressed.New(cacheguard.JSON[Product](), compressed.Options{})
//	guard, err := cacheguard.New(store, cacheguard.Options[Product]{Codec: codec})
//
// What it writes is either the bytes of the other codec, untouched, or a
// Zstandard frame of them (RFC 8878), which begins with a number that nothing
// else begins with. So it reads what was written before it was switched on. The
// other way round it does not hold: a process without it takes a frame for a
// value of its own format. Switch it on in two deploys: first everywhere with
// Options.Above negative, then for good.
//
// The HTTP cache has it as an option; see middleware.Options.
package compressed

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"

	"github.com/cacheguard-go/cacheguard/cacheguard"
)

// Options shape a codec. The zero value works.
type Options struct {
	// Above is the size in bytes from which an encoded value is compressed.
	// 0: 1 KiB. Negative: no value is, but those are read that others have
	// compressed.
	Above int

	// MaxSize bounds, in bytes, what a value may be once it is decompressed: the
	// bytes in the store may be anybody's, and a few of them can stand for
	// gigabytes. What is larger is not compressed. 0: 64 MiB. At most 1 GiB.
	MaxSize int
}

// defaultAbove is where compressing pays: below it a frame saves less than the
// store keeps for the key.
const (
	defaultAbove   = 1 << 10
	defaultMaxSize = 64 << 20
	maxMaxSize     = 1 << 30
)

// frameMagic is what every Zstandard frame begins with (RFC 8878 3.1.1).
var frameMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}

var (
	errTooLarge = errors.New("compressed: value is larger than Options.MaxSize")
	errFrame    = errors.New("compressed: value begins like a frame and is too large to be made one")
)

// New returns a codec that compresses what inner encodes. It is safe for
// concurrent use if inner is. It fails if an option is out of range, and says
// what to write instead.
func New[V any](inner cacheguard.Codec[V], opts Options) (cacheguard.Codec[V], error) {
	if inner == nil {
		return nil, errors.New("compressed: the codec is nil; use cacheguard.JSON, or cacheguard.Bytes")
	}
	if opts.Above == 0 {
		opts.Above = defaultAbove
	}
	if opts.MaxSize == 0 {
		opts.MaxSize = defaultMaxSize
	}
	if opts.MaxSize < 0 || opts.MaxSize > maxMaxSize {
		return nil, fmt.Errorf("compressed: Options.MaxSize is %d; use 1 to %d, or 0 for %d", opts.MaxSize, maxMaxSize, defaultMaxSize)
	}
	// Neither starts a goroutine or holds a file as long as whole values are
	// given to it: there is nothing to close.
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("compressed: %w", err)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(uint64(opts.MaxSize)), zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("compressed: %w", err)
	}
	return &codec[V]{inner: inner, opts: opts, enc: enc, dec: dec}, nil
}

type codec[V any] struct {
	inner cacheguard.Codec[V]
	opts  Options
	enc   *zstd.Encoder
	dec   *zstd.Decoder
}

// Encode implements [cacheguard.Codec].
func (c *codec[V]) Encode(v V) ([]byte, error) {
	plain, err := c.inner.Encode(v)
	if err != nil {
		return nil, err
	}
	mistakable := bytes.HasPrefix(plain, frameMagic) // it has to become a frame, whatever its size
	large := c.opts.Above >= 0 && len(plain) >= c.opts.Above
	switch {
	case !mistakable && (!large || len(plain) > c.opts.MaxSize):
		return plain, nil
	case len(plain) > c.opts.MaxSize:
		return nil, errFrame
	}
	frame := c.enc.EncodeAll(plain, make([]byte, 0, len(plain)/2))
	if len(frame) >= len(plain) && !mistakable {
		return plain, nil
	}
	return frame, nil
}

// Decode implements [cacheguard.Codec].
func (c *codec[V]) Decode(data []byte) (v V, err error) {
	if !bytes.HasPrefix(data, frameMagic) {
		return c.inner.Decode(data)
	}
	plain, err := c.dec.DecodeAll(data, nil)
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded), len(plain) > c.opts.MaxSize:
		return v, errTooLarge
	case err != nil:
		return v, fmt.Errorf("compressed: %w", err)
	}
	return c.inner.Decode(plain)
}
