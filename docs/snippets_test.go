package docs_test

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// goLines are the lines of every Go file of the repository that its tests
// compile, without their indentation, each file one text.
func goLines(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") {
			return nil
		}
		data, err := os.ReadFile(path)
		files = append(files, "\n"+unindent(string(data)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// unindent takes the white space off both ends of each line, and empty lines
// away.
func unindent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			b.WriteString(line + "\n")
		}
	}
	return b.String()
}

// TestEverySnippetIsCompiled: a Go snippet is lines of a file that is compiled.
// Where it leaves something out, it has a line "// ...", and each part is found
// by itself, in the same file. A whole program is built as it stands.
func TestEverySnippetIsCompiled(t *testing.T) {
	files := goLines(t)
	found := 0
	for _, p := range pages(t) {
		for _, b := range p.blocks {
			if b.lang != "go" {
				continue
			}
			found++
			if strings.HasPrefix(b.text, "package main") {
				buildProgram(t, p.path, b)
			} else if !compiled(files, b.text) {
				t.Errorf("%s:%d: this snippet is in no Go file of the repository, so nobody compiles it:\n%s", p.path, b.line, b.text)
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d snippets found", found)
	}
}

func compiled(files []string, snippet string) bool {
	parts := strings.Split(unindent(snippet), "// ...\n")
next:
	for _, f := range files {
		for _, part := range parts {
			if !strings.Contains(f, "\n"+part) {
				continue next
			}
		}
		return true
	}
	return false
}

func TestASnippetThatNobodyCompilesIsNoticed(t *testing.T) {
	files := []string{"\n" + unindent("func f() {\n\tx := 1\n\n\ty := 2\n}\n")}
	for snippet, ok := range map[string]bool{
		"x := 1\ny := 2\n": true, "x := 1\n\n  y := 2\n": true, "x := 1\n// ...\n}\n": true, "y := 2\nx := 1\n": false, " := 1\n": false,
	} {
		if compiled(files, snippet) != ok {
			t.Errorf("%q: %t, want %t", snippet, !ok, ok)
		}
	}
}

// buildProgram builds and vets a program of a page within this module, and runs
// it: it must end by itself, and well.
func buildProgram(t *testing.T, page string, b block) {
	t.Helper()
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
	if err := os.WriteFile(source, []byte(b.text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"go", "vet", source}, {"go", "build", "-o", program, source}, {program}} {
		cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s:%d: %s: %v\n%s", page, b.line, args[0], err, out)
			return
		} else if args[0] == program && len(out) == 0 {
			t.Errorf("%s:%d: the program says nothing", page, b.line)
		}
	}
}
