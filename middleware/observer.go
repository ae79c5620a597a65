package middleware

import (
	"bufio"
	"io"
	"net"
	"net/http"
)

// observer is the writer of a handler that runs for its own client alone: what
// is written goes straight through. Its header is looked at on its way, once.
type observer struct {
	http.ResponseWriter
	looker  looker
	seen    bool
	flushed bool // something was sent before the handler returned
}

// looker looks at the header of an answer before it is sent.
type looker interface {
	look(status int, h http.Header)
}

func (o *observer) see(status int) {
	if !o.seen {
		o.seen = true
		o.looker.look(status, o.Header())
	}
}

func (o *observer) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		o.see(status)
	}
	o.ResponseWriter.WriteHeader(status)
}

func (o *observer) Write(p []byte) (int, error) {
	o.see(http.StatusOK)
	return o.ResponseWriter.Write(p)
}

// WriteString implements io.StringWriter.
func (o *observer) WriteString(s string) (int, error) {
	o.see(http.StatusOK)
	return io.WriteString(o.ResponseWriter, s)
}

// ReadFrom lets the writer underneath use sendfile.
func (o *observer) ReadFrom(r io.Reader) (int64, error) {
	o.see(http.StatusOK)
	if rf, ok := o.ResponseWriter.(io.ReaderFrom); ok {
		return rf.ReadFrom(r)
	}
	return io.Copy(struct{ io.Writer }{o.ResponseWriter}, r)
}

// Unwrap is for http.ResponseController.
func (o *observer) Unwrap() http.ResponseWriter { return o.ResponseWriter }

// writer returns the observer as a http.ResponseWriter that is a http.Flusher
// and a http.Hijacker exactly if the one underneath is.
func (o *observer) writer() http.ResponseWriter {
	_, flusher := o.ResponseWriter.(http.Flusher)
	_, hijacker := o.ResponseWriter.(http.Hijacker)
	switch {
	case flusher && hijacker:
		return (*observerFH)(o)
	case flusher:
		return struct {
			*observer
			observerFlush
		}{o, observerFlush{o}}
	case hijacker:
		return struct {
			*observer
			observerHijack
		}{o, observerHijack{o}}
	}
	return o
}

// observerFH is the usual case, the writer of an HTTP/1.1 server, for which a
// conversion costs nothing.
type observerFH observer

func (o *observerFH) Header() http.Header                 { return o.ResponseWriter.Header() }
func (o *observerFH) WriteHeader(status int)              { (*observer)(o).WriteHeader(status) }
func (o *observerFH) Write(p []byte) (int, error)         { return (*observer)(o).Write(p) }
func (o *observerFH) WriteString(s string) (int, error)   { return (*observer)(o).WriteString(s) }
func (o *observerFH) ReadFrom(r io.Reader) (int64, error) { return (*observer)(o).ReadFrom(r) }
func (o *observerFH) Unwrap() http.ResponseWriter         { return o.ResponseWriter }
func (o *observerFH) Flush()                              { observerFlush{(*observer)(o)}.Flush() }
func (o *observerFH) FlushError() error                   { return observerFlush{(*observer)(o)}.FlushError() }
func (o *observerFH) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return observerHijack{(*observer)(o)}.Hijack()
}

type observerFlush struct{ o *observer }

func (f observerFlush) Flush() { _ = f.FlushError() }

func (f observerFlush) FlushError() error {
	f.o.see(http.StatusOK)
	f.o.flushed = true
	return http.NewResponseController(f.o.ResponseWriter).Flush()
}

type observerHijack struct{ o *observer }

func (h observerHijack) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return http.NewResponseController(h.o.ResponseWriter).Hijack()
}
