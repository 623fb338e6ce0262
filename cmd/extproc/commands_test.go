package main

import (
	"bytes"
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
