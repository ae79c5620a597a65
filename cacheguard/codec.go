package cacheguard

import "encoding/json"

// Codec turns values into bytes and back. It is used concurrently. Decode gets
// bytes that came from the store: they may be anything, and an error makes the
// entry a miss that is reported. Decode must not change data; it may keep it.
type Codec[V any] interface {
	Encode(v V) ([]byte, error)
	Decode(data []byte) (V, error)
}

// JSON is the codec of encoding/json, and the default.
func JSON[V any]() Codec[V] { return jsonCodec[V]{} }

type jsonCodec[V any] struct{}

func (jsonCodec[V]) Encode(v V) ([]byte, error) { return json.Marshal(v) }

func (jsonCodec[V]) Decode(data []byte) (v V, err error) {
	err = json.Unmarshal(data, &v)
	return v, err
}

// Bytes is the codec of values that are bytes already. It copies nothing: what
// a Get returns may be shared with other callers and must not be changed.
func Bytes() Codec[[]byte] { return bytesCodec{} }

type bytesCodec struct{}

func (bytesCodec) Encode(v []byte) ([]byte, error)    { return v, nil }
func (bytesCodec) Decode(data []byte) ([]byte, error) { return data, nil }
