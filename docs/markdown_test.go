package docs

import (
	"bytes"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/headgate/headgate/pkg/config"
)

// block is a fenced block of a page.
type block struct {
	page string
	info string // what follows the opening fence
	text string
}

// pages are all pages, by their path from this folder.
func pages(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	return append(found, "../README.md")
}

// blocks are the fenced blocks of a page, in order, without the indentation that they share.
func blocks(t *testing.T, page string) []block {
	t.Helper()
	var found []block
	var open *block
	indent := ""
	for line := range strings.Lines(read(t, page)) {
		text := strings.TrimLeft(line, " ")
		switch fence, isFence := strings.CutPrefix(text, "```"); {
		case isFence && open == nil:
			open, indent = &block{page: page, info: strings.TrimSpace(fence)}, line[:len(line)-len(text)]
		case isFence:
			found, open = append(found, *open), nil
		case open != nil:
			open.text += strings.TrimPrefix(line, indent)
		}
	}
	if open != nil {
		t.Fatalf("%s: a block is never closed", page)
	}
	return found
}

// prose is a page without its fenced blocks.
func prose(t *testing.T, page string) string {
	t.Helper()
	var b strings.Builder
	inside := false
	for line := range strings.Lines(read(t, page)) {
		if strings.HasPrefix(strings.TrimLeft(line, " "), "```") {
			inside = !inside
		} else if !inside {
			b.WriteString(line)
		}
	}
	return b.String()
}

// rows are the cells of a page's table rows, of all its tables, without heads and rulers.
func rows(t *testing.T, page string) [][]string {
	t.Helper()
	var found [][]string
	for line := range strings.Lines(prose(t, page)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		found = append(found, cells)
	}
	return found
}

// generated replaces or compares what a page has between two marks.
func generated(t *testing.T, page, name, want string) {
	t.Helper()
	begin, end := "<!-- "+name+": written by make generate -->\n", "<!-- end of "+name+" -->"
	before, rest, ok := strings.Cut(read(t, page), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s lacks the marks %q and %q", page, begin, end)
	}
	compare(t, page, before+begin+want+end+after)
}

// reference are the rows of the configuration reference: key, type, default, environment, meaning.
func reference(t *testing.T) [][]string {
	t.Helper()
	var b bytes.Buffer
	if err := config.Reference(&b); err != nil {
		t.Fatalf("write the reference: %v", err)
	}
	var found [][]string
	for line := range strings.Lines(b.String()) {
		if cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | "); len(cells) == 5 && strings.HasPrefix(cells[0], " `") {
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			found = append(found, cells)
		}
	}
	if len(found) < 100 {
		t.Fatalf("the reference has %d rows, want more than 100", len(found))
	}
	return found
}

var quoted = regexp.MustCompile("`([^`\n]+)`")

// code is every piece of code within the prose of a page.
func code(t *testing.T, page string) []string {
	t.Helper()
	var found []string
	for _, m := range quoted.FindAllStringSubmatch(prose(t, page), -1) {
		found = append(found, m[1])
	}
	return found
}
