package middleware

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// codec turns responses into bytes and back. What comes back from the store is
// untrusted: every length is checked, every field must be one that can be sent,
// and whatever does not fit is an error, which makes the entry a miss.
type codec struct{}

// formatVersion is the first byte. Bytes of another version are a miss, so two
// releases of an application can share a store.
const formatVersion = 1

var errFormat = errors.New("middleware: stored response is damaged")

func (codec) Encode(p *response) ([]byte, error) {
	b := make([]byte, 0, 256+len(p.body))
	b = append(b, formatVersion, byte(p.rules))
	b = binary.AppendUvarint(b, uint64(p.status))
	for _, d := range []time.Duration{p.base, p.lifetime, p.swr, p.sie, p.grace} {
		b = binary.AppendUvarint(b, uint64(d))
	}
	for _, mark := range []branch{p.branch, p.epoch, p.parent, p.parentEpoch} {
		b = append(b, mark[:]...)
	}
	b = binary.AppendUvarint(b, uint64(len(p.selecting)))
	for _, s := range p.selecting {
		absent := byte(0)
		if s.absent {
			absent = 1
		}
		b = appendText(append(appendText(b, s.name), absent), s.value)
	}
	b = binary.AppendUvarint(b, uint64(len(p.tags)))
	for _, t := range p.tags {
		b = appendText(appendText(appendText(b, t.name), t.hard), t.soft)
	}
	b = appendHeader(b, p.header)
	b = appendHeader(b, p.trailer)
	return append(b, p.body...), nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendHeader(b []byte, h http.Header) []byte {
	b = binary.AppendUvarint(b, uint64(len(h)))
	for _, name := range sortedNames(h) {
		b = appendText(b, name)
		b = binary.AppendUvarint(b, uint64(len(h[name])))
		for _, value := range h[name] {
			b = appendText(b, value)
		}
	}
	return b
}

func sortedNames(h http.Header) []string {
	names := make([]string, 0, len(h))
	for name := range h {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (codec) Decode(data []byte) (*response, error) {
	d := decoder{data: data}
	if v := d.byte(); v != formatVersion {
		return nil, fmt.Errorf("middleware: stored response is of format %d, not %d", v, formatVersion)
	}
	p := &response{rules: rules(d.byte())}
	p.status = int(d.below(1000))
	for _, to := range []*time.Duration{&p.base, &p.lifetime, &p.swr, &p.sie, &p.grace} {
		*to = time.Duration(d.below(maxStored))
	}
	for _, to := range []*branch{&p.branch, &p.epoch, &p.parent, &p.parentEpoch} {
		copy(to[:], d.take(len(to)))
	}
	p.selecting = make([]selector, d.count(3))
	for i := range p.selecting {
		p.selecting[i] = selector{name: d.text(), absent: d.byte() == 1, value: d.text()}
	}
	if n := d.count(3); n > 0 {
		p.tags = make([]tag, n)
	}
	for i := range p.tags {
		p.tags[i] = tag{name: d.text(), hard: d.text(), soft: d.text()}
	}
	p.header = d.header()
	p.trailer = d.header()
	if d.bad || p.status < 200 {
		return nil, errFormat
	}
	p.body = d.data
	if len(p.trailer) == 0 {
		p.trailer = nil
	}
	return p.ready(), nil
}

// maxStored bounds a stored duration: what max-age can say, and an age.
const maxStored = 2 * maxDelta * int64(time.Second)

// decoder cuts pieces off data. Once something was wrong, bad stays set and
// every piece is empty.
type decoder struct {
	data []byte
	bad  bool
}

func (d *decoder) fail() {
	d.bad, d.data = true, nil
}

func (d *decoder) take(n int) []byte {
	if n > len(d.data) {
		d.fail()
		return nil
	}
	piece := d.data[:n]
	d.data = d.data[n:]
	return piece
}

func (d *decoder) byte() byte {
	if piece := d.take(1); len(piece) == 1 {
		return piece[0]
	}
	return 0
}

func (d *decoder) below(limit int64) int64 {
	v, n := binary.Uvarint(d.data)
	if n <= 0 || v >= uint64(limit) {
		d.fail()
		return 0
	}
	d.data = d.data[n:]
	return int64(v)
}

// count reads the number of items that take at least size bytes each: a number
// that the rest cannot hold is refused before anything is made of it.
func (d *decoder) count(size int) int {
	return int(d.below(int64(len(d.data)/size) + 1))
}

func (d *decoder) text() string {
	return string(d.take(int(d.below(int64(len(d.data)) + 1))))
}

func (d *decoder) header() http.Header {
	h := make(http.Header, 8)
	for range d.count(2) {
		name := d.text()
		values := make([]string, d.count(1))
		for i := range values {
			values[i] = d.text()
			if !isFieldValue(values[i]) {
				d.fail()
			}
		}
		if !isToken(name) || canonical(name) != name {
			d.fail()
		}
		h[name] = values
	}
	return h
}
