package e2e

import (
	"encoding/json"
	"testing"

	"github.com/headgate/headgate/internal/stack"
)

// TestForgedParentTokenNeverGoesOn: in whatever order and spelling a client repeats it, the upstream sees no parent token
// that the sidecar did not issue.
func TestForgedParentTokenNeverGoesOn(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{})
	for name, headers := range map[string]string{
		"once":               "X-Headgate-Parent: forged\n",
		"then empty":         "X-Headgate-Parent: forged\nX-Headgate-Parent:\n",
		"empty first":        "X-Headgate-Parent:\nX-Headgate-Parent: forged\n",
		"twice":              "X-Headgate-Parent: forged\nx-headgate-parent: forged\n",
		"in capitals":        "X-HEADGATE-PARENT: forged\n",
		"with blanks around": "X-Headgate-Parent:  \t forged \t\n",
	} {
		raw := dialRaw(t, s)
		raw.say(t, "GET /x HTTP/1.1\nHost: t\n%s\n", headers)
		got := raw.mustAnswer(t, "GET")
		var e stack.Echo
		if err := json.Unmarshal([]byte(got.body), &e); err != nil || got.status != 200 {
			t.Fatalf("%s: %d %q (%v), want 200 and an echo", name, got.status, got.body, err)
		}
		if seen, has := e.Headers["X-Headgate-Parent"]; has {
			t.Errorf("%s: the upstream saw the parent token %q, want none", name, seen)
		}
	}
}
