package middleware

import "strings"

// maxRanges bounds the ranges that one request is given.
const maxRanges = 16

// rangeUsable tells whether a Range field is one that this cache understands:
// well-formed byte ranges, not too many. Any other is ignored, and the whole
// answer sent (RFC 9110 14.2).
func rangeUsable(lines []string) bool {
	if len(lines) != 1 {
		return false
	}
	unit, set, ok := strings.Cut(lines[0], "=")
	if !ok || !strings.EqualFold(trimOWS(unit), "bytes") {
		return false
	}
	specs := strings.Split(set, ",")
	if len(specs) > maxRanges {
		return false
	}
	for _, spec := range specs {
		first, last, ok := strings.Cut(trimOWS(spec), "-")
		if !ok || (first == "" && last == "") || !digits(first) || !digits(last) {
			return false
		}
		if first != "" && last != "" && above(first, last) {
			return false
		}
	}
	return true
}

// digits tells whether s is a number that fits 63 bits, or empty.
func digits(s string) bool {
	return len(s) <= 18 && strings.Trim(s, "0123456789") == ""
}

// above compares two numbers by their digits.
func above(a, b string) bool {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	if len(a) != len(b) {
		return len(a) > len(b)
	}
	return a > b
}
