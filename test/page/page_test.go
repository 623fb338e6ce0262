//go:build browser

package page

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"
)

var pictures = flag.String("pictures", "", "the directory in which to keep pictures of the page")

// TestThePageShowsTheDocument: every figure on the live page is that of the health document it was drawn from.
func TestThePageShowsTheDocument(t *testing.T) {
	r := newRig(t)
	time.Sleep(5 * time.Second) // for the charts to have a past

	// when the page has been live for some seconds
	began := time.Now().UTC()
	d, log := browseLive(t, r.url+"/")

	// then it follows the events, and breaks no rule of its own policy
	if got := text(d.byID(t, "live")); got != "Live" {
		t.Fatalf("the page says %q, want Live\n%s", got, log)
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, "CONSOLE") {
			t.Errorf("the console says: %s", line)
		}
	}
	at := attribute(all(d.root, tag("html"))[0], "data-time")
	document := r.document(at)
	if document == nil {
		t.Fatalf("the page shows a document of %q that was never served", at)
	}
	if drawn, err := time.Parse(time.RFC3339Nano, at); err != nil || drawn.Before(began) {
		t.Errorf("the page shows the document of %s, want one from after %s", at, began)
	}
	compareFields(t, d, document)
	compareClusters(t, d, document)
	compareTables(t, d, document)
}

// browseLive dumps the page while it follows the events. A busy machine gets more time for that.
func browseLive(t *testing.T, url string) (d dom, log string) {
	t.Helper()
	for _, milliseconds := range []string{"5000", "5000", "15000", "15000", "45000"} {
		var out string
		out, log = browse(t, "--timeout="+milliseconds, "--dump-dom", url)
		if d = parse(t, out); text(d.byID(t, "live")) == "Live" {
			break
		}
	}
	return d, log
}

// compareFields compares the figures that name their path in the document.
func compareFields(t *testing.T, d dom, document map[string]any) {
	t.Helper()
	compared := 0
	for _, e := range all(d.root, func(n *html.Node) bool { return strings.Contains(attribute(n, "data-field"), ".") }) {
		path := attribute(e, "data-field")
		if got, want := attribute(e, "data-value"), said(document, strings.Split(path, ".")...); got != want {
			t.Errorf("%s is %s on the page, want %s", path, got, want)
		}
		compared++
	}
	if compared < 12 {
		t.Errorf("%d figures compared, want at least 12", compared)
	}
	bar := d.byID(t, "budget")
	if got, want := attribute(bar, "aria-valuenow"), said(document, "chatAdmission", "inflightBytes"); got != want {
		t.Errorf("the bar says %s bytes, want %s", got, want)
	}
}

func compareClusters(t *testing.T, d dom, document map[string]any) {
	t.Helper()
	clusters := document["adaptiveAdmission"].(map[string]any)
	cards := all(d.root, tag("article"))
	if len(cards) != len(clusters) || len(cards) != 3 {
		t.Errorf("%d cards for %d clusters, want 3", len(cards), len(clusters))
	}
	for _, card := range cards {
		name := attribute(card, "data-cluster")
		snapshot, ok := clusters[name].(map[string]any)
		if !ok {
			t.Errorf("a card for %q, which the document does not have", name)
			continue
		}
		if heading := text(all(card, tag("h3"))[0]); heading != name {
			t.Errorf("the card of %q is headed %q", name, heading)
		}
		for _, key := range []string{"currentLimit", "activeCost", "activeCount", "utilization", "laneCount", "rejectedCount", "signal", "lastReason"} {
			fields := all(card, having("data-field", key))
			if len(fields) != 1 || attribute(fields[0], "data-value") != said(snapshot, key) {
				t.Errorf("cluster %q: %d fields %s, want one of %s", name, len(fields), key, said(snapshot, key))
			}
		}
		if lines := all(card, tag("polyline")); len(lines) != 3 || len(strings.Fields(attribute(lines[0], "points"))) < 2 {
			t.Errorf("cluster %q: %d lines in the charts, want 3 with a past", name, len(lines))
		}
	}
	if images := all(d.root, tag("img")); len(images) != 0 {
		t.Errorf("%d images: a name was taken for markup", len(images))
	}
}

func compareTables(t *testing.T, d dom, document map[string]any) {
	t.Helper()
	refusals := document["recentRefusals"].([]any)
	rows := all(d.byID(t, "refusals"), tag("tr"))
	if len(rows) != len(refusals) || len(rows) == 0 {
		t.Fatalf("%d rows of %d refusals, want all of some", len(rows), len(refusals))
	}
	for i, row := range rows {
		refusal := refusals[i].(map[string]any)
		for _, key := range []string{"cluster", "reason", "lane"} {
			if !strings.Contains(text(row), said(refusal, key)) {
				t.Errorf("refusal %d is %q, want its %s %s", i, text(row), key, said(refusal, key))
			}
		}
		if id, ok := refusal["traceId"].(string); ok && !strings.Contains(text(row), id) {
			t.Errorf("refusal %d is %q, want its trace %s", i, text(row), id)
		}
	}
	waiting := 0
	for _, s := range document["adaptiveAdmission"].(map[string]any) {
		waiting += len(s.(map[string]any)["laneTenants"].([]any))
	}
	if rows := all(d.byID(t, "lanes"), tag("tr")); len(rows) != max(1, waiting) {
		t.Errorf("%d rows of %d lanes with waiters", len(rows), waiting)
	}
	if got, want := text(d.byID(t, "pools")), "chat ok closed 2 0 0"; strings.Join(strings.Fields(got), "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("pools %q, want %q", got, want)
	}
}

