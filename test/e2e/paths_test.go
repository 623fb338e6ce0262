package e2e

import (
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/stack"
)

// TestOneSpellingOfPathsAndHeaders: with the printed configuration Envoy brings a path into one spelling before it is routed,
// or refuses it, and takes no header whose name another server could read as a different one.
func TestOneSpellingOfPathsAndHeaders(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{})
	for name, c := range map[string]struct {
		path, header string
		status       int
	}{
		"as it is":                  {"/v1/messages", "", 200},
		"two slashes":               {"/v1//messages", "", 200},
		"a dot":                     {"/v1/./messages", "", 200},
		"two dots":                  {"/x/../v1/messages", "", 200},
		"an escaped slash":          {"/v1%2Fmessages", "", 307},
		"an escaped slash, small":   {"/v1%2fmessages", "", 307},
		"an escaped backslash":      {"/v1%5Cmessages", "", 307},
		"a header with underscores": {"/v1/messages", "x_headgate_parent: forged\n", 400},
	} {
		raw := dialRaw(t, s)
		raw.say(t, "GET %s HTTP/1.1\nHost: t\n%s\n", c.path, c.header)
		got, err := raw.answer("GET")
		if got.status != c.status && (c.status != 400 || err == nil) { // a malformed request may lose its connection instead
			t.Errorf("%s: %d %q (%v), want %d", name, got.status, got.body, err, c.status)
		}
		if location := got.header.Get("Location"); c.status == 307 && !strings.HasSuffix(location, "/v1/messages") {
			t.Errorf("%s: redirected to %q, want /v1/messages", name, location)
		}
	}
}
