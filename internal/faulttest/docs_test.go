package faulttest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// docs/failures.md says of each failure which test shows it and which metric
// does. Both must be there.
func TestThePageOfFailuresNamesTestsAndMetricsThatExist(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs", "failures.md"))
	must(t, err)
	sources := allOf(t, root, "_test.go")
	tests := regexp.MustCompile("Test[A-Z][A-Za-z]+").FindAllString(string(page), -1)
	if len(tests) < 15 {
		t.Fatalf("only %d tests are named", len(tests))
	}
	for _, name := range tests {
		if !strings.Contains(sources, "func "+name+"(") {
			t.Errorf("there is no test %s", name)
		}
	}
	known, err := os.ReadFile(filepath.Join(root, "docs", "observability.md"))
	must(t, err)
	metrics := 0
	for _, row := range strings.Split(string(page), "\n") {
		cells := strings.Split(row, "|")
		if len(cells) != 7 || !strings.Contains(cells[4], "`") {
			continue
		}
		for _, name := range regexp.MustCompile("`([a-z_]+)").FindAllStringSubmatch(cells[4], -1) {
			metrics++
			if !strings.Contains(string(known), "`cacheguard_"+name[1]+"`") {
				t.Errorf("there is no metric cacheguard_%s", name[1])
			}
		}
	}
	if metrics < 15 {
		t.Errorf("only %d metrics are named", metrics)
	}
}

// allOf is the text of all files whose name ends like that.
func allOf(t *testing.T, root, ending string) string {
	t.Helper()
	var all strings.Builder
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ending) {
			return err
		}
		text, err := os.ReadFile(path)
		all.Write(text)
		return err
	}))
	return all.String()
}
