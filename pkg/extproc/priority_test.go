package extproc

import (
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
)

// enforcing puts chat's lanes into force.
func enforcing(c *config.Config, change func(*adaptive.Settings)) {
	all := c.Clusters[config.AnyCluster]
	all.Lanes.Mode, all.Lanes.VirtualLanes, all.Lanes.MaxWait = adaptive.Enforce, true, 300*time.Millisecond
	change(&all.Lanes)
	c.Clusters = map[string]config.Cluster{config.AnyCluster: all}
}

func withMetadata(m *extprocv3.ProcessingRequest, namespace, key, value string) *extprocv3.ProcessingRequest {
	m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		namespace: {Fields: map[string]*structpb.Value{key: structpb.NewStringValue(value)}},
	}}
	return m
}

// TestMaxConcurrentRefuses: what its tenant's bound held back is refused with 429, the cluster's with 503, and a tenant's own
// bound counts before that of every tenant.
func TestMaxConcurrentRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*config.Config)
		tenant string
		status int
		reason string
	}{
		"the cluster's": {func(c *config.Config) {
			enforcing(c, func(s *adaptive.Settings) { s.MaxConcurrent = 1 })
		}, "another", 503, "admission_concurrency"},
		"every tenant's": {func(c *config.Config) {
			enforcing(c, func(s *adaptive.Settings) { s.TenantMaxConcurrent = 1 })
		}, "acme", 429, "admission_tenant_concurrency"},
		"the tenant's own": {func(c *config.Config) {
			enforcing(c, func(s *adaptive.Settings) { s.TenantMaxConcurrent = 5 })
			c.Tenant.MaxConcurrent = map[string]int{"acme": 1}
		}, "acme", 429, "admission_tenant_concurrency"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, tc.change)
			first := r.open()
			first.send(rh(early, true, "x-tenant-id", "acme"))
			first.wants("RH")
			second := r.open()
			second.send(rh(early, true, "x-tenant-id", tc.tenant))
			second.refused(tc.status, tc.reason)
			first.send(sh("200", true))
			first.wants("SH")
			first.finish()
		})
	}
}

// TestLevelsComeFromTrustedSources: a level counts where a source names it, and nowhere else.
func TestLevelsComeFromTrustedSources(t *testing.T) {
	const header, namespace = "x-level", "envoy.filters.http.jwt_authn"
	metadata, fromHeader := config.Source{Metadata: namespace + "/level"}, config.Source{Header: header}
	for name, tc := range map[string]struct {
		sources  []config.Source
		fallback string
		metadata string
		header   string
		want     string
	}{
		"metadata":                              {[]config.Source{metadata}, "", "high", "", "high"},
		"a header that nobody named":            {[]config.Source{metadata}, "", "", "high", "low"},
		"a header that is a source":             {[]config.Source{fromHeader}, "", "", "high", "high"},
		"the first that names one":              {[]config.Source{metadata, fromHeader}, "", "high", "middle", "high"},
		"one that names no level leaves others": {[]config.Source{metadata, fromHeader}, "", "urgent", "middle", "middle"},
		"none":                                  {[]config.Source{metadata}, "middle", "", "", "middle"},
		"no such level":                         {[]config.Source{metadata}, "middle", "urgent", "", "middle"},
		"white space":                           {[]config.Source{fromHeader}, "", "", "  high ", "high"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *config.Config) {
				enforcing(c, func(*adaptive.Settings) {})
				c.Priority = config.Priority{
					Levels:  []adaptive.Level{{Name: "high", Share: 6}, {Name: "middle", Share: 3}, {Name: "low", Share: 1}},
					Sources: tc.sources, Default: tc.fallback,
				}
			})
			headers := []string{"x-tenant-id", "acme"}
			if tc.header != "" {
				headers = append(headers, header, tc.header)
			}
			begin := rh(early, true, headers...)
			if tc.metadata != "" {
				withMetadata(begin, namespace, "level", tc.metadata)
			}
			s := r.open()
			s.send(begin)
			answer := s.wants("RH")[0]
			for _, l := range r.lanes.Snapshot()["chat"].Levels {
				want := 0
				if l.Name == tc.want {
					want = 1
				}
				if l.ActiveCount != want {
					t.Errorf("%d requests run at level %s, want %d", l.ActiveCount, l.Name, want)
				}
			}
			fields := answer.GetDynamicMetadata().GetFields()[metadataNamespace].GetStructValue().GetFields()
			if got := fields["level"].GetStringValue(); got != tc.want {
				t.Errorf("the access log's level is %q, want %q", got, tc.want)
			}
			s.send(sh("200", true))
			s.wants("SH")
			s.finish()
		})
	}
}
