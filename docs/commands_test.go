package docs_test

import (
	"bytes"
	"maps"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// commands are the programs of the repository, as pages call them.
var commands = []string{"./cmd/demo-api", "./loadtest"}

var helpFlag = regexp.MustCompile(`(?m)^  -([a-z][a-z-]*)`)

// flagsOf are the flags that a command's own help names.
func flagsOf(t *testing.T, command string) map[string]bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "run", command, "-h")
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s -h: %v\n%s", command, err, out)
	}
	flags := map[string]bool{"h": true, "help": true}
	for _, m := range helpFlag.FindAllSubmatch(out, -1) {
		flags[string(m[1])] = true
	}
	if len(flags) < 5 {
		t.Fatalf("%s -h names hardly a flag:\n%s", command, out)
	}
	return flags
}

// called is how a page runs something.
type called struct {
	page, text string
	line       int
}

// calls are the code spans and the lines of code blocks that call something or
// name a flag.
func calls(all []page) (found []called) {
	for _, p := range all {
		for _, s := range p.spans {
			found = append(found, called{p.path, s.text, s.line})
		}
		for _, b := range p.blocks {
			if b.lang == "go" {
				continue
			}
			for n, line := range strings.Split(b.text, "\n") {
				found = append(found, called{p.path, line, b.line + n + 1})
			}
		}
	}
	return found
}

var flagWord = regexp.MustCompile(`^--?([a-z][a-z-]*)(?:=.*)?$`)

// unknownFlags are the flags in words that none of sets has.
func unknownFlags(words []string, sets ...map[string]bool) (unknown []string) {
	for _, w := range words {
		m := flagWord.FindStringSubmatch(strings.Trim(w, "[],()"))
		if m != nil && !slices.ContainsFunc(sets, func(set map[string]bool) bool { return set[m[1]] }) {
			unknown = append(unknown, "-"+m[1])
		}
	}
	return unknown
}

// goFlags are those of the go command that pages tell of.
var goFlags = map[string]bool{"race": true, "bench": true, "run": true, "update": true, "fuzz": true, "count": true}

func TestNoPageNamesAFlagThatNoCommandHas(t *testing.T) {
	all := pages(t)
	sets := map[string]map[string]bool{}
	for _, c := range commands {
		sets[c] = flagsOf(t, c)
	}
	sets["go test"] = goFlags
	checked := 0
	for _, c := range calls(all) {
		text, _, _ := strings.Cut(c.text, " #") // a comment of the shell
		words := strings.Fields(text)
		var unknown []string
		if command := slices.IndexFunc(words, func(w string) bool { return sets[w] != nil }); command >= 0 {
			unknown = unknownFlags(words[command+1:], sets[words[command]])
			checked++
		} else if strings.HasPrefix(text, "-") {
			unknown = unknownFlags(words[:1], slices.Collect(maps.Values(sets))...)
			checked++
		} else if strings.HasPrefix(text, "go test") {
			unknown = unknownFlags(words[2:], goFlags)
			checked++
		}
		for _, f := range unknown {
			t.Errorf("%s:%d: `%s` names %s, which is no flag of it", c.page, c.line, c.text, f)
		}
	}
	if checked < 5 {
		t.Errorf("only %d calls found", checked)
	}
}

func TestEveryMakeTargetThatAPageNamesIsThere(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "make", "help")
	cmd.Dir = root
	help, err := cmd.Output()
	if err != nil {
		t.Skipf("SKIPPED, NOT TESTED: make help: %v", err)
	}
	for _, c := range calls(pages(t)) {
		target, ok := strings.CutPrefix(c.text, "make ")
		if !ok {
			continue
		}
		target, _, _ = strings.Cut(target, " ")
		if !bytes.Contains(help, []byte("make "+target+" ")) {
			t.Errorf("%s:%d: make help does not know %q", c.page, c.line, c.text)
		}
	}
}
