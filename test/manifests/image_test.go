package manifests

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

const root = "../../"

// TestDockerfileBuildsWhatTheScriptChecks keeps the command that compiles the same in both: the script, which needs
// buildah, is what checks binary and image.
func TestDockerfileBuildsWhatTheScriptChecks(t *testing.T) {
	command := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(root + file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if before, after, found := strings.Cut(line, "go build "); found && strings.TrimSpace(before) == "" {
				flags, _, _ := strings.Cut(after, " -o ")
				return strings.NewReplacer("$VERSION", "…", "main.version=check", "main.version=…").Replace(flags)
			}
		}
		t.Fatalf("%s has no line that starts with go build", file)
		return ""
	}
	if docker, script := command("Dockerfile"), command("deploy/image/check.sh"); docker != script {
		t.Errorf("the Dockerfile builds with %s, the script with %s", docker, script)
	}
}

// TestBuildContextHasWhatTheBinaryIsMadeOf checks .dockerignore, which names what comes along.
func TestBuildContextHasWhatTheBinaryIsMadeOf(t *testing.T) {
	text, err := os.ReadFile(root + ".dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	var kept []string
	for line := range strings.Lines(string(text)) {
		if folder, ok := strings.CutPrefix(strings.TrimSpace(line), "!"); ok && strings.HasSuffix(folder, "/") {
			kept = append(kept, folder)
		}
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-C", root, "-deps",
		"-f", "{{if .Module}}{{if .Module.Main}}{{.ImportPath}}{{end}}{{end}}", "./cmd/extproc")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	if len(out) == 0 {
		t.Fatal("go list names no package")
	}
	for path := range strings.Lines(string(out)) {
		folder := strings.TrimPrefix(strings.TrimSpace(path), "github.com/headgate/headgate/") + "/"
		found := false
		for _, k := range kept {
			found = found || strings.HasPrefix(folder, k)
		}
		if !found {
			t.Errorf("the binary is made of %s too, which .dockerignore leaves out", folder)
		}
	}
}
