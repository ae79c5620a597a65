package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
	"github.com/cacheguard-go/cacheguard/internal/child"
)

// A late writer is a process of this test binary that changes a stock as
// demo-api does, and comes to a halt between what it has computed and the
// statement that writes it.

// lateWriterEnv makes a process one: it says where, as JSON.
const lateWriterEnv = "CACHEGUARD_TEST_LATE_WRITER"

type lateWriterArgs struct{ Postgres, Redis string }

// halted is what it says when it is about to write.
type halted struct {
	Token int64
	Stock int64
}

// outcome is what it says when it has written, or was refused.
type outcome struct {
	IsFenced, IsNotFound bool
	Token, Last          int64 // of the *fencedError
	Error                string
}

func lateWriter(args string) error {
	var where lateWriterArgs
	if err := json.Unmarshal([]byte(args), &where); err != nil {
		return err
	}
	ctx := context.Background()
	cfg, err := parseFlags([]string{"-postgres", where.Postgres, "-redis", where.Redis}, io.Discard)
	if err != nil {
		return err
	}
	m := newMetrics()
	back, err := openBackend(ctx, cfg.redis, m.commandSent)
	if err != nil {
		return err
	}
	defer back.Close()
	cat, err := newCatalogue(ctx, cfg, back.store, m, new(leaseWatch))
	if err != nil {
		return err
	}
	defer cat.Close()
	cat.origin.origin = haltingOrigin{cat.origin.origin}

	_, err = cat.ChangeStock(ctx, "1", -1)
	var out outcome
	if err != nil {
		out.Error = err.Error()
	}
	var fenced *fencedError
	if errors.As(err, &fenced) {
		out.Token, out.Last = int64(fenced.Token), int64(fenced.Last)
	}
	out.IsFenced = fenced != nil && errors.Is(err, store.ErrFenced)
	out.IsNotFound = errors.Is(err, cacheguard.ErrNotFound)
	return json.NewEncoder(os.Stdout).Encode(out)
}

// haltingOrigin waits for a word before it writes. Then it writes whatever has
// become of the lease meanwhile: it has looked at its context before, as a
// statement has that is on its way to the database.
type haltingOrigin struct{ origin }

func (o haltingOrigin) SetStock(ctx context.Context, token store.Token, id string, stock int64) (product, error) {
	if err := json.NewEncoder(os.Stdout).Encode(halted{int64(token), stock}); err != nil {
		return product{}, err
	}
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return product{}, err
	}
	return o.origin.SetStock(context.WithoutCancel(ctx), token, id, stock)
}

// writer is a late writer that was started.
type writer struct {
	t       *testing.T
	process *child.Child
	in      io.WriteCloser
	said    *json.Decoder
	token   int64
}

// startLateWriter returns when the writer has read a stock of 10 and is about
// to write 9.
func startLateWriter(t *testing.T, postgres, redis string) *writer {
	t.Helper()
	args, err := json.Marshal(lateWriterArgs{postgres, redis})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), lateWriterEnv+"="+string(args))
	cmd.Stderr = os.Stderr
	out, said := io.Pipe()
	cmd.Stdout = said
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{t: t, in: in, said: json.NewDecoder(out)}
	if w.process, err = child.Start(cmd); err != nil {
		t.Fatal(err)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		<-w.process.Done()
		said.CloseWithError(errors.New("the writer has ended"))
	}()
	t.Cleanup(func() { out.Close(); w.process.Kill(); <-closed })

	var h halted
	w.hear(&h)
	if h.Token <= 0 || h.Stock != 9 {
		t.Fatalf("the writer is about to write %+v, want a stock of 9 under a token", h)
	}
	w.token = h.Token
	return w
}

func (w *writer) hear(v any) {
	w.t.Helper()
	heard := make(chan error, 1)
	go func() { heard <- w.said.Decode(v) }()
	select {
	case err := <-heard:
		if err != nil {
			w.t.Fatal(err)
		}
	case <-time.After(30 * time.Second):
		w.t.Fatal("the writer says nothing")
	}
}

// stop stops the process as it is.
func (w *writer) stop() {
	w.t.Helper()
	if err := w.process.Signal(syscall.SIGSTOP); err != nil {
		w.t.Fatal(err)
	}
}

// resume lets it go on, and write.
func (w *writer) resume() (out outcome) {
	w.t.Helper()
	if err := w.process.Signal(syscall.SIGCONT); err != nil {
		w.t.Fatal(err)
	}
	if _, err := fmt.Fprintln(w.in); err != nil {
		w.t.Fatal(err)
	}
	w.hear(&out)
	return out
}
