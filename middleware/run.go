package middleware

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// run is one run of the handler, and the recording of what it writes. It is
// the handler's http.ResponseWriter; its client, and those who may read along,
// read from the recording, so that a slow reader does not slow the handler
// down, and a handler that writes too late or from another goroutine reaches
// nobody's connection.
//
// As long as the answer may still be kept, the recording holds all of it. Once
// it is known that it will not be (its header says so, it is too big, it was
// hijacked), it is a window that waits for its client to read.
type run struct {
	limit  int64                                   // of the body, while it may be kept
	judge  func(status int, h http.Header) verdict // of the answer's header
	client *client                                 // nil: nobody waits for this run
	req    *http.Request                           // that the handler was run for
	cancel context.CancelCauseFunc                 // of the handler's context

	header http.Header // the handler's own; only its goroutine touches it

	storing atomic.Pointer[storing] // the answer's way to the store, once it is on it

	// decided is closed as soon as it is known that the answer is for its own
	// client alone, done when the handler has ended; streaming when its client
	// should be given what there is.
	decided, done, streaming chan struct{}

	mu       sync.Mutex
	changed  chan struct{} // closed when there is something new to read; nil: nobody waits
	room     chan struct{} // closed when a reader made room; nil: the handler does not wait
	status   int           // zero: no header yet
	sent     http.Header   // the header when it was sent
	verdict  verdict       // on it
	buf      []byte        // what has been written, from offset dropped
	dropped  int64
	flushed  int64 // readers are to flush what lies before this offset
	length   int64 // the Content-Length that the handler promised; -1: none
	alone    bool  // decided
	hijacked bool  // the handler has the connection
	ended    bool
	readers  map[*job]int64 // who reads, and how far each has come
	trailer  http.Header
	failure  error // why what was recorded is not whole
}

// window is how much of an answer that will not be kept is held for its client.
const window = 64 << 10

var (
	errClientLeft = errors.New("middleware: the client has left")
	errEnded      = errors.New("middleware: write after the handler has returned")
)

// handlerPanic is the failure of a run whose handler panicked or called
// runtime.Goexit.
type handlerPanic struct {
	value  any // nil: runtime.Goexit
	stack  []byte
	goexit bool
}

func (p *handlerPanic) Error() string {
	if p.goexit {
		return "middleware: handler called runtime.Goexit"
	}
	return fmt.Sprintf("middleware: handler panicked: %v", p.value)
}

// errIncomplete: the handler ended without a whole answer.
type errIncomplete string

func (e errIncomplete) Error() string { return "middleware: incomplete answer: " + string(e) }

func newRun(limit int64, leader *job, cancel context.CancelCauseFunc, judge func(int, http.Header) verdict) *run {
	t := &run{
		limit: limit, judge: judge, cancel: cancel,
		header:    make(http.Header),
		decided:   make(chan struct{}),
		done:      make(chan struct{}),
		streaming: make(chan struct{}),
		length:    -1,
		readers:   make(map[*job]int64),
	}
	if leader != nil {
		t.client = &leader.client
		t.readers[leader] = 0
	}
	return t
}

// Header implements http.ResponseWriter.
func (t *run) Header() http.Header { return t.header }

// WriteHeader implements http.ResponseWriter. Informational answers go to the
// client as they come and are not kept; a second final one is ignored, as by
// net/http.
func (t *run) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
	t.mu.Lock()
	late := t.status != 0 || t.ended
	t.mu.Unlock()
	switch {
	case late:
	case status < 200 && status != http.StatusSwitchingProtocols:
		t.client.inform(status, t.header)
	default:
		t.commit(status)
	}
}

// commit takes the header as it is now; what the handler does to it later
// means nothing, but for trailers.
func (t *run) commit(status int) {
	sent := cloneHeader(t.header)
	if _, ok := sent["Date"]; !ok {
		sent["Date"] = []string{time.Now().UTC().Format(http.TimeFormat)}
	}
	v := t.judge(status, sent)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.status, t.sent, t.verdict = status, sent, v
	if s, ok := single(sent["Content-Length"]); ok {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 {
			t.length = n
		}
	}
	if (v.class == classPass || v.class == classUnshared) && !v.held {
		t.decide("")
	}
	t.tell()
}

// Write implements http.ResponseWriter.
func (t *run) Write(p []byte) (int, error) {
	t.mu.Lock()
	sent := t.status != 0 || t.ended
	t.mu.Unlock()
	if !sent {
		t.WriteHeader(http.StatusOK)
	}
	written := 0
	for {
		n, room, err := t.record(p[written:])
		if written += n; err != nil || written == len(p) {
			return written, err
		}
		<-room
	}
}

// WriteString implements io.StringWriter.
func (t *run) WriteString(s string) (int, error) { return t.Write([]byte(s)) }

// record takes as much of p as there is room for; if that is not all, room
// tells when there is more.
func (t *run) record(p []byte) (n int, room <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended:
		return 0, nil, errEnded
	case len(p) == 0:
		return 0, nil, nil
	case !bodyAllowed(t.status):
		return 0, nil, http.ErrBodyNotAllowed
	case t.length >= 0 && t.written()+int64(len(p)) > t.length:
		return 0, nil, http.ErrContentLength
	case !t.alone && t.written()+int64(len(p)) > t.limit:
		// The others have waited for nothing: let them go at once.
		t.verdict = verdict{class: classPass, reason: "too-big"}
		t.decide("too-big")
	}
	if t.abandoned() {
		return 0, nil, errClientLeft
	}
	n = len(p)
	if t.alone {
		n = min(n, max(window-len(t.buf), 0))
	}
	if n > 0 {
		t.buf = append(t.buf, p[:n]...)
		t.tell()
	}
	if n < len(p) {
		if t.room == nil {
			t.room = make(chan struct{})
		}
		room = t.room
	}
	return n, room, nil
}

