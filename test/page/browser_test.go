//go:build browser

package page

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/html"
)

// chromium finds the browser.
func chromium(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("CHROMIUM_BIN"); path != "" {
		return path
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Fatal("no Chromium: install the Debian package chromium, or set CHROMIUM_BIN to a Chromium or Chrome")
	return ""
}

// browse runs the browser once and returns what it printed.
func browse(t *testing.T, arguments ...string) (stdout, stderr string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	home := t.TempDir()
	c := exec.CommandContext(ctx, chromium(t), append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr",
		"--user-data-dir=" + filepath.Join(home, "profile"),
	}, arguments...)...) //nolint:gosec // the arguments are the test's
	c.Env = append(os.Environ(), "HOME="+home)
	c.WaitDelay = 5 * time.Second
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Run(); err != nil {
		t.Fatalf("run %s: %v\n%s", c.Path, err, errs.String())
	}
	return out.String(), errs.String()
}

// dom is a page as the browser has it.
type dom struct{ root *html.Node }

func parse(t *testing.T, text string) dom {
	t.Helper()
	root, err := html.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatalf("parse the page: %v", err)
	}
	return dom{root}
}

// all are the elements below n that match.
func all(n *html.Node, matches func(*html.Node) bool) (found []*html.Node) {
	for each := range n.Descendants() {
		if each.Type == html.ElementNode && matches(each) {
			found = append(found, each)
		}
	}
	return found
}

func tag(name string) func(*html.Node) bool {
	return func(n *html.Node) bool { return n.Data == name }
}

func having(key, value string) func(*html.Node) bool {
	return func(n *html.Node) bool { return attribute(n, key) == value }
}

func (d dom) byID(t *testing.T, id string) *html.Node {
	t.Helper()
	found := all(d.root, having("id", id))
	if len(found) != 1 {
		t.Fatalf("%d elements with the id %s, want 1", len(found), id)
	}
	return found[0]
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

func text(n *html.Node) string {
	var b strings.Builder
	for each := range n.Descendants() {
		if each.Type == html.TextNode {
			b.WriteString(each.Data)
		}
	}
	return strings.Join(strings.Fields(b.String()), " ")
}
