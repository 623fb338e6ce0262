package extproc

import (
	"testing"

	"github.com/headgate/headgate/pkg/config"
)

// TestRequestsWithoutATenantAreCounted: only where sources are configured, since otherwise nobody has a tenant on purpose.
func TestRequestsWithoutATenantAreCounted(t *testing.T) {
	for name, tc := range map[string]struct {
		sources []config.Source
		headers []string
		want    int64
	}{
		"a tenant":           {[]config.Source{{Header: "x-tenant-id"}}, []string{"x-tenant-id", "a"}, 0},
		"none":               {[]config.Source{{Header: "x-tenant-id"}}, nil, 1},
		"a blank one":        {[]config.Source{{Header: "x-tenant-id"}}, []string{"x-tenant-id", "  "}, 1},
		"another source's":   {[]config.Source{{Metadata: "jwt/sub"}}, []string{"x-tenant-id", "a"}, 1},
		"nobody has tenants": {nil, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *config.Config) { c.Tenant.Sources = tc.sources })
			s := r.open()
			s.send(rh(early, false, append([]string{"content-length", "9223372036854775807"}, tc.headers...)...))
			s.refused(413, "payload_too_large")
			if got := r.server.WithoutTenant(); got != tc.want {
				t.Errorf("%d requests without a tenant, want %d", got, tc.want)
			}
		})
	}
}
