package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"
	"os"
	"os/exec"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cacheguard-go/cacheguard/internal/child"
)

// stage is what all scenarios share: the origin, which workers reach at its
// address, and a Redis.
type stage struct {
	*origin
	*progress
	redis string

	addr     string
	listener net.Listener
	hello    chan Hello
}

// Control is what workers call.
type Control struct{ st *stage }

// Hello is how a worker says that it is ready.
type Hello struct {
	PID  int
	Addr string
}

// Hello is called by a worker once.
func (c *Control) Hello(h Hello, _ *struct{}) error {
	c.st.hello <- h
	return nil
}

// Load is called by workers.
func (c *Control) Load(args LoadArgs, reply *LoadReply) error { return c.st.Load(args, reply) }

func newStage(redis string, p *progress) (*stage, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	st := &stage{origin: &origin{keys: map[string]*item{}}, progress: p, redis: redis,
		addr: l.Addr().String(), listener: l, hello: make(chan Hello, maxWorkers)}
	server := rpc.NewServer()
	if err := server.Register(&Control{st}); err != nil {
		l.Close()
		return nil, err
	}
	go func() { // until the listener is closed
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go server.ServeConn(conn) // until the worker is gone
		}
	}()
	return st, nil
}

// maxWorkers bounds the processes at one time.
const maxWorkers = 128

// Close ends the origin; there are no workers any more.
func (st *stage) Close() error { return st.listener.Close() }

// fleet is some processes of one strategy.
type fleet struct {
	*stage
	strategy strategy
	workers  []*worker
}

// worker is one of them.
type worker struct {
	*child.Child
	*rpc.Client
}

// start starts n workers. Whoever starts a fleet must stop it.
func (st *stage) start(ctx context.Context, s strategy, n int) (*fleet, error) {
	f := &fleet{stage: st, strategy: s}
	for range n {
		w, err := st.startWorker(ctx, s)
		if err != nil {
			f.stop()
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		f.workers = append(f.workers, w)
	}
	return f, nil
}

func (st *stage) startWorker(ctx context.Context, s strategy) (*worker, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envStrategy+"="+s.name, envControl+"="+st.addr, envRedis+"="+st.redis)
	var said bytes.Buffer // read once the child is gone
	cmd.Stderr = &said
	c, err := child.Start(cmd)
	if err != nil {
		return nil, err
	}
	select {
	case h := <-st.hello: // they are started one after another
		conn, err := net.DialTimeout("tcp", h.Addr, 5*time.Second)
		if err != nil {
			c.Kill()
			return nil, err
		}
		return &worker{c, rpc.NewClient(conn)}, nil
	case <-c.Done():
		return nil, fmt.Errorf("a worker ended at once: %w: %s", c.Err(), said.Bytes())
	case <-time.After(20 * time.Second):
		err = errors.New("a worker does not become ready")
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.Kill()
	return nil, err
}

// stop ends all workers. They have nothing to save.
func (f *fleet) stop() {
	var all sync.WaitGroup
	for _, w := range f.workers {
		all.Go(func() {
			w.Client.Close()
			w.Kill()
		})
	}
	all.Wait()
}

// holder is the worker that asked the origin first.
func (f *fleet) holder(key string) (*worker, error) {
	loads := f.loads(key)
	if len(loads) == 0 {
		return nil, errors.New("nobody holds " + key)
	}
	i := slices.IndexFunc(f.workers, func(w *worker) bool { return w.PID() == loads[0].pid })
	if i < 0 {
		return nil, errors.New("the origin was asked by a stranger")
	}
	return f.workers[i], nil
}

// on calls a method of some workers at once and waits for their replies.
func on[Args, Reply any](ctx context.Context, workers []*worker, method string, args Args) ([]Reply, error) {
	return begin[Args, Reply](workers, method, args).end(ctx)
}

// waiting are the calls that are under way.
type waiting[Reply any] struct {
	replies []*Reply
	calls   []*rpc.Call
}

// begin calls a method of some workers and does not wait.
func begin[Args, Reply any](workers []*worker, method string, args Args) *waiting[Reply] {
	w := &waiting[Reply]{}
	for _, worker := range workers {
		reply := new(Reply)
		w.replies = append(w.replies, reply)
		w.calls = append(w.calls, worker.Go("Worker."+method, args, reply, make(chan *rpc.Call, 1)))
	}
	return w
}

// end waits for the replies.
func (w *waiting[Reply]) end(ctx context.Context) (replies []Reply, err error) {
	for i, call := range w.calls {
		select {
		case <-call.Done:
			if call.Error != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", call.ServiceMethod, call.Error))
			}
		case <-time.After(callTimeout):
			return nil, fmt.Errorf("%s: a worker does not answer", call.ServiceMethod)
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		replies = append(replies, *w.replies[i])
	}
	return replies, err
}

// callTimeout bounds what a worker may take: more than any scenario does.
const callTimeout = 90 * time.Second

// freeze stops a worker for as long as it takes to thaw it.
func (w *worker) freeze() error { return w.Signal(syscall.SIGSTOP) }
func (w *worker) thaw() error   { return w.Signal(syscall.SIGCONT) }
