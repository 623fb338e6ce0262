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
		"as it is":                    {"/v1/messages", "", 200},
		"two slashes":                 {"/v1//messages", "", 200},
		"a dot":                       {"/v1/./messages", "", 200},
		"two dots":                    {"/x/../v1/messages", "", 200},
		"an escaped slash":            {"/v1%2Fmessages", "", 307},
		"an escaped slash, small":     {"/v1%2fmessages", "", 307},
		"an escaped backslash":        {"/v1%5Cmessages", "", 307},
		"a header with underscores":   {"/v1/messages", "x_headgate_parent: forged\n", 400},
		"a name that looks like ours": {"/v1/messages", "X_Omniroute-Lease-Owner: forged\n", 400},
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

// TestSpellingsThatLeaveACluster: which spellings of a path meet the settings of its route cluster, and which are another path
// to Envoy and meet those of the last route. None leaves the gates: docs/envoy-modes.md says so, and what to do about it.
func TestSpellingsThatLeaveACluster(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "bytes: {hardMaxBody: 1MiB}"})
	for _, c := range []struct{ path, cluster string }{
		{"/v1/messages", "chat"},
		{"/V1/Messages", "chat"},
		{"//v1///messages", "chat"},
		{"/v1/./x/../messages", "chat"},
		{"/v1/mess%61ges", "chat"},
		{"/LEASED/x", "leased"},
		{"/v1/messages/", "default"},
		{"/v1/messages;a=b", "default"},
		{"/v1/messages%3Ba=b", "default"},
		{"/v1/messages%20", "default"},
	} {
		before := decisionsBy(t, s, "route_cluster")
		raw := dialRaw(t, s)
		raw.say(t, "POST %s HTTP/1.1\nHost: t\nContent-Length: 2000000\n\n", c.path)
		got := raw.mustAnswer(t, "POST")
		refusedAs(t, c.path+" with a body above the maximum", got, nil, 413, "payload_too_large")
		if after := decisionsBy(t, s, "route_cluster"); after[c.cluster] != before[c.cluster]+1 {
			t.Errorf("%s: decisions by cluster %v before and %v after, want one more of %s", c.path, before, after, c.cluster)
		}
	}
}
