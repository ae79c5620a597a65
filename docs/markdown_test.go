package docs_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// page is a Markdown file, taken apart as far as the tests here need it.
type page struct {
	path    string // from the root of the repository, with slashes
	dir     string // of the file
	blocks  []block
	spans   []span // code within a line
	links   []span // their targets
	anchors map[string]bool
}

// block is a fenced code block.
type block struct {
	line int
	lang string
	text string
}

// span is a piece of a line.
type span struct {
	line int
	text string
}

const root = ".."

// pages are all Markdown files of the repository.
func pages(t *testing.T) (all []page) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules":
			return filepath.SkipDir
		case !d.IsDir() && strings.HasSuffix(path, ".md"):
			all = append(all, readPage(t, path))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Fatalf("only %d pages found: nothing would be checked", len(all))
	}
	return all
}

func readPage(t *testing.T, path string) page {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		t.Fatal(err)
	}
	return parse(filepath.ToSlash(rel), string(data))
}

var (
	codeSpan = regexp.MustCompile("`([^`]+)`")
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`^#{1,6} +(.*)$`)
	named    = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
)

func parse(path, text string) page {
	p := page{path: path, dir: filepath.Dir(path), anchors: map[string]bool{}}
	var open *block
	for n, line := range strings.Split(text, "\n") {
		lang, fence := strings.CutPrefix(strings.TrimSpace(line), "```")
		switch {
		case fence && open == nil:
			open = &block{line: n + 1, lang: lang}
		case fence:
			p.blocks = append(p.blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		default:
			p.proseLine(n+1, line)
		}
	}
	return p
}

func (p *page) proseLine(n int, line string) {
	if h := heading.FindStringSubmatch(line); h != nil {
		p.addAnchor(slug(h[1]))
	}
	for _, a := range named.FindAllStringSubmatch(line, -1) {
		p.anchors[a[1]] = true
	}
	for _, c := range codeSpan.FindAllStringSubmatch(line, -1) {
		p.spans = append(p.spans, span{n, c[1]})
	}
	for _, l := range link.FindAllStringSubmatch(line, -1) {
		p.links = append(p.links, span{n, l[1]})
	}
}

// addAnchor numbers a heading that is there already, as GitHub does.
func (p *page) addAnchor(s string) {
	if !p.anchors[s] {
		p.anchors[s] = true
		return
	}
	for n := 1; ; n++ {
		if numbered := s + "-" + string(rune('0'+n)); !p.anchors[numbered] || n == 9 {
			p.anchors[numbered] = true
			return
		}
	}
}

var notInSlug = regexp.MustCompile(`[^\p{L}\p{N}_\- ]`)

// slug is the anchor that GitHub gives to a heading.
func slug(heading string) string {
	heading = link.ReplaceAllString(heading, "]")
	return strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

func TestPagesAreTakenApart(t *testing.T) {
	p := parse("docs/x.md", "# A `b` c?\n\nSee [this](y.md#z) and `-f`.\n```go\nx := 1\n```\n## A b c\n")
	if !p.anchors["a-b-c"] || !p.anchors["a-b-c-1"] {
		t.Errorf("anchors %v", p.anchors)
	}
	if len(p.links) != 1 || p.links[0].text != "y.md#z" || len(p.spans) != 2 || p.spans[1].text != "-f" {
		t.Errorf("links %v, spans %v", p.links, p.spans)
	}
	if len(p.blocks) != 1 || p.blocks[0].lang != "go" || p.blocks[0].text != "x := 1\n" {
		t.Errorf("blocks %v", p.blocks)
	}
}
