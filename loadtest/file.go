package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// writeWhole writes a file that is there as a whole or not at all. A device or a
// pipe is written to as it is.
func writeWhole(file string, data []byte) (err error) {
	if !isRegular(file) {
		return writeInto(file, data)
	}
	f, err := os.CreateTemp(filepath.Dir(file), tempName)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

const tempName = ".loadtest-*"

// isRegular tells whether a file is one, or would be.
func isRegular(file string) bool {
	info, err := os.Stat(file)
	return err != nil || info.Mode().IsRegular()
}

func writeInto(file string, data []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// mayWrite says now that a file cannot be written, rather than after a run.
func mayWrite(file string) error {
	info, err := os.Stat(file)
	switch {
	case err == nil && info.IsDir():
		return fmt.Errorf("%s is a folder; use a file's name", file)
	case err == nil && !info.Mode().IsRegular():
		return nil // it will show
	}
	f, err := os.CreateTemp(filepath.Dir(file), tempName)
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}
