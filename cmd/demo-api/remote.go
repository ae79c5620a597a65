package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// remoteOrigin is a catalogue behind HTTP, one for a whole fleet (-origin).
type remoteOrigin struct {
	base   string // without a slash at the end
	client *http.Client

	// fences keep this process's own late changes of stock away from the origin,
	// which may not compare tokens. A fence ought to be where the data is: those
	// of other processes are stopped by their own fences alone.
	fences fences
}

// newRemoteOrigin keeps as many connections open as may be in use, so that a
// load does not pay for dialing.
func newRemoteOrigin(base string, connections int) *remoteOrigin {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	transport.MaxIdleConns = connections
	transport.MaxIdleConnsPerHost = connections
	return &remoteOrigin{base: strings.TrimRight(base, "/"), client: &http.Client{Transport: transport, Timeout: loadLimit}}
}

func (o *remoteOrigin) Load(ctx context.Context, id string) (p product, err error) {
	err = o.ask(ctx, http.MethodGet, "/products/"+url.PathEscape(id), nil, &p)
	if err == nil && p.ID != id {
		err = errors.New("the origin sent another product than it was asked for")
	}
	return p, err
}

func (o *remoteOrigin) List(ctx context.Context) (list []product, err error) {
	err = o.ask(ctx, http.MethodGet, "/products", nil, &list)
	return list, err
}

func (o *remoteOrigin) Write(ctx context.Context, p product) (written product, err error) {
	body, err := json.Marshal(map[string]any{"name": p.Name, "price": p.Price})
	if err != nil {
		return product{}, err
	}
	err = o.ask(ctx, http.MethodPut, "/products/"+url.PathEscape(p.ID), body, &written)
	return written, err
}

func (o *remoteOrigin) SetStock(ctx context.Context, token store.Token, id string, stock int64) (written product, err error) {
	body, err := json.Marshal(map[string]int64{"stock": stock, "token": int64(token)})
	if err != nil {
		return product{}, err
	}
	err = o.fences.admit(token, id, func() error {
		return o.ask(ctx, http.MethodPatch, "/products/"+url.PathEscape(id), body, &written)
	})
	if errors.Is(err, errConflict) {
		err = &fencedError{Token: token} // the origin does compare tokens
	}
	return written, err
}

// errConflict is an answer 409.
var errConflict = errors.New("the origin answered 409 Conflict")

// ask sends one request and decodes its answer into v.
func (o *remoteOrigin) ask(ctx context.Context, method, path string, body []byte, v any) error {
	req, err := http.NewRequestWithContext(ctx, method, o.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := o.client.Do(req)
	if err != nil {
		var asked *url.Error
		if errors.As(err, &asked) {
			err = asked.Err // without the URL: the product's id is not for logs
		}
		return fmt.Errorf("asking the origin: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxOriginAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("reading the origin's answer: %w", err)
	case resp.StatusCode == http.StatusNotFound:
		return cacheguard.ErrNotFound
	case resp.StatusCode == http.StatusConflict:
		return errConflict
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("the origin answered %s", resp.Status)
	case len(data) > maxOriginAnswer:
		return fmt.Errorf("the origin's answer is longer than %d bytes", maxOriginAnswer)
	}
	return json.Unmarshal(data, v)
}

// maxOriginAnswer bounds what is read of an answer of the origin.
const maxOriginAnswer = 1 << 20
