package middleware

import (
	"net/http"
	"strings"
	"time"
)

// baseAge is the part of a response's age that was there when it came
// (RFC 9111 4.2.3), such that
//
//	current_age = baseAge + time since the request was sent
//
// which is how the guard counts. delay is how long the handler took, now is
// when it answered. With corrected_initial_age = max(apparent_age, age_value +
// response_delay), the base is that minus response_delay.
func baseAge(h http.Header, delay time.Duration, now time.Time) time.Duration {
	base := receivedAge(h["Age"])
	if s, ok := single(h["Date"]); ok {
		if date, ok := parseDate(s, now); ok {
			base = max(base, now.Sub(date)-delay)
		}
	}
	return max(base, 0)
}

// receivedAge reads an Age field. Of several members the largest counts, and
// junk counts as none: neither can make a response look younger than it says.
func receivedAge(lines []string) time.Duration {
	var age int64
	for _, line := range lines {
		for part := range strings.SplitSeq(line, ",") {
			if n, ok := deltaSeconds(trimOWS(part)); ok {
				age = max(age, n)
			}
		}
	}
	return time.Duration(age) * time.Second
}

// ageSeconds is an age as the Age field gives it: whole seconds, never
// negative.
func ageSeconds(age time.Duration) int64 { return int64(max(age, 0) / time.Second) }
