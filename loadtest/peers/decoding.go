package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"time"

	"github.com/vmihailenco/msgpack/v5"
)

// decoding is what it costs to take the bytes of an entry apart.
type decoding struct {
	How   string
	Nanos []float64 // by the sizes of decodingSizes
}

var decodingSizes = []int{1 << 10, 16 << 10}

// wrapped is an entry as one writes it that has a value and says how long it is
// good.
type wrapped struct {
	Token, Fresh, Gone int64
	Value              []byte
}

const wrappedHead = 24

// decodings measures each for about d.
func decodings(d time.Duration) (all []decoding) {
	ways := []struct {
		how    string
		encode func(wrapped) ([]byte, error)
		decode func([]byte) (wrapped, error)
	}{
		{"a fixed binary header, the value not copied", packFixed, unpackFixed},
		{"msgpack", func(w wrapped) ([]byte, error) { return msgpack.Marshal(&w) },
			func(b []byte) (w wrapped, err error) { return w, msgpack.Unmarshal(b, &w) }},
		{"JSON", func(w wrapped) ([]byte, error) { return json.Marshal(&w) },
			func(b []byte) (w wrapped, err error) { return w, json.Unmarshal(b, &w) }},
	}
	for _, way := range ways {
		out := decoding{How: way.how}
		for _, size := range decodingSizes {
			data, err := way.encode(wrapped{1, 2, 3, make([]byte, size)})
			if err != nil {
				panic(err) // a struct of numbers and bytes can be encoded
			}
			out.Nanos = append(out.Nanos, nanosEach(d, func() {
				if w, err := way.decode(data); err != nil || len(w.Value) != size {
					panic(err) // as above
				}
			}))
		}
		all = append(all, out)
	}
	return all
}

func packFixed(w wrapped) ([]byte, error) {
	b := make([]byte, wrappedHead, wrappedHead+len(w.Value))
	binary.BigEndian.PutUint64(b, uint64(w.Token))
	binary.BigEndian.PutUint64(b[8:], uint64(w.Fresh))
	binary.BigEndian.PutUint64(b[16:], uint64(w.Gone))
	return append(b, w.Value...), nil
}

func unpackFixed(b []byte) (w wrapped, err error) {
	if len(b) < wrappedHead {
		return w, errors.New("too short")
	}
	return wrapped{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:])), int64(binary.BigEndian.Uint64(b[16:])), b[wrappedHead:]}, nil
}

// nanosEach is what a call of f takes, called for about d.
func nanosEach(d time.Duration, f func()) float64 {
	for n := 1; ; n *= 2 {
		begin := time.Now()
		for range n {
			f()
		}
		if took := time.Since(begin); took >= d/2 {
			return float64(took) / float64(n)
		}
	}
}
