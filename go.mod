module github.com/cacheguard-go/cacheguard

go 1.26.0

require (
	github.com/HdrHistogram/hdrhistogram-go v1.4.0
	go.uber.org/goleak v1.3.0
)

require golang.org/x/sync v0.25.0

require (
	github.com/maypok86/otter/v2 v2.4.0 // indirect
	github.com/sony/gobreaker/v2 v2.4.0 // indirect
)
