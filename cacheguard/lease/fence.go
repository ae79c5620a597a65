package lease

import (
	"fmt"
	"sync"

	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// Fence is the resource's side of a fencing token, for a resource that lives in
// this process: it lets nobody write with a token below the highest it has let
// in. The zero value admits any token.
//
// A fence must be as durable as what it guards. For rows and files keep the
// token beside the data and compare it in the same transaction:
//
//	UPDATE stock SET n = $3, last_token = $2 WHERE id = $1 AND last_token < $2
type Fence struct {
	mu   sync.Mutex
	last store.Token // highest admitted; protected by mu
}

// Admit runs write unless a higher token than t was admitted before; then the
// error is a [store.ErrFenced]. A holder may write several times with its token.
// Writes run one at a time, so that none that was admitted can be overtaken by
// one with a higher token; write must not call the Fence.
func (f *Fence) Admit(t store.Token, write func() error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t < f.last || t <= 0 {
		return fmt.Errorf("%w: token %d came after %d", store.ErrFenced, t, f.last)
	}
	f.last = t
	return write()
}
