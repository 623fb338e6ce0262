package e2e

import (
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/headgate/headgate/internal/stack"
)

// TestWhoIsThatLane: `extproc lane` gives the name that Envoy's access log has for a tenant, and tenants that may be named are
// logged by their names.
func TestWhoIsThatLane(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: "telemetry: {tenantNames: [team-b]}"})
	c := client(t, false)
	for tenant, want := range map[string]string{"team-a": `lane_[0-9a-f]{16}`, "team-b": "team-b"} {
		path := "/who/" + tenant
		must(t, s, c, request{path: path, headers: map[string]string{"x-tenant-id": tenant}})
		out, err := exec.CommandContext(t.Context(), sidecarBinary, "lane", tenant, "--address", s.Sidecar.Config.Listen.Admin).CombinedOutput()
		if err != nil {
			t.Fatalf("extproc lane %s: %v\n%s", tenant, err, out)
		}
		lane := strings.TrimSpace(string(out))
		if !regexp.MustCompile("^" + want + "$").MatchString(lane) {
			t.Errorf("extproc lane %s = %q, want %s", tenant, lane, want)
		}
		logged := func() string {
			for line := range strings.Lines(s.Envoy.Tail()) {
				if strings.Contains(line, " "+path+" ") {
					return line
				}
			}
			return ""
		}
		eventually(t, "the access log to have "+path, func() bool { return logged() != "" })
		if !strings.Contains(logged(), " lane="+lane+" ") {
			t.Errorf("Envoy logged %q, want lane=%s", logged(), lane)
		}
	}
}
