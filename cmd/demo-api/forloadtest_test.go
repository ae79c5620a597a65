package main

import (
	"os"
	"testing"
	"time"
)

// Whoever started the process is gone when its end of the pipe is.
func TestAProcessOfTheLoadTestEndsWithItsInput(t *testing.T) {
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer read.Close()
	ctx, stop := whileFed(t.Context(), read)
	defer stop()
	if err := ctx.Err(); err != nil {
		t.Fatalf("it has ended with its input open: %v", err)
	}
	write.Close()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Error("it goes on without an input")
	}
}

func TestAnInputThatIsNoPipeEndsNothing(t *testing.T) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	ctx, stop := whileFed(t.Context(), null)
	defer stop()
	select {
	case <-ctx.Done():
		t.Error("a service whose input is empty has ended")
	case <-time.After(50 * time.Millisecond):
	}
}
