//go:build release

package release

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

const root = "../.."

// run runs a program from the root of the repository and returns what it printed.
func run(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = root
	out, err := c.CombinedOutput()
	return string(out), err
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestWorkflows: actionlint finds nothing in the workflows, and something in one that is wrong.
func TestWorkflows(t *testing.T) {
	tool := filepath.Join(t.TempDir(), "actionlint")
	if out, err := run(t, "go", "build", "-C", "tools/actionlint", "-o", tool, "github.com/rhysd/actionlint/cmd/actionlint"); err != nil {
		t.Fatalf("build actionlint: %v\n%s", err, out)
	}
	files, err := filepath.Glob(root + "/.github/workflows/*.yml")
	if err != nil || len(files) < 2 {
		t.Fatalf("%d workflows (%v), want at least 2", len(files), err)
	}
	for _, file := range files {
		relative, _ := filepath.Rel(root, file)
		if out, err := run(t, tool, "-no-color", relative); err != nil {
			t.Errorf("actionlint: %v\n%s", err, out)
		}
	}
	wrong := filepath.Join(t.TempDir(), "wrong.yml")
	if err := os.WriteFile(wrong, []byte("on: push\njobs: {a: {runs-on: ubuntu-latest, steps: [{run: 'echo ${{ nothing.here }}'}]}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, tool, "-no-color", wrong); err == nil {
		t.Errorf("actionlint accepts a context that does not exist: %s", out)
	}
}

// TestWorkflowsRunWhatThereIs: every make target and every script that a workflow runs exists.
func TestWorkflowsRunWhatThereIs(t *testing.T) {
	makefile := read(t, "Makefile")
	n := 0
	for _, file := range []string{".github/workflows/ci.yml", ".github/workflows/nightly.yml", ".github/workflows/release.yml"} {
		text := read(t, file)
		targets := regexp.MustCompile(`make ([a-z-]+)`).FindAllStringSubmatch(text, -1)
		for _, m := range regexp.MustCompile(`target: \[([^\]]+)\]`).FindAllStringSubmatch(text, -1) {
			for target := range strings.SplitSeq(m[1], ", ") {
				targets = append(targets, []string{"", target})
			}
		}
		for _, m := range targets {
			n++
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s runs make %s, which does not exist", file, m[1])
			}
		}
		for _, script := range regexp.MustCompile(`deploy/[\w/-]+\.sh`).FindAllString(text, -1) {
			n++
			if info, err := os.Stat(filepath.Join(root, script)); err != nil || info.Mode()&0o111 == 0 {
				t.Errorf("%s runs %s, which cannot be run (%v)", file, script, err)
			}
		}
	}
	if n < 8 {
		t.Errorf("%d commands found, want at least 8", n)
	}
}

// TestNothingIsPublishedByItself: what leaves a run is behind the repository's variable, and a run by hand never gets there.
func TestNothingIsPublishedByItself(t *testing.T) {
	text := read(t, ".github/workflows/release.yml")
	if !strings.Contains(text, "PUBLISH: ${{ github.event_name == 'push' && vars.RELEASE_REGISTRY != '' }}") ||
		!strings.Contains(text, "if: github.event_name == 'push' && vars.RELEASE_REGISTRY != ''") {
		t.Error("release.yml does not ask for RELEASE_REGISTRY before it publishes")
	}
	steps := strings.Split(text, "\n      - ")
	for _, step := range steps {
		publishes := strings.Contains(step, "login-action") || strings.Contains(step, "cosign sign --yes") || strings.Contains(step, "subject-digest")
		if publishes && !strings.Contains(step, "if: env.PUBLISH == 'true'") {
			t.Errorf("a step publishes without asking:\n%s", step)
		}
	}
}

// TestNotesOfTheChangelog: a version has the notes of its section, and one without a section is refused.
func TestNotesOfTheChangelog(t *testing.T) {
	out, err := run(t, "deploy/release/notes.sh", "Unreleased")
	if err != nil || !strings.Contains(out, "### Added") || strings.Contains(out, "## [") {
		t.Errorf("notes of Unreleased: %v\n%s", err, out)
	}
	for _, version := range []string{"v999.0.0", "v0"} {
		if out, err := run(t, "deploy/release/notes.sh", version); err == nil {
			t.Errorf("notes of %s: %q, want a failure", version, out)
		}
	}
	for _, version := range []string{"1.2.3", "v1.2", "v01.2.3", "latest", "v1.2.3 x", "v999.0.0"} {
		if out, err := run(t, "deploy/release/build.sh", version, t.TempDir()); err == nil {
			t.Errorf("build of %q: %q, want a failure", version, out)
		}
	}
	if !regexp.MustCompile(`(?m)^## \[Unreleased\]$`).MatchString(read(t, "CHANGELOG.md")) {
		t.Error("CHANGELOG.md has no section Unreleased")
	}
}

// TestReleaseBuild: the archives hold a static binary that says its version, with the licence and the schema; the bill of
// materials, the chart and the checksums are right, and a second build gives the same bytes.
func TestReleaseBuild(t *testing.T) {
	const version = "v0.0.0-dry-run"
	here := "linux/" + runtime.GOARCH
	first, second := t.TempDir(), t.TempDir()
	for _, dir := range []string{first, second} {
		if out, err := run(t, "deploy/release/build.sh", version, dir, here); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
	}
	sums := map[string]string{}
	text, err := os.ReadFile(filepath.Join(first, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[name] = sum
	}
	archive := "headgate-extproc_" + version + "_linux_" + runtime.GOARCH + ".tar.gz"
	bill := "headgate-extproc_" + version + "_" + runtime.GOARCH + ".cdx.json"
	for _, name := range []string{archive, bill, "headgate-0.0.0-dry-run.tgz"} {
		if got := digest(t, filepath.Join(first, name)); got != sums[name] {
			t.Errorf("%s: checksum %s, SHA256SUMS says %q", name, got, sums[name])
		}
	}
	if a, b := digest(t, filepath.Join(first, archive)), digest(t, filepath.Join(second, archive)); a != b {
		t.Errorf("two builds of one tree differ: %s and %s", a, b)
	}
	binary := unpack(t, filepath.Join(first, archive), []string{"CHANGELOG.md", "LICENSE", "extproc", "headgate.schema.json"})
	if out, err := run(t, binary, "version"); err != nil || !strings.Contains(out, version) {
		t.Errorf("extproc version: %q (%v), want %s", out, err, version)
	}
	file, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if libraries, err := file.ImportedLibraries(); err != nil || len(libraries) > 0 {
		t.Errorf("the binary needs %v (%v), want nothing", libraries, err)
	}
	var materials struct {
		BomFormat  string
		Components []struct{ Name string }
	}
	billText, err := os.ReadFile(filepath.Join(first, bill))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(billText, &materials); err != nil || materials.BomFormat != "CycloneDX" || len(materials.Components) < 30 {
		t.Errorf("bill of materials: %q with %d components (%v), want CycloneDX with 30 at least", materials.BomFormat, len(materials.Components), err)
	}
}

func digest(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// unpack unpacks an archive, checks the names in it, and returns the path of the binary.
func unpack(t *testing.T, archive string, want []string) string {
	t.Helper()
	file, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	plain, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	binary := filepath.Join(t.TempDir(), "extproc")
	for entries := tar.NewReader(plain); ; {
		header, err := entries.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		names = append(names, filepath.Base(header.Name))
		if filepath.Base(header.Name) == "extproc" {
			content, err := io.ReadAll(entries)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(binary, content, 0o700); err != nil {
				t.Fatal(err)
			}
		}
	}
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("%s holds %v, want %v", archive, names, want)
	}
	return binary
}
