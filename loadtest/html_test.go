package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// requireChromium is the environment variable that turns the skip of a test that
// needs a browser into a failure. Continuous integration sets it to 1.
const requireChromium = "CACHEGUARD_REQUIRE_CHROMIUM"

func chromium(t *testing.T) string {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv(requireChromium) == "1" {
		t.Fatal("no Chromium on PATH")
	}
	t.Skipf("SKIPPED, NOT TESTED: no Chromium on PATH (install it, or set %s=1 to make this a failure)", requireChromium)
	return ""
}

// aPlottedReport is a report whose rounds have loads and faults.
func aPlottedReport() (options, report) {
	opts, rep := aReport()
	opts.scenarios, _ = scenariosNamed("all", opts.replicas)
	opts.modes = allModes
	zero := time.Now()
	for i := range rep.Results {
		r := &rep.Results[i]
		for range r.Rounds {
			r.seen.loads = append(r.seen.loads, []point{{0, 1}, {40, 2}, {100, 1}, {140, 0}})
		}
		if r.Scenario == crash.name {
			t := tally{rounds: []round{{
				changes: []change{{zero, 1}, {zero.Add(250 * time.Millisecond), 2}, {zero.Add(350 * time.Millisecond), -1}},
				fault:   fault{from: zero.Add(50 * time.Millisecond)},
			}}}
			r.seen = t.evidence(r.seen.latency, r.seen.floor)
		}
	}
	rep.Results = append(rep.Results, atARateIn("guard", 3).result(true), atARateIn("none", 100).result(true))
	return opts, rep
}

// atARateIn are requests at a rate of which each tenth takes so many milliseconds.
func atARateIn(mode string, slow int) tally {
	r := round{key: "k", keys: []string{"k"}, steady: &steadied{rate: 500, atOnce: 1, most: 2, limit: 3, line: newTimeline(10 * time.Second)}}
	zero := time.Now()
	for i := range 5000 {
		latency := time.Millisecond
		if i%10 == 0 {
			latency = time.Duration(slow) * time.Millisecond
		}
		r.answers = append(r.answers, answer{latency: latency})
		r.floor = append(r.floor, time.Millisecond)
		r.steady.line.add(time.Duration(i)*2*time.Millisecond, latency, "fresh")
	}
	for s := range 10 {
		r.changes = append(r.changes, change{zero.Add(time.Duration(s) * time.Second), 1}, change{zero.Add(time.Duration(s)*time.Second + 100*time.Millisecond), -1})
	}
	return tally{scenario: atARate, mode: mode, opts: options{replicas: 2, clients: 1, load: 100 * time.Millisecond}, rounds: []round{r}}
}

// aTargetReport is one on a service whose answers say where they come from.
func aTargetReport() (options, targetReport) {
	storms, steady := newTargetResult(), newSteadyResult(10*time.Second)
	steady.Rate = 100
	for i := range 1000 {
		state := []string{"hit", "hit", "hit", "stale", "miss, collapsed"}[i%5]
		storms.add(time.Duration(i)*time.Millisecond, 200, "")
		steady.add(time.Duration(1+i%7)*time.Millisecond, 200, "")
		steady.addAt(time.Duration(i)*10*time.Millisecond, time.Duration(1+i%7)*time.Millisecond, state)
	}
	storms.finish()
	steady.finish()
	opts := options{clients: 50, rounds: 5, rate: 100, span: 10 * time.Second}
	return opts, targetReport{URLs: []string{"http://localhost:8080/products/1"}, Storms: storms, Steady: steady}
}

// probe is what the page is asked in the browser.
type probe struct {
	Errors     []string `json:"errors"`
	Width      int      `json:"width"`      // of the window
	PageWidth  int      `json:"page_width"` // more than that: it scrolls sideways
	Background string   `json:"background"` // of the page
	Rows       int      `json:"rows"`       // of the table
	Requests   int      `json:"requests"`   // for anything but the page
	Plots      []struct {
		Kind     string `json:"kind"`
		Width    int    `json:"width"`
		Painted  int    `json:"painted"`  // pixels that are not clear
		Drawn    int    `json:"drawn"`    // pixels in the colour of a line
		Overflow bool   `json:"overflow"` // it is wider than its place
	} `json:"plots"`
}