func (t *run) written() int64 { return t.dropped + int64(len(t.buf)) }

// flush asks the readers to flush what has been written. A handler that
// flushes before it ends wants its client to see what there is.
func (t *run) flush() error {
	t.mu.Lock()
	sent := t.status != 0 || t.ended
	t.mu.Unlock()
	if !sent {
		t.WriteHeader(http.StatusOK)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended:
		return errEnded
	case t.abandoned():
		return errClientLeft
	}
	if t.verdict.assumed {
		// Nobody but the user's default says that it may be kept, and it looks
		// like a stream that may never end: nobody is to wait for it.
		t.verdict.class = classPass
		t.decide("stream")
	}
	t.flushed = max(t.written(), 1)
	t.stream()
	t.tell()
	return nil
}

// decide ends the hope that the answer can be kept. With mu held.
func (t *run) decide(reason string) {
	if t.alone {
		return
	}
	t.alone = true
	if reason != "" {
		t.verdict.reason = reason
	}
	if t.abandoned() {
		t.cancel(errClientLeft)
	}
	close(t.decided)
	t.stream()
}

func (t *run) stream() {
	select {
	case <-t.streaming:
	default:
		close(t.streaming)
	}
}

// tell wakes the readers. With mu held.
func (t *run) tell() {
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
}

// makeRoom wakes a handler that waits in Write. With mu held.
func (t *run) makeRoom() {
	if t.room != nil {
		close(t.room)
		t.room = nil
	}
}

// abandoned tells whether nobody can want what comes: the answer will not be
// kept, and nobody reads it. With mu held.
func (t *run) abandoned() bool { return t.alone && len(t.readers) == 0 }

// attach lets j read along from the beginning, unless it may be gone already.
func (t *run) attach(j *job) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.alone {
		return false
	}
	t.readers[j] = 0
	return true
}

// leave says that j reads no more. A run that may still be kept goes on.
func (t *run) leave(j *job) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.readers, j)
	if t.abandoned() && !t.ended {
		t.cancel(errClientLeft)
	}
	t.trim()
}

// finish takes the end of the handler. failure is why it did not end well, or
// nil.
func (t *run) finish(failure error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case failure != nil:
	case t.status == 0:
		failure = errIncomplete("the handler wrote nothing")
		t.status, t.sent = http.StatusOK, cloneHeader(t.header)
	case t.length >= 0 && bodyAllowed(t.status) && t.written() != t.length:
		failure = errIncomplete("shorter than its Content-Length")
	default:
		failure = t.collectTrailer()
	}
	t.failure, t.ended = failure, true
	if failure == nil && !t.alone {
		t.sent = sniffed(t.sent, t.buf)
	}
	t.makeRoom()
	t.tell()
	close(t.done)
}

// collectTrailer takes the trailer fields that the handler announced, or set by
// http.TrailerPrefix. One that was announced and is not there makes the answer
// incomplete.
func (t *run) collectTrailer() error {
	var missing error
	add := func(name string, values []string) {
		if t.trailer == nil {
			t.trailer = make(http.Header)
		}
		t.trailer[name] = append([]string(nil), values...)
	}
	for _, line := range t.sent["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			name = canonical(trimOWS(name))
			if values, ok := t.header[name]; ok {
				add(name, values)
			} else if name != "" {
				missing = errIncomplete("trailer " + name + " was announced and not sent")
			}
		}
	}
	for name, values := range t.header {
		if name, ok := strings.CutPrefix(name, http.TrailerPrefix); ok {
			add(name, values)
		}
	}
	return missing
}

// sniffed does what net/http does for a header without Content-Type.
func sniffed(h http.Header, body []byte) http.Header {
	if _, typed := h["Content-Type"]; typed || len(body) == 0 || h.Get("Content-Encoding") != "" {
		return h
	}
	h = maps.Clone(h) // somebody may be reading it
	h["Content-Type"] = []string{http.DetectContentType(body[:min(len(body), 512)])}
	return h
}

// head waits for the answer's header, or for the end of a run without one.
func (t *run) head(ctx context.Context) (status int, h http.Header, ok bool) {
	for {
		t.mu.Lock()
		status, h, ended := t.status, t.sent, t.ended
		changed := t.listen()
		t.mu.Unlock()
		if status != 0 || ended {
			return status, h, status != 0
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, nil, false
		}
	}
}

// listen returns what is closed when there is something new. With mu held.
func (t *run) listen() <-chan struct{} {
	if t.changed == nil {
		t.changed = make(chan struct{})
	}
	return t.changed
}

// next returns what has been recorded from offset on. With nothing new it
// returns what is closed when there is; ended tells that there will not be.
func (t *run) next(offset int64) (p []byte, flush, ended bool, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p = t.buf[offset-t.dropped:]
	flush = t.flushed > offset || (t.flushed > 0 && t.flushed >= t.written())
	if len(p) == 0 && !t.ended {
		changed = t.listen()
	}
	return p[:len(p):len(p)], flush, t.ended, changed
}

// read says that j has read up to offset.
func (t *run) read(j *job, offset int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.readers[j] = offset
	t.trim()
}

// trim forgets what everybody has read of an answer that will not be kept, and
// wakes a handler that waits in Write. With mu held.
func (t *run) trim() {
	if !t.alone {
		return
	}
	least := t.written()
	for _, offset := range t.readers {
		least = min(least, offset)
	}
	t.buf = t.buf[least-t.dropped:]
	t.dropped = least
	t.makeRoom()
}

func (t *run) isAlone() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.alone
}

// outcome returns how the run ended. Only after done.
func (t *run) outcome() (verdict, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.verdict, t.failure
}
