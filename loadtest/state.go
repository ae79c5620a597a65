package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"

	"github.com/dunglas/httpsfv"
)

// stateOf is what an answer says of the cache that it came from: its Cache-Status
// (RFC 9211), else the header of demo-api or the X-Cache of others; where it
// says nothing, and where it is an error, its status.
func stateOf(status int, h http.Header) string {
	switch {
	case status == 0:
		return "no answer"
	case status >= http.StatusBadRequest:
		return fmt.Sprint("status ", status)
	}
	if state, ok := cacheStatus(h.Values("Cache-Status")); ok {
		return state
	}
	for _, name := range []string{"X-Cacheguard-State", "X-Cache"} {
		word, _, _ := strings.Cut(strings.TrimSpace(h.Get(name)), " ")
		if word = strings.ToLower(word); plainWord.MatchString(word) {
			return word
		}
	}
	return fmt.Sprint("status ", status)
}

// plainWord is what may stand in a report. The answers are somebody's.
var plainWord = regexp.MustCompile(`^[a-z_-]{1,20}$`)

// cacheStatus is what the cache next to the caller did: hit, or why it asked on,
// and whether it asked together with others.
func cacheStatus(fields []string) (state string, ok bool) {
	list, err := httpsfv.UnmarshalList(fields)
	if err != nil || len(list) == 0 {
		return "", false
	}
	nearest, ok := list[len(list)-1].(httpsfv.Item)
	if !ok {
		return "", false
	}
	if hit, _ := nearest.Params.Get("hit"); hit == true {
		return "hit", true
	}
	why, _ := nearest.Params.Get("fwd")
	state = fmt.Sprint(why)
	if !plainWord.MatchString(state) {
		return "", false
	}
	if collapsed, _ := nearest.Params.Get("collapsed"); collapsed == true {
		state += ", collapsed"
	}
	return state, true
}
