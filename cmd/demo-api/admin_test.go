package main

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// adminOf is where a process says that its operators look.
func adminOf(t *testing.T, p process) string {
	t.Helper()
	_, rest, found := strings.Cut(p.line, "metrics and readiness on ")
	if !found {
		t.Fatalf("the first line does not say where metrics are: %q", p.line)
	}
	return strings.TrimSuffix(rest, ")")
}

func TestOperatorsOfAnUpstreamsCacheHaveAnAddressOfTheirOwn(t *testing.T) {
	p := behind(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "max-age=60")
		io.WriteString(w, "the upstream's "+r.URL.Path)
	}, "-admin", "127.0.0.1:0")
	admin := adminOf(t, p)
	for _, path := range []string{"/metrics", "/readyz", "/healthz"} {
		if a := call(t, "GET", p.url+path, ""); a.status != 200 || a.body != "the upstream's "+path {
			t.Errorf("%s of the upstream is shadowed: %d %q", path, a.status, a.body)
		}
	}
	if a := call(t, "GET", admin+"/readyz", ""); a.status != 200 || a.body != "ready\n" {
		t.Errorf("readyz: %d %q", a.status, a.body)
	}
	if a := call(t, "GET", admin+"/healthz", ""); a.status != 200 || a.body != "ok\n" {
		t.Errorf("healthz: %d %q", a.status, a.body)
	}
	call(t, "GET", p.url+"/page", "")
	call(t, "GET", p.url+"/page", "")
	a := call(t, "GET", admin+"/metrics", "")
	for _, line := range []string{
		`cacheguard_loads_total{cause="miss",guard="upstream",outcome="value"} 4`,
		`cacheguard_http_answers_total{detail="none",forwarded="none",guard="upstream",result="hit"} 1`,
	} {
		if !strings.Contains(a.body, line) {
			t.Errorf("the metrics do not say %s", line)
		}
	}
	if a := call(t, "GET", admin+"/page", ""); a.status != 404 {
		t.Errorf("the upstream is served to operators: %d %q", a.status, a.body)
	}
}

func TestAnUpstreamsCacheThatDrainsIsNotReadyAndStillServes(t *testing.T) {
	p := behind(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "page") }, "-admin", "127.0.0.1:0", "-drain", "500ms")
	admin := adminOf(t, p)
	if a := call(t, "GET", admin+"/readyz", ""); a.status != 200 {
		t.Fatalf("before: %d %s", a.status, a.body)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- p.stop() }()
	deadline := time.Now().Add(5 * time.Second)
	for call(t, "GET", admin+"/readyz", "").status != http.StatusServiceUnavailable {
		if time.Now().After(deadline) {
			t.Fatal("still ready")
		}
	}
	if a := call(t, "GET", p.url+"/", ""); a.status != 200 || a.body != "page" {
		t.Errorf("while it drains: %d %q", a.status, a.body)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("tcp", strings.TrimPrefix(admin, "http://")); err == nil {
		conn.Close()
		t.Error("the operators' address is served on after the end")
	}
}

func TestAnAddressForOperatorsThatIsTakenIsAnErrorThatSaysWhatToWrite(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	err = run(t.Context(), []string{"-addr", "127.0.0.1:0", "-upstream", "http://127.0.0.1:9", "-admin", taken.Addr().String()}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "use -admin with a free port") {
		t.Errorf("run = %v", err)
	}
}