// probeScript is put at the end of the page. The listener for errors is in front
// of everything else.
const (
	probeListener = `<script>window.probeErrors = []; addEventListener("error", (e) => probeErrors.push(e.message));
document.addEventListener("securitypolicyviolation", (e) => probeErrors.push("blocked: " + e.violatedDirective));</script>`
	probeScript = `<script>
addEventListener("load", () => setTimeout(() => {
  parent.postMessage(JSON.stringify({
    errors: probeErrors, width: innerWidth, page_width: document.documentElement.scrollWidth,
    background: getComputedStyle(document.body).backgroundColor,
    rows: document.querySelectorAll("#results tbody tr").length,
    requests: performance.getEntriesByType("resource").length,
    plots: [...document.querySelectorAll(".plot")].map((box) => {
      const canvas = box.querySelector("canvas");
      const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      const colors = [...box.querySelectorAll(".u-marker")].map((m) => getComputedStyle(m).borderTopColor.match(/\d+/g).map(Number));
      let painted = 0, drawn = 0;
      for (let i = 0; i < pixels.length; i += 4) {
        painted += pixels[i + 3] > 0;
        drawn += pixels[i + 3] > 200 && colors.some((c) => c.every((v, n) => Math.abs(v - pixels[i + n]) < 12));
      }
      return { kind: box.dataset.kind, width: canvas.clientWidth, painted, drawn, overflow: canvas.clientWidth > box.clientWidth };
    }),
  }), "*");
}, 200));
</script>`
)

// frame shows the page at a width of its own, since a window has a least one,
// and keeps what it tells.
const frame = `<!doctype html><meta name="color-scheme" content="light dark"><body style="margin:0">
<iframe src="probed.html" style="border:0;width:%dpx;height:1600px"></iframe>
<script>addEventListener("message", (e) => {
  const out = document.createElement("pre");
  out.id = "probe";
  out.hidden = true;
  out.textContent = e.data;
  document.body.append(out);
});</script>`

// looks are how a page is looked at: at the width of a desk and of a phone, in
// light and dark.
var looks = []struct {
	name string
	wide int
	dark bool
}{
	{"desk", 1280, false},
	{"phone", 390, false},
	{"dark desk", 1280, true},
	{"dark phone", 390, true},
}

// TestThePagesInABrowser opens the reports in a real browser: it looks at what is
// there, and at a picture of it.
func TestThePagesInABrowser(t *testing.T) {
	browser := chromium(t)
	opts, rep := aPlottedReport()
	targetOpts, targetRep := aTargetReport()
	for _, page := range []struct {
		name  string
		data  pageData
		rows  int
		plots string
	}{
		{"a fleet", newPage(opts, rep, time.Now()), 6, "latency loads latency loads latency loads recovery tail slowest loads"}, // cold, invalidate, crash and steady
		{"a target", newTargetPage(targetOpts, targetRep, time.Now()), 2, "latency tail slowest states"},
	} {
		dir := t.TempDir()
		probed(t, dir, page.data)
		for _, look := range looks {
			t.Run(page.name+", "+look.name, func(t *testing.T) {
				framed := filepath.Join(dir, look.name+".html")
				if err := os.WriteFile(framed, fmt.Appendf(nil, frame, look.wide), 0o600); err != nil {
					t.Fatal(err)
				}
				show := func(args ...string) []byte {
					args = append([]string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=1",
						"--user-data-dir=" + t.TempDir(), fmt.Sprintf("--window-size=%d,1600", max(500, look.wide)), "--virtual-time-budget=5000"}, args...)
					if look.dark {
						args = append(args, "--blink-settings=preferredColorScheme=0")
					}
					cmd := exec.CommandContext(t.Context(), browser, append(args, "file://"+framed)...)
					var stderr bytes.Buffer
					cmd.Stderr = &stderr
					out, err := cmd.Output()
					if err != nil {
						t.Fatalf("%v: %s", err, &stderr)
					}
					return out
				}
				check(t, readProbe(t, show("--dump-dom")), look.wide, look.dark, page.rows, page.plots)

				picture := filepath.Join(dir, look.name+".png")
				show("--screenshot=" + picture)
				checkPicture(t, picture, look.dark)
			})
		}
	}
}

// probed writes a page that tells what is on it.
func probed(t *testing.T, dir string, d pageData) {
	t.Helper()
	file := filepath.Join(dir, "report.html")
	if err := writePage(file, d); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page = bytes.Replace(page, []byte("<head>"), []byte("<head>"+probeListener), 1)
	page = slices.Concat(bytes.TrimSuffix(bytes.TrimSpace(page), []byte("</body>\n</html>")), []byte(probeScript+"</body></html>"))
	if err := os.WriteFile(filepath.Join(dir, "probed.html"), page, 0o600); err != nil {
		t.Fatal(err)
	}
}

func readProbe(t *testing.T, dom []byte) (p probe) {
	t.Helper()
	_, rest, found := bytes.Cut(dom, []byte(`<pre id="probe" hidden="">`))
	text, _, ended := bytes.Cut(rest, []byte("</pre>"))
	if !found || !ended {
		t.Fatalf("the page was not probed:\n%.2000s", dom)
	}
	if err := json.Unmarshal([]byte(html.UnescapeString(string(text))), &p); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return p
}

