// Package docs holds the documentation. Its tests keep what is generated equal to what the code says, and what is
// written true: links lead somewhere, and every refusal has its page.
package docs

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc"
)

var update = flag.Bool("update", false, "write the generated parts instead of comparing them")

// TestConfigurationReference: configuration.md is what the schema says.
func TestConfigurationReference(t *testing.T) {
	var want bytes.Buffer
	if err := config.Reference(&want); err != nil {
		t.Fatalf("write the reference: %v", err)
	}
	compare(t, "configuration.md", want.String())
}

// TestVerdictTable: the table of the page is the one that refusals are made from.
func TestVerdictTable(t *testing.T) {
	generated(t, "verdicts.md", "verdicts", verdicts())
}

func verdicts() string {
	var b strings.Builder
	b.WriteString("| reason | when | HTTP | gRPC | type / code | Retry-After | again |\n|---|---|---|---|---|---|---|\n")
	for _, v := range extproc.Verdicts() {
		retry := "–"
		if v.Retry > 0 {
			retry = fmt.Sprintf("%d s at least", int(v.Retry.Seconds()))
		}
		again := map[bool]string{true: "yes", false: "no"}[v.Again]
		fmt.Fprintf(&b, "| `%s` | %s | %d | %d | %s / %s | %s | %s |\n", v.Reason, v.When, v.HTTP, v.GRPC, v.Type, v.Code, retry, again)
	}
	return b.String()
}

func compare(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, read(t, path)); diff != "" {
		t.Errorf("%s is out of date; run make generate (-want +got):\n%s", path, diff)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var link = regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)

// TestLinks: every relative link of the documentation leads to a file.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages, "../README.md", "../CONTRIBUTING.md") {
		for _, found := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), found[1])); err != nil {
				t.Errorf("%s links to %s: %v", page, found[1], err)
			}
		}
	}
}

// TestConfigurationSchema: the schema that the shipped files name is what `extproc schema` prints.
func TestConfigurationSchema(t *testing.T) {
	var want bytes.Buffer
	if err := config.Schema(&want); err != nil {
		t.Fatalf("write the schema: %v", err)
	}
	compare(t, "../"+config.SchemaFile, want.String())
}
