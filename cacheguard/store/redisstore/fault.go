package redisstore

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// ErrClosed is the cause of every fault after Close.
var ErrClosed = errors.New("redisstore: closed")

var (
	errTimeout  = errors.New("no answer within Options.Timeout")
	errTooMany  = errors.New("Options.MaxCalls calls are under way")
	errTooLarge = errors.New("the value is larger than Options.MaxValue")
	errReply    = errors.New("the server's reply makes no sense")
	errUnstaged = errors.New("the staged bytes were gone before their script ran, twice")
)

// fault makes err, which is not nil, the error of a method.
func fault(op string, err error) error {
	var f *store.Fault
	if errors.As(err, &f) {
		return err
	}
	return &store.Fault{Op: op, Class: classify(err), Err: err}
}

// replyClasses sorts the errors that a server answers with by their code.
var replyClasses = map[string]store.Class{
	"OOM":         store.ClassFull,
	"MISCONF":     store.ClassReadOnly,
	"READONLY":    store.ClassReadOnly,
	"NOREPLICAS":  store.ClassReadOnly,
	"LOADING":     store.ClassLoading,
	"MASTERDOWN":  store.ClassLoading,
	"BUSY":        store.ClassTimeout,
	"CLUSTERDOWN": store.ClassCluster,
	"MOVED":       store.ClassCluster,
	"ASK":         store.ClassCluster,
	"TRYAGAIN":    store.ClassCluster,
	"CROSSSLOT":   store.ClassCluster,
	"NOAUTH":      store.ClassDenied,
	"WRONGPASS":   store.ClassDenied,
	"NOPERM":      store.ClassDenied,
	"WRONGTYPE":   store.ClassData,
	"DATA":        store.ClassData, // our scripts' own
}

// classify sorts an error by what an operator does about it.
func classify(err error) store.Class {
	var reply redis.Error
	var network net.Error
	var gone *canceledError
	switch {
	case errors.As(err, &gone):
		return store.ClassCanceled
	case errors.Is(err, errTimeout):
		return store.ClassTimeout
	case errors.Is(err, errTooMany), errors.Is(err, redis.ErrPoolTimeout), errors.Is(err, redis.ErrPoolExhausted):
		return store.ClassPool
	case errors.Is(err, errTooLarge), errors.Is(err, errUnstaged):
		return store.ClassFull
	case errors.Is(err, errReply):
		return store.ClassData
	case errors.Is(err, context.Canceled):
		return store.ClassCanceled
	case errors.Is(err, ErrClosed), errors.Is(err, redis.ErrClosed), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return store.ClassConnection
	case errors.As(err, &reply) && !errors.Is(err, redis.Nil):
		return classifyReply(reply.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return store.ClassTimeout
	case errors.As(err, &network) && network.Timeout():
		return store.ClassTimeout
	case errors.As(err, &network):
		return store.ClassConnection
	case strings.HasPrefix(err.Error(), "redis: can't parse"), strings.HasPrefix(err.Error(), "redis: invalid reply"):
		return store.ClassData
	}
	return store.ClassOther
}

func classifyReply(text string) store.Class {
	if class, ok := replyClasses[replyCode(text)]; ok {
		return class
	}
	lower := strings.ToLower(text)
	switch {
	case strings.Contains(lower, "max number of clients"):
		return store.ClassConnection
	case strings.Contains(lower, "unknown command"), strings.Contains(lower, "operation not permitted"):
		return store.ClassDenied
	case strings.Contains(lower, "the user executing the script can't"), strings.Contains(lower, "no permissions"):
		return store.ClassDenied // Redis 6.2, out of a script
	}
	return store.ClassOther
}

// replyCode is the code that an error reply begins with. Redis 6.2 wraps the
// error of a command inside a script: "ERR Error running script (call to f_..):
// @user_script:12: @user_script: 12: -OOM command not allowed ...".
func replyCode(text string) string {
	if strings.HasPrefix(text, "ERR ") {
		if i := strings.LastIndex(text, ": -"); i >= 0 {
			text = text[i+3:]
		}
	}
	code, _, _ := strings.Cut(text, " ")
	return code
}
