package redisstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

func TestFaultsAreSortedByWhatAnOperatorDoes(t *testing.T) {
	for text, want := range map[string]store.Class{
		"OOM command not allowed when used memory > 'maxmemory'. script: x, on @user_script:1.":                                                  store.ClassFull,
		"ERR Error running script (call to f_1): @user_script:12: @user_script: 12: -OOM command not allowed when used memory > 'maxmemory'.":    store.ClassFull,
		"READONLY You can't write against a read only replica.":                                                                                  store.ClassReadOnly,
		"ERR Error running script (call to f_1): @user_script:12: -READONLY You can't write against a read only replica.":                        store.ClassReadOnly,
		"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.":                                       store.ClassReadOnly,
		"LOADING Redis is loading the dataset in memory":                                                                                         store.ClassLoading,
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                                                       store.ClassLoading,
		"CLUSTERDOWN Hash slot not served":                                                                                                       store.ClassCluster,
		"MOVED 866 127.0.0.1:7001":                                                                                                               store.ClassCluster,
		"CROSSSLOT Keys in request don't hash to the same slot":                                                                                  store.ClassCluster,
		"NOAUTH Authentication required.":                                                                                                        store.ClassDenied,
		"WRONGPASS invalid username-password pair or user is disabled.":                                                                          store.ClassDenied,
		"NOPERM User x has no permissions to run the 'evalsha' command":                                                                          store.ClassDenied,
		"ERR unknown command 'evalsha', with args beginning with: ":                                                                              store.ClassDenied,
		"ERR Error running script (call to f_1): @user_script:1: The user executing the script can't run this command or subcommand script: f_1": store.ClassDenied,
		"WRONGTYPE Operation against a key holding the wrong kind of value":                                                                      store.ClassData,
		"DATA the lease record is not one: wrong type":                                                                                           store.ClassData,
		"ERR max number of clients reached":                                                                                                      store.ClassConnection,
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":                                                 store.ClassTimeout,
		"ERR something else": store.ClassOther,
	} {
		if got := classify(&serverError{text}); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	dial := &net.OpError{Op: "dial", Net: "tcp", Err: &net.AddrError{Err: "x"}}
	for _, c := range []struct {
		err  error
		want store.Class
	}{
		{errTimeout, store.ClassTimeout},
		{context.DeadlineExceeded, store.ClassTimeout},
		{&canceledError{context.DeadlineExceeded}, store.ClassCanceled},
		{&canceledError{context.Canceled}, store.ClassCanceled},
		{errTooMany, store.ClassPool},
		{redis.ErrPoolTimeout, store.ClassPool},
		{fmt.Errorf("wrapped: %w", redis.ErrPoolExhausted), store.ClassPool},
		{errTooLarge, store.ClassFull},
		{errReply, store.ClassData},
		{io.EOF, store.ClassConnection},
		{redis.ErrClosed, store.ClassConnection},
		{ErrClosed, store.ClassConnection},
		{dial, store.ClassConnection},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, store.ClassConnection},
		{&net.OpError{Op: "read", Err: context.DeadlineExceeded}, store.ClassTimeout},
		{errors.New("anything"), store.ClassOther},
		{redis.Nil, store.ClassOther}, // where it is no miss, it is a mistake
	} {
		if got := store.ClassOf(fault("load", c.err)); got != c.want {
			t.Errorf("%v: %s, want %s", c.err, got, c.want)
		}
	}
}

func TestOnlyALostReplyIsAskedForAgain(t *testing.T) {
	for _, tt := range []struct {
		err  error
		lost bool
	}{
		{nil, false},
		{redis.Nil, false},
		{&serverError{"LOADING Redis is loading the dataset in memory"}, false},
		{io.EOF, true},
		{io.ErrUnexpectedEOF, true},
		{&net.OpError{Op: "read", Err: syscall.ECONNRESET}, true},
		{&net.OpError{Op: "write", Err: syscall.EPIPE}, true},
		{&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, false},
		{fmt.Errorf("failed to dial after 5 attempts: %w", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}), false},
		{redis.ErrClosed, false},
		{context.DeadlineExceeded, false},
		{errTimeout, false},
	} {
		if got := lostReply(tt.err); got != tt.lost {
			t.Errorf("lostReply(%v) = %v", tt.err, got)
		}
	}
}
