package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhatIsSaidWithoutASidecar: who asks a sidecar that is not there, or gives a key where it can be seen, is told what to do.
func TestWhatIsSaidWithoutASidecar(t *testing.T) {
	t.Setenv("HEADGATE_LISTEN_ADMIN", "127.0.0.1:1")
	for _, c := range []struct {
		args string
		want []string
	}{
		{"health", []string{"no sidecar answers", "listen.admin", "127.0.0.1:1"}},
		{"top --once", []string{"no sidecar answers", "listen.admin", "127.0.0.1:1"}},
		{"chek", []string{`no command "chek"; did you mean check?`}},
		{"frobnicate", []string{`no command "frobnicate"`, "--help"}},
		{"hash-key sk-secret", []string{"standard input"}},
	} {
		var out bytes.Buffer
		command := newCommand(strings.NewReader(""), &out, &out)
		command.SetArgs(strings.Fields(c.args))
		err := command.ExecuteContext(t.Context())
		for _, part := range c.want {
			if err == nil || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "sk-secret") {
				t.Errorf("%s: error %v, want one with %q and without the key", c.args, err, part)
			}
		}
	}
}

// TestHealthWithAnAddressReadsNoConfiguration: a probe does not fail because of a fault in the file, which the running sidecar
// refuses without harm.
func TestHealthWithAnAddressReadsNoConfiguration(t *testing.T) {
	sidecar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "asked for", r.URL.Path)
	}))
	t.Cleanup(sidecar.Close)
	faulty := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(faulty, []byte("no: such: thing\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HEADGATE_LISTEN_ADMIN", "garbage")
	address := strings.TrimPrefix(sidecar.URL, "http://")
	for _, path := range []string{"/readyz", "/livez"} {
		var out bytes.Buffer
		command := newCommand(strings.NewReader(""), &out, &out)
		command.SetArgs([]string{"health", "--config", faulty, "--address", address, "--path", path})
		if err := command.ExecuteContext(t.Context()); err != nil {
			t.Errorf("health --address %s --path %s with a faulty file: %v, want the sidecar's answer", address, path, err)
		}
		if got, want := out.String(), "asked for "+path+"\n"; got != want {
			t.Errorf("health --path %s prints %q, want %q", path, got, want)
		}
	}
}

// TestCompletion: a shell completes commands, and the values of --part.
func TestCompletion(t *testing.T) {
	for line, want := range map[string][]string{
		"sch": {"schema"}, "envoy --part ": {"all", "filter", "cluster", "routes"}, "health --path ": {"/readyz", "/livez"},
	} {
		var out bytes.Buffer
		command := newCommand(strings.NewReader(""), &out, &bytes.Buffer{})
		words := strings.Split(line, " ")
		command.SetArgs(append([]string{"__complete"}, words...))
		if err := command.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, word := range want {
			if !strings.Contains("\n"+out.String(), "\n"+word) {
				t.Errorf("%q completes to %q, want %s in it", line, out.String(), word)
			}
		}
	}
}
