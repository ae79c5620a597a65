module github.com/cacheguard-go/cacheguard

go 1.26