// said is a value of the document as the page writes it into data-value.
func said(document map[string]any, path ...string) string {
	var at any = document
	for _, key := range path {
		at = at.(map[string]any)[key]
	}
	if number, ok := at.(float64); ok {
		return strconv.FormatFloat(number, 'f', -1, 64)
	}
	return fmt.Sprint(at)
}

// TestThePageIsForEveryone checks what a screen reader and a keyboard need.
func TestThePageIsForEveryone(t *testing.T) {
	r := newRig(t)
	time.Sleep(3 * time.Second)
	out, _ := browse(t, "--virtual-time-budget=2000", "--dump-dom", r.url+"/?live=off")
	d := parse(t, out)
	if got := attribute(all(d.root, tag("html"))[0], "lang"); got != "en" {
		t.Errorf("language %q, want en", got)
	}
	for _, e := range all(d.root, func(n *html.Node) bool { return attribute(n, "aria-labelledby") != "" }) {
		if label := text(d.byID(t, attribute(e, "aria-labelledby"))); label == "" {
			t.Errorf("<%s> is labelled by %s, which is empty", e.Data, attribute(e, "aria-labelledby"))
		}
	}
	drawings := all(d.root, tag("svg"))
	if len(drawings) == 0 {
		t.Error("no charts")
	}
	for _, e := range drawings {
		if attribute(e, "role") != "img" || attribute(e, "aria-label") == "" {
			t.Error("a chart without a description")
		}
	}
	for _, e := range all(d.root, tag("th")) {
		if attribute(e, "scope") != "col" {
			t.Errorf("the heading %q has no scope", text(e))
		}
	}
	for _, e := range all(d.root, func(n *html.Node) bool { return strings.Contains(attribute(n, "class"), "scroll") }) {
		if attribute(e, "tabindex") != "0" || attribute(e, "role") != "region" {
			t.Error("a part that scrolls cannot be reached by keyboard")
		}
	}
	for _, e := range all(d.root, tag("button")) {
		if text(e) == "" {
			t.Error("a button without a name")
		}
	}
	for _, e := range all(d.root, func(n *html.Node) bool { return attribute(n, "style") != "" && attribute(n, "id") != "budget-fill" }) {
		t.Errorf("<%s> has a style of its own, which the policy forbids in markup", e.Data)
	}
}

// TestThePageLoadsNothing: not one address of another host, and a policy that would not let it.
func TestThePageLoadsNothing(t *testing.T) {
	r := newRig(t)
	response := r.get(t, "/")
	policy := response.Header.Get("Content-Security-Policy")
	for _, want := range []string{"default-src 'none'", "connect-src 'self'", "script-src 'sha256-", "style-src 'sha256-", "frame-ancestors 'none'"} {
		if !strings.Contains(policy, want) {
			t.Errorf("policy %q, want %s in it", policy, want)
		}
	}
	if strings.Contains(policy, "unsafe") {
		t.Errorf("policy %q allows what is unsafe", policy)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("read the page: %v", err)
	}
	for _, address := range []string{"http://", "https://", "src=", "@import", "url("} {
		if rest := strings.ReplaceAll(strings.ReplaceAll(string(body), "http://www.w3.org/2000/svg", ""), `img src=x`, ""); strings.Contains(rest, address) {
			t.Errorf("the page has %q", address)
		}
	}
}

// TestPictures draws the page wide and light, and dark on a phone.
func TestPictures(t *testing.T) {
	r := newRig(t)
	dir := t.TempDir()
	if *pictures != "" {
		dir = *pictures
		time.Sleep(3 * time.Minute) // for the charts to have a past worth a picture
	}
	for name, arguments := range map[string][]string{
		"status.png":       {"--window-size=1280,1500"},
		"status-phone.png": {"--window-size=500,1500", "--blink-settings=preferredColorScheme=0"},
	} {
		path, err := filepath.Abs(filepath.Join(dir, name))
		if err != nil {
			t.Fatalf("where to keep %s: %v", name, err)
		}
		browse(t, append(arguments, "--virtual-time-budget=2000", "--screenshot="+path, r.url+"/?live=off")...)
		if info, err := os.Stat(path); err != nil || info.Size() < 20_000 {
			t.Errorf("%s: picture %v, error %v; want some 10 KiB", name, info, err)
		}
	}
}
