package middleware

import (
	"bytes"
	"crypto/sha256"
	"io"
	"net/http"
)

// methodQuery is the method of a read whose question is in its body
// (draft-ietf-httpbis-safe-method-w-body).
const methodQuery = "QUERY"

// requestBody is the body of a request that asks for something by it. It is
// owned by nobody's connection: a run may begin when the request has ended.
type requestBody struct {
	data   []byte
	length int64 // that the request says; -1: none
}

// reads tells whether r is to be answered from the cache by its body: the user
// has said that such requests change nothing.
func (c *Cache) reads(r *http.Request, policy *Policy) bool {
	switch r.Method {
	case methodQuery:
		return c.opts.KeyBody > 0
	case http.MethodPost:
		return c.opts.KeyBody > 0 && policy.PostReads
	}
	return false
}

// takeBody reads the body of r, to be part of its key. It returns r, or a copy
// of it, with a body like the one that r had, whatever comes of it. If that body
// cannot be part of a key, nil comes with it: it is too long, it broke off, it has trailers (which
// a key does not hold), or somebody in front of the cache has read of it already,
// and may have told the handler what it says.
func (c *Cache) takeBody(r *http.Request) (*http.Request, *requestBody) {
	limit := c.opts.KeyBody
	if r.ContentLength > limit || len(r.Trailer) > 0 || r.PostForm != nil || r.MultipartForm != nil {
		return r, nil
	}
	if r.Body == nil || r.Body == http.NoBody {
		return r, whole(nil, r)
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err == nil && int64(len(data)) <= limit && len(r.Trailer) == 0 {
		if b := whole(data, r); b != nil {
			return b.restored(r), b
		}
	}
	resume(r, data, err)
	return r, nil
}

// whole returns what was read of r as its body, or nil if it is not all of it.
// Nothing at all of a body of unknown length may be what somebody in front has
// left of it.
func whole(data []byte, r *http.Request) *requestBody {
	if int64(len(data)) != r.ContentLength && (r.ContentLength >= 0 || len(data) == 0) {
		return nil
	}
	return &requestBody{data: data, length: r.ContentLength}
}

// restored returns r with the body, to be read from its beginning.
func (b *requestBody) restored(r *http.Request) *http.Request {
	r = r.WithContext(r.Context())
	b.restore(r)
	return r
}

// restore gives r the body. Every run has a reader of its own.
func (b *requestBody) restore(r *http.Request) {
	r.ContentLength = b.length
	r.Body = http.NoBody
	r.GetBody = func() (io.ReadCloser, error) { return b.reader(), nil }
	if len(b.data) > 0 {
		r.Body = b.reader()
	}
}

func (b *requestBody) reader() io.ReadCloser { return io.NopCloser(bytes.NewReader(b.data)) }

// appendTo adds to a key what tells one body from another: the bytes, and what
// they are said to mean.
func (b *requestBody) appendTo(key []byte, r *http.Request) []byte {
	sum := sha256.Sum256(b.data)
	key = appendPart(appendPart(key, 'm', r.Method), 'd', string(sum[:]))
	for _, name := range []string{"Content-Type", "Content-Encoding"} {
		for _, line := range r.Header[name] {
			key = appendPart(appendPart(key, 'n', name), 'v', line)
		}
	}
	return key
}

// resume gives r back what was read of its body before err came: whoever reads
// it sees the same, in the same order. It is done to r itself, and not to a copy,
// since the server writes trailers that nobody announced to the request that it
// knows.
func resume(r *http.Request, data []byte, err error) {
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(data), &rest{r.Body, err}), r.Body}
}

// rest is the rest of a body, after an error that has come already.
type rest struct {
	body io.Reader
	err  error // nil: none has, or it was told
}

func (t *rest) Read(p []byte) (int, error) {
	if err := t.err; err != nil {
		t.err = nil
		return 0, err
	}
	return t.body.Read(p)
}