func check(t *testing.T, p probe, width int, dark bool, rows int, plots string) {
	t.Helper()
	if len(p.Errors) > 0 || p.Requests > 0 {
		t.Errorf("errors %q, %d requests; want none of either", p.Errors, p.Requests)
	}
	if p.Width != width || p.PageWidth > p.Width {
		t.Errorf("the page is %d wide in a window of %d, want at most %d", p.PageWidth, p.Width, width)
	}
	if want := map[bool]string{false: "rgb(255, 255, 255)", true: "rgb(20, 23, 26)"}[dark]; p.Background != want {
		t.Errorf("the background is %s, want %s", p.Background, want)
	}
	if p.Rows != rows {
		t.Errorf("%d rows in the table, want %d", p.Rows, rows)
	}
	var kinds []string
	for _, plot := range p.Plots {
		kinds = append(kinds, plot.Kind)
		if plot.Painted < 1000 || plot.Drawn < 20 || plot.Width < 200 || plot.Overflow {
			t.Errorf("a plot is not drawn, or not in its place: %+v", plot)
		}
	}
	if strings.Join(kinds, " ") != plots {
		t.Errorf("plots %q, want %q", kinds, plots)
	}
}

// checkPicture looks whether a screenshot shows something, on the right ground.
func checkPicture(t *testing.T, file string, dark bool) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := png.Decode(f)
	if err != nil {
		t.Fatal(err)
	}
	bright, ink, n := 0, 0, 0
	size := img.Bounds()
	for y := size.Min.Y; y < size.Max.Y; y += 2 {
		for x := size.Min.X; x < size.Max.X; x += 2 {
			r, g, b, _ := img.At(x, y).RGBA()
			level := (r + g + b) / 3 >> 8
			n++
			if level > 200 {
				bright++
			} else if level > 60 {
				ink++
			}
		}
	}
	if share := float64(bright) / float64(n); dark == (share > 0.5) {
		t.Errorf("%.0f %% of the picture is bright (dark: %v)", 100*share, dark)
	}
	if ink < n/500 {
		t.Errorf("%d of %d pixels are neither ground nor bright: nothing is drawn", ink, n)
	}
}

func TestThePageNeedsNothingElse(t *testing.T) {
	opts, rep := aPlottedReport()
	file := filepath.Join(t.TempDir(), "r.html")
	if err := writePage(file, newPage(opts, rep, time.Now())); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	page := string(data)
	for _, want := range []string{"default-src 'none'", "1 of 12 promises were BROKEN", "MIT License", `"kind":"recovery"`, "<span>-scenario all</span>"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	for _, bad := range []string{" src=", "<link", "@import", "url(", "ZgotmplZ"} {
		if strings.Contains(page, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

func TestARedisOfTheUserIsNotInTheReport(t *testing.T) {
	opts, rep := aPlottedReport()
	opts.redis = "redis://user:secret@host"
	file := filepath.Join(t.TempDir(), "r.html")
	if err := writePage(file, newPage(opts, rep, time.Now())); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(file); err != nil || bytes.Contains(data, []byte("secret")) {
		t.Errorf("the page tells the password, or cannot be read (%v)", err)
	}
}

func TestAReportThatCannotBeWrittenIsAnErrorBeforeTheRun(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "no", "r.html")
	err := run(t.Context(), []string{"-html", missing}, &bytes.Buffer{}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "-html") || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("err = %v, want one that names -html", err)
	}
}

func TestLoadsOverTimeAreTheMeanOfTheRounds(t *testing.T) {
	zero := time.Now()
	at := func(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }
	tally := tally{rounds: []round{
		{changes: []change{{at(0), 1}, {at(100), -1}}},
		{changes: []change{{at(1000), 1}, {at(1010), 1}, {at(1100), -1}, {at(1100), -1}}},
	}}
	e := tally.evidence(newLatencies(), newLatencies())
	for _, c := range []struct{ at, want float64 }{{-1, 0}, {5, 1}, {50, 1.5}, {101, 0}} {
		if got := *meanOf(e.loads, []float64{c.at})[0]; got != c.want {
			t.Errorf("at %v ms: %v loads, want %v", c.at, got, c.want)
		}
	}
}

func TestLatenciesAddUpToAllCallers(t *testing.T) {
	l := newLatencies()
	for _, d := range []int{10, 20, 20, 400} {
		l.add(time.Duration(d) * time.Millisecond)
	}
	got := l.answeredWithin([]float64{9, 11, 21, 300, 500})
	for i, want := range []float64{0, 25, 75, 75, 100} {
		if *got[i] != want {
			t.Errorf("%d: %v %%, want %v", i, *got[i], want)
		}
	}
}

func TestTheLegendHasAnEntryForEachLineThatIsNotSetIn(t *testing.T) {
	facts := legendFacts(legend)
	if len(facts) < 5 {
		t.Fatalf("%d entries", len(facts))
	}
	for _, f := range facts {
		if f.Name == "" || len(f.Name) > 15 || f.Text == "" || strings.Contains(f.Text, "\n") {
			t.Errorf("entry %q: %q", f.Name, f.Text)
		}
	}
}
