//go:build race

package faulttest

// raceDetector: it makes goroutines ten times as dear.
const raceDetector = true
