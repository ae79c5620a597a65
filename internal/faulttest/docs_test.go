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
	wantTests(t, sources, string(page), 15)
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

// docs/cases.md says of each fault that others met which test would fail if it
// were here.
func TestThePageOfCasesNamesTestsThatExist(t *testing.T) {
	const root = "../.."
	page, err := os.ReadFile(filepath.Join(root, "docs", "cases.md"))
	must(t, err)
	wantTests(t, allOf(t, root, "_test.go"), string(page), 60)
	seen := make(map[string]bool)
	for _, row := range strings.Split(string(page), "\n") {
		cells := strings.Split(row, "|")
		if len(cells) != 5 {
			continue
		}
		for _, number := range regexp.MustCompile("C[0-9]{3}").FindAllString(cells[1], -1) {
			if seen[number] {
				t.Errorf("%s is there twice", number)
			}
			seen[number] = true
			if len(strings.TrimSpace(cells[2])) < 20 || len(strings.TrimSpace(cells[3])) < 10 {
				t.Errorf("%s does not say what happened and what shows that it does not", number)
			}
		}
	}
}

// wantTests checks that each test or fuzz target that a page names is there, and
// that it names so many at least.
func wantTests(t *testing.T, sources, page string, least int) {
	t.Helper()
	names := regexp.MustCompile("`((Test|Fuzz)[A-Z][A-Za-z]+)").FindAllStringSubmatch(page, -1)
	if len(names) < least {
		t.Errorf("only %d tests are named", len(names))
	}
	for _, name := range names {
		if !strings.Contains(sources, "func "+name[1]+"(") {
			t.Errorf("there is no test %s", name[1])
		}
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
