package docs

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/internal/stack"
)

// TestExamples runs what the pages show, with the program built from this tree.
func TestExamples(t *testing.T) {
	if *update { // make generate needs no programs
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	binary := sidecar(ctx, t)
	t.Run("commands", func(t *testing.T) { commandLines(ctx, t, binary) })
	t.Run("leases-clients.md", func(t *testing.T) { session(ctx, t, "leases-clients.md", stack.Options{Binary: binary}) })
	t.Run("verdicts.md", func(t *testing.T) { session(ctx, t, "verdicts.md", stack.Options{Binary: binary}) })
	t.Run("fanout.md", func(t *testing.T) {
		own := slices.DeleteFunc(blocks(t, "fanout.md"), func(b block) bool { return b.info != "yaml" })
		session(ctx, t, "fanout.md", stack.Options{Binary: binary, Config: own[0].text})
	})
}

// sidecar builds the sidecar of this tree.
func sidecar(ctx context.Context, t *testing.T) (binary string) {
	t.Helper()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	binary = filepath.Join(t.TempDir(), "extproc")
	if err := stack.BuildSidecar(ctx, root, binary); err != nil {
		t.Fatal(err)
	}
	return binary
}

var (
	inShell = regexp.MustCompile(`(?m)(?:^|[ |])(?:build/)?extproc((?: +[^\s|>#;&]+)*)`)
	inProse = regexp.MustCompile("`extproc((?: [^`|>…]+)?)`")
)

// commandLines asks for the help of every command line that a page shows, flags included: those that do not exist are
// errors.
func commandLines(ctx context.Context, t *testing.T, binary string) {
	seen := map[string]string{}
	for _, page := range append(pages(t), "../CONTRIBUTING.md") {
		for _, b := range blocks(t, page) {
			if b.info != "sh" {
				continue
			}
			for _, m := range inShell.FindAllStringSubmatch(b.text, -1) {
				seen[strings.TrimSpace(m[1])] = page
			}
		}
		for _, m := range inProse.FindAllStringSubmatch(prose(t, page), -1) {
			seen[strings.TrimSpace(m[1])] = page
		}
	}
	help, err := exec.CommandContext(ctx, binary, "--help").CombinedOutput()
	if err != nil {
		t.Fatalf("--help: %v\n%s", err, help)
	}
	for line, page := range seen {
		args := strings.Fields(line)
		if len(args) > 0 && !strings.HasPrefix(args[0], "-") && !bytes.Contains(help, []byte("\n  "+args[0]+" ")) {
			t.Errorf("%s shows `extproc %s`: there is no such command", page, line)
			continue
		}
		if out, err := exec.CommandContext(ctx, binary, append(args, "--help")...).CombinedOutput(); err != nil {
			t.Errorf("%s shows `extproc %s`: %v\n%s", page, line, err, out)
		}
	}
	if len(seen) < 8 {
		t.Errorf("%d command lines found, want at least 8: %q", len(seen), slices.Sorted(maps.Keys(seen)))
	}
}

// session runs the shell blocks of a page in one shell against a real Envoy, and compares what each prints with the block
// that follows it.
func session(ctx context.Context, t *testing.T, page string, o stack.Options) {
	s, err := stack.Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	l := s.Sidecar.Config.Listen
	here := strings.NewReplacer("localhost:10000", s.Envoy.Address, "localhost:9003", l.Admin, "localhost:9004", l.API)
	const mark = "=== end of a block ==="
	var script strings.Builder
	var want []block
	all := blocks(t, page)
	for i, b := range all {
		if b.info != "sh" {
			continue
		}
		fmt.Fprintf(&script, "%s\nprintf '\\n%s\\n'\n", here.Replace(b.text), mark)
		if i+1 < len(all) && (all[i+1].info == "json" || all[i+1].info == "text") {
			want = append(want, all[i+1])
		} else {
			want = append(want, block{})
		}
	}
	shell := exec.CommandContext(ctx, "sh", "-eu", "-c", script.String())
	shell.Dir = t.TempDir()
	out, err := shell.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", page, err, out)
	}
	got := strings.Split(string(out), "\n"+mark+"\n")
	for i, b := range want {
		switch answer := strings.TrimSpace(got[i]); b.info {
		case "json":
			if diff := cmp.Diff(decoded(t, b.text), decoded(t, answer)); diff != "" {
				t.Errorf("%s: example %d answers otherwise than the page says (-page +answer):\n%s", page, i+1, diff)
			}
		case "text":
			if answer != strings.TrimSpace(b.text) {
				t.Errorf("%s: example %d answers %q, the page says %q", page, i+1, answer, b.text)
			}
		}
	}
	adminPaths(ctx, t, s)
}

// decoded is a JSON document without the values that are different every time.
func decoded(t *testing.T, text string) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	for _, changing := range []string{"generation", "acquiredAt", "renewedAt", "expiresAt", "retryAfter"} {
		if _, ok := v[changing]; ok {
			v[changing] = "differs"
		}
	}
	return v
}

var adminPath = regexp.MustCompile(`localhost:9003(/[\w./?=&-]*)`)

// adminPaths asks for every path on the admin port that a page names.
func adminPaths(ctx context.Context, t *testing.T, s *stack.Stack) {
	t.Helper()
	seen := map[string]string{}
	for _, page := range pages(t) {
		for _, m := range adminPath.FindAllStringSubmatch(read(t, page), -1) {
			seen[m[1]] = page
		}
	}
	for path, page := range seen {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.Sidecar.Config.Listen.Admin+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("%s names %s on the admin port, which answers %s", page, path, response.Status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
