package compressed_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/compressed"
)

// magic is what a Zstandard frame begins with.
const magic = "\x28\xb5\x2f\xfd"

func codecOf(t testing.TB, opts compressed.Options) cacheguard.Codec[[]byte] {
	t.Helper()
	c, err := compressed.New(cacheguard.Bytes(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// noise is n bytes that do not become smaller.
func noise(n int) []byte {
	r := rand.NewChaCha8([32]byte{1})
	b := make([]byte, n)
	_, _ = r.Read(b)
	return b
}

func TestLargeValuesAreCompressedAndSmallOnesAreNot(t *testing.T) {
	text := []byte(strings.Repeat("fencing token ", 1000))
	for _, c := range []struct {
		name  string
		opts  compressed.Options
		value []byte
		frame bool
	}{
		{"small", compressed.Options{}, text[:1023], false},
		{"large", compressed.Options{}, text[:1024], true},
		{"from a size of one's own", compressed.Options{Above: 100}, text[:100], true},
		{"below a size of one's own", compressed.Options{Above: 100}, text[:99], false},
		{"does not become smaller", compressed.Options{}, noise(10 << 10), false},
		{"off", compressed.Options{Above: -1}, text, false},
		{"larger than MaxSize", compressed.Options{MaxSize: 2000}, text[:2001], false},
		{"as large as MaxSize", compressed.Options{MaxSize: 2000}, text[:2000], true},
		{"empty", compressed.Options{}, []byte{}, false},
		{"begins like a frame", compressed.Options{}, []byte(magic), true},
		{"begins like a frame, large noise", compressed.Options{}, append([]byte(magic), noise(10<<10)...), true},
		{"begins like a frame, off", compressed.Options{Above: -1}, []byte(magic + "x"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			codec := codecOf(t, c.opts)
			stored, err := codec.Encode(c.value)
			if err != nil {
				t.Fatal(err)
			}
			if frame := bytes.HasPrefix(stored, []byte(magic)); frame != c.frame {
				t.Errorf("%d bytes became a frame: %v", len(c.value), frame)
			}
			if !c.frame && !bytes.Equal(stored, c.value) {
				t.Error("what is not compressed is changed")
			}
			if c.name == "large" && len(stored) > len(c.value)/4 {
				t.Errorf("%d bytes became %d", len(c.value), len(stored))
			}
			back, err := codec.Decode(stored)
			if err != nil || !bytes.Equal(back, c.value) {
				t.Errorf("came back as %d bytes, %v", len(back), err)
			}
		})
	}
}

func TestWhatWasStoredBeforeIsReadAndWhatCompressesLaterToo(t *testing.T) {
	type product struct{ Name string }
	plain := cacheguard.JSON[product]()
	reader, err := compressed.New(plain, compressed.Options{Above: -1})
	if err != nil {
		t.Fatal(err)
	}
	writer, err := compressed.New(plain, compressed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p := product{strings.Repeat("lamp ", 1000)}
	for _, from := range []cacheguard.Codec[product]{plain, reader, writer} {
		stored, err := from.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []cacheguard.Codec[product]{reader, writer} {
			if got, err := to.Decode(stored); err != nil || got != p {
				t.Errorf("a value of %T read by %T: %v", from, to, err)
			}
		}
	}
}

func TestAFewBytesThatStandForManyAreRefusedAtNoPrice(t *testing.T) {
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	bomb := enc.EncodeAll(make([]byte, 256<<20), nil)
	var streamed bytes.Buffer // a frame that does not say how large it is
	sw, err := zstd.NewWriter(&streamed)
	if err != nil {
		t.Fatal(err)
	}
	for range 64 {
		if _, err := sw.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
	}
	if err := sw.Close(); err != nil {
		t.Fatal(err)
	}
	part := enc.EncodeAll(make([]byte, 1<<20), nil)
	codec := codecOf(t, compressed.Options{MaxSize: 2 << 20})
	for name, data := range map[string][]byte{
		"says its size":         bomb,
		"does not say its size": streamed.Bytes(),
		"many frames":           bytes.Repeat(part, 64),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		v, err := codec.Decode(data)
		runtime.ReadMemStats(&after)
		if err == nil {
			t.Errorf("%s: %d bytes became %d", name, len(data), len(v))
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
			t.Errorf("%s: took %d MiB to refuse", name, took>>20)
		}
	}
}

func TestAValueThatMustBeAFrameAndIsTooLargeIsAnError(t *testing.T) {
	codec := codecOf(t, compressed.Options{MaxSize: 1000})
	if stored, err := codec.Encode(append([]byte(magic), make([]byte, 1000)...)); err == nil {
		t.Errorf("became %d bytes that cannot be read again", len(stored))
	}
}

type failing struct{ cacheguard.Codec[[]byte] }

var errInner = errors.New("inner")

func (failing) Encode([]byte) ([]byte, error) { return nil, errInner }
func (failing) Decode([]byte) ([]byte, error) { return nil, errInner }

func TestTheOtherCodecsErrorsAreItsOwn(t *testing.T) {
	codec, err := compressed.New[[]byte](failing{}, compressed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := codec.Encode(nil); !errors.Is(err, errInner) {
		t.Errorf("Encode: %v", err)
	}
	frame, err := codecOf(t, compressed.Options{}).Encode(make([]byte, 2000))
	if err != nil {
		t.Fatal(err)
	}
	for _, data := range [][]byte{frame, []byte("plain")} {
		if _, err := codec.Decode(data); !errors.Is(err, errInner) {
			t.Errorf("Decode: %v", err)
		}
	}
}

func TestOptionsOutOfRangeSayWhatToWrite(t *testing.T) {
	for _, opts := range []compressed.Options{{MaxSize: -1}, {MaxSize: 1<<30 + 1}} {
		if _, err := compressed.New(cacheguard.Bytes(), opts); err == nil || !strings.Contains(err.Error(), "use 1 to") {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	if _, err := compressed.New[int](nil, compressed.Options{}); err == nil {
		t.Error("no codec: no error")
	}
}

func TestOneCodecServesManyAtOnce(t *testing.T) {
	codec := codecOf(t, compressed.Options{})
	var wg sync.WaitGroup
	for i := range 8 {
		value := bytes.Repeat([]byte{byte(i)}, 5000)
		wg.Go(func() {
			for range 100 {
				stored, err := codec.Encode(value)
				if err != nil {
					t.Error(err)
				}
				if back, err := codec.Decode(stored); err != nil || !bytes.Equal(back, value) {
					t.Errorf("another's value, or none: %v", err)
				}
			}
		})
	}
	wg.Wait()
}

// Whatever the bytes are, Decode ends, with no more than MaxSize bytes; and
// whatever is encoded comes back.
func FuzzCodec(f *testing.F) {
	f.Add([]byte(nil))
	f.Add([]byte(magic))
	f.Add([]byte(strings.Repeat("lease ", 500)))
	enc, err := zstd.NewWriter(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(enc.EncodeAll(make([]byte, 1<<20), nil))
	f.Add(enc.EncodeAll(noise(3000), nil))
	const most = 64 << 10
	codec := codecOf(f, compressed.Options{Above: 64, MaxSize: most})
	f.Fuzz(func(t *testing.T, data []byte) {
		if v, err := codec.Decode(data); err == nil && bytes.HasPrefix(data, []byte(magic)) && len(v) > most {
			t.Errorf("%d bytes became %d", len(data), len(v))
		}
		stored, err := codec.Encode(data)
		if err != nil {
			if len(data) <= most {
				t.Errorf("%d bytes: %v", len(data), err)
			}
			return
		}
		if back, err := codec.Decode(stored); err != nil || !bytes.Equal(back, data) {
			t.Errorf("%d bytes came back as %d, %v", len(data), len(back), err)
		}
	})
}

func BenchmarkCodec(b *testing.B) {
	var text bytes.Buffer
	r := rand.New(rand.NewPCG(1, 2))
	for text.Len() < 16<<10 {
		text.WriteString(`{"id":`)
		text.WriteByte(byte('0' + r.IntN(10)))
		text.WriteString(`,"name":"a product","price_cents":`)
		for range 4 {
			text.WriteByte(byte('0' + r.IntN(10)))
		}
		text.WriteString("},")
	}
	codec := codecOf(b, compressed.Options{})
	stored, err := codec.Encode(text.Bytes())
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode/16KiB", func(b *testing.B) {
		b.SetBytes(int64(text.Len()))
		b.ReportAllocs()
		for b.Loop() {
			_, _ = codec.Encode(text.Bytes())
		}
		b.ReportMetric(float64(len(stored))/float64(text.Len()), "size")
	})
	b.Run("decode/16KiB", func(b *testing.B) {
		b.SetBytes(int64(text.Len()))
		b.ReportAllocs()
		for b.Loop() {
			_, _ = codec.Decode(stored)
		}
	})
}
