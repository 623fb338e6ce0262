package manifests

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../../"

// TestImageHasAStaticBinary builds what the Dockerfile builds. deploy/image/check.sh builds the image around it.
func TestImageHasAStaticBinary(t *testing.T) {
	text, err := os.ReadFile(root + "Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	const flags = `-trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION"`
	if !bytes.Contains(text, []byte("CGO_ENABLED=0")) || !bytes.Contains(text, []byte(flags)) {
		t.Fatalf("the Dockerfile builds otherwise than this test: want CGO_ENABLED=0 and %s", flags)
	}
	binary := filepath.Join(t.TempDir(), "extproc")
	build := exec.CommandContext(t.Context(), "go", "build", "-C", root, "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X main.version=v1.2.3", "-o", binary, "./cmd/extproc")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	file, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	libraries, err := file.ImportedLibraries()
	if err != nil || len(libraries) > 0 {
		t.Errorf("the binary needs libraries %v (%v), want none", libraries, err)
	}
	for _, p := range file.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the binary needs a dynamic loader, which the image does not have")
		}
	}
	version := exec.CommandContext(t.Context(), binary, "version")
	version.Env = []string{}
	out, err := version.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "headgate extproc v1.2.3 ") {
		t.Errorf("extproc version in an empty environment: %q, %v; want the version that the linker set", out, err)
	}
	t.Run("bill of materials", func(t *testing.T) { checkBillOfMaterials(t, binary) })
}

func checkBillOfMaterials(t *testing.T, binary string) {
	file := filepath.Join(t.TempDir(), "sbom.json")
	if out, err := exec.CommandContext(t.Context(), root+"deploy/image/sbom.sh", binary, file).CombinedOutput(); err != nil {
		t.Fatalf("sbom.sh: %v\n%s", err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"bomFormat": "CycloneDX"`, "pkg:golang/google.golang.org/grpc@", "pkg:golang/github.com/redis/go-redis/v9@", `"name": "std"`} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("the bill of materials lacks %s", want)
		}
	}
	if bytes.Contains(text, []byte("k8s.io/")) {
		t.Error("the bill of materials has modules that are not in the binary")
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
	list := exec.CommandContext(t.Context(), "go", "list", "-C", root, "-deps", "-f", "{{if .Module}}{{if .Module.Main}}{{.ImportPath}}{{end}}{{end}}", "./cmd/extproc")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
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
