package docs_test

import (
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

func TestNoLinkIsDead(t *testing.T) {
	all := pages(t)
	byPath := make(map[string]page, len(all))
	for _, p := range all {
		byPath[p.path] = p
	}
	seen := 0
	for _, p := range all {
		for _, l := range p.links {
			seen++
			if why := dead(byPath, p, l.text); why != "" {
				t.Errorf("%s:%d: %s: %s", p.path, l.line, l.text, why)
			}
		}
	}
	if seen < 20 {
		t.Errorf("only %d links found", seen)
	}
}

// dead tells why a link of a page leads nowhere, or "". What is elsewhere on
// the net is not asked for.
func dead(all map[string]page, from page, target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return err.Error()
	}
	if u.Scheme != "" {
		if u.Scheme != "https" || u.Host == "" {
			return "it is neither a file of the repository nor https://"
		}
		return ""
	}
	file := from.path
	if u.Path != "" {
		file = path.Join(filepath.ToSlash(from.dir), u.Path)
	}
	p, isPage := all[file]
	switch {
	case !isPage && !there(file):
		return "there is no such file"
	case u.Fragment == "":
		return ""
	case !isPage:
		return "only pages have anchors"
	case !p.anchors[u.Fragment]:
		return "the page has no such heading"
	}
	return ""
}

// there tells whether the repository has a file or folder of that path.
func there(file string) bool {
	_, err := os.Stat(filepath.Join(root, filepath.FromSlash(file)))
	return err == nil && !strings.HasPrefix(file, "..")
}

func TestADeadLinkIsNoticed(t *testing.T) {
	from := parse("docs/x.md", "# Here\n")
	all := map[string]page{"docs/x.md": from, "README.md": parse("README.md", "# Title\n")}
	for target, ok := range map[string]bool{
		"#here": true, "#there": false, "../README.md": true, "nothing.md": false,
		"../README.md#title": true, "../README.md#nothing": false, "docs_test.go#L1": false, "http://example.org": false, "https://example.org/x": true, "../../x": false,
	} {
		if why := dead(all, from, target); (why == "") != ok {
			t.Errorf("%s: %q", target, why)
		}
	}
}
