package middleware

import (
	"io"
	"log"
	"strings"
)

var discardLog = log.New(io.Discard, "", 0)

// hasStatus tells whether our member of an answer's Cache-Status has a part.
func hasStatus(a answer, part string) bool {
	lines := a.header["Cache-Status"]
	return len(lines) > 0 && strings.Contains(lines[len(lines)-1]+";", part)
}
