//go:build !race

package faulttest

// raceDetector: see race_test.go.
const raceDetector = false
