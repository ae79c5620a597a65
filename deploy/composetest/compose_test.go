// Package composetest reads deploy/docker-compose.yml as docker compose does.
// It is a module of its own, so that nobody who uses the library has a reader of
// such files among their dependencies.
package composetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/compose-spec/compose-go/v2/types"
)

const root = "../.."

// project is the file, checked against the schema of the Compose Specification
// and for consistency.
func project(t *testing.T) *types.Project {
	t.Helper()
	opts, err := cli.NewProjectOptions([]string{filepath.Join(root, "deploy/docker-compose.yml")}, cli.WithConsistency(true), cli.WithResolvedPaths(true))
	if err != nil {
		t.Fatal(err)
	}
	p, err := opts.LoadProject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestTheFleetIsValidAndWhole(t *testing.T) {
	p := project(t)
	for _, name := range []string{"demo-1", "demo-2", "demo-3", "redis", "postgres", "prometheus", "grafana"} {
		if _, err := p.GetService(name); err != nil {
			t.Error(err)
		}
	}
}

func TestNothingIsPublishedBeyondThisMachine(t *testing.T) {
	published := map[string]string{}
	for name, s := range project(t).Services {
		for _, port := range s.Ports {
			if port.HostIP != "127.0.0.1" {
				t.Errorf("%s publishes %s on %q", name, port.Published, port.HostIP)
			}
			if other := published[port.Published]; other != "" {
				t.Errorf("%s and %s publish %s", name, other, port.Published)
			}
			published[port.Published] = name
		}
	}
	if len(published) != 5 {
		t.Errorf("published: %v", published)
	}
}

func TestEveryFileThatIsMountedIsThere(t *testing.T) {
	mounted := 0
	for name, s := range project(t).Services {
		for _, v := range s.Volumes {
			mounted++
			if _, err := os.Stat(v.Source); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if s.Build == nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if mounted == 0 {
		t.Error("nothing is mounted")
	}
	config, err := os.ReadFile(filepath.Join(root, "deploy/prometheus/compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, rules := range regexp.MustCompile(`(?m)^  - (\S+\.yml)$`).FindAllSubmatch(config, -1) {
		if _, err := os.Stat(filepath.Join(root, "deploy/prometheus", string(rules[1]))); err != nil {
			t.Error(err)
		}
	}
}

// TestTheFleetIsStartedWithFlagsThatExist lets demo-api itself judge: with these
// flags it gets as far as to look for its database.
func TestTheFleetIsStartedWithFlagsThatExist(t *testing.T) {
	s, err := project(t).GetService("demo-1")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"run", "./cmd/demo-api"}
	for _, a := range s.Command {
		args = append(args, strings.NewReplacer("redis:6379", "127.0.0.1:1", "postgres:5432", "127.0.0.1:1").Replace(a))
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "answers at 127.0.0.1:1") {
		t.Errorf("%s: %v\n%s", args, err, out)
	}
}
