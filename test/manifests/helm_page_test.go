package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// withoutCluster stands before the commands of the page: what would be installed is printed, and kubectl has nothing to wait for.
const withoutCluster = `set -eu
helm() {
  case "$1" in
  install | upgrade)
    shift
    local args=()
    for a; do [ "$a" = --create-namespace ] || args+=("$a"); done
    "$HELM" template --kube-version 1.33.0 "${args[@]}" ;;
  *) "$HELM" "$@" ;;
  esac
}
kubectl() { :; }
`

var shellBlock = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")

// TestHelmCommandsOfThePage: the commands of the section on Helm, typed in one after another in the repository's root, make what
// they say: the settings without a fault or a note, an upgrade that changes one of them, and the other chart's Deployment.
// With a cluster, test/cluster installs them.
func TestHelmCommandsOfThePage(t *testing.T) {
	helm, err := buildHelm()
	if err != nil {
		t.Fatal(err)
	}
	work, programs := t.TempDir(), t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-C", root, "-o", programs, "./cmd/extproc").CombinedOutput(); err != nil {
		t.Fatalf("build the sidecar: %v\n%s", err, out)
	}
	if err := os.CopyFS(filepath.Join(work, "deploy"), os.DirFS(root+"deploy")); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(root + "docs/kubernetes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "\n## With Helm\n")
	text, _, _ = strings.Cut(text, "\n## ")
	blocks := shellBlock.FindAllStringSubmatch(text, -1)
	if len(blocks) != 3 {
		t.Fatalf("%d blocks with commands, want 3", len(blocks))
	}
	run := func(script string) string {
		t.Helper()
		c := exec.CommandContext(t.Context(), "bash", "-c", withoutCluster+script)
		c.Dir = work
		c.Env = append(os.Environ(), "HELM="+helm, "PATH="+programs+":"+os.Getenv("PATH"),
			"HELM_CACHE_HOME="+programs, "HELM_CONFIG_HOME="+programs, "HELM_DATA_HOME="+programs, "KUBECONFIG=/dev/null")
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s\n%s", err, script, out)
		}
		return string(out)
	}
	expect := func(out string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(out, part) {
				t.Errorf("%q is not in what is made:\n%s", part, out)
			}
		}
	}
	expect(run(blocks[0][1]), "image: headgate/extproc:dev\n", "address: llm-gateway, port_value: 8080", "kind: Deployment\n", "cpu: 50m\n")
	if out := run("extproc check --config headgate.yaml"); strings.Count(out, "\n") != 1 || !strings.HasPrefix(out, "ok, ") {
		t.Errorf("extproc check prints %q of the page's settings, want ok and no note", out)
	}
	expect(run(blocks[1][1]), "hardMaxBody: 40MiB\n", "virtualLanes: true\n")
	expect(run(blocks[2][1]), "image: headgate/extproc:dev\n", "cpu: 50m\n", "image: example/llm-gateway:dev\n")
}
