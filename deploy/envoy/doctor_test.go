package envoyconf_test

import (
	"context"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	bufferv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/config"
)

// dumpOf runs a real Envoy with the configuration printed for c, changed by edit, and returns its config_dump.
func dumpOf(t *testing.T, c *config.Config, edit func(*testing.T, *stack.Bootstrap)) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	binary, err := stack.FindEnvoy(ctx)
	if err != nil {
		t.Fatal(err)
	}
	b, err := stack.NewBootstrap(c, envoyconf.Options{})
	if err != nil {
		t.Fatal(err)
	}
	b.FreePorts()
	if edit != nil {
		edit(t, b)
	}
	text, err := b.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envoy, err := stack.StartEnvoy(ctx, stack.EnvoyOptions{Binary: binary, Bootstrap: text})
	if err != nil {
		t.Fatal(err)
	}
	defer envoy.Stop()
	r, err := http.Get("http://" + envoy.Admin + "/config_dump")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	dump, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return dump
}

// processor changes the filter.
func processor(edit func(*extprocv3.ExternalProcessor)) func(*testing.T, *stack.Bootstrap) {
	return func(t *testing.T, b *stack.Bootstrap) {
		if err := b.Processor(edit); err != nil {
			t.Fatal(err)
		}
	}
}

// verifier is a filter that verifies JWTs of one provider.
func verifier(payloadInMetadata string) *jwtv3.JwtAuthentication {
	return &jwtv3.JwtAuthentication{Providers: map[string]*jwtv3.JwtProvider{"tenants": {
		Issuer: "https://issuer.example", PayloadInMetadata: payloadInMetadata,
		JwksSourceSpecifier: &jwtv3.JwtProvider_LocalJwks{LocalJwks: &corev3.DataSource{
			Specifier: &corev3.DataSource_InlineString{InlineString: `{"keys":[{"kty":"oct","alg":"HS256","k":"c2VjcmV0"}]}`},
		}},
	}}}
}

func TestDoctorOnARealEnvoy(t *testing.T) {
	sub := config.Source{Metadata: "envoy.filters.http.jwt_authn/payload/sub"}
	for name, tc := range map[string]struct {
		change func(*config.Config)
		edit   func(*testing.T, *stack.Bootstrap)
		want   string // in a finding; empty means that no fault is found
		note   bool   // the finding is no fault
	}{
		"as printed": {},
		"as printed, for tenants of a JWT": {
			change: func(c *config.Config) { c.Tenant.Sources = []config.Source{sub} },
			edit: func(t *testing.T, b *stack.Bootstrap) {
				if err := b.AddFilter("envoy.filters.http.jwt_authn", verifier("payload"), false); err != nil {
					t.Fatal(err)
				}
			},
		},
		"no filter that verifies": {
			change: func(c *config.Config) { c.Tenant.Sources = []config.Source{sub} },
			want:   "no jwt_authn filter stands before the processor",
		},
		"verified after the processor": {
			change: func(c *config.Config) { c.Tenant.Sources = []config.Source{sub} },
			edit: func(t *testing.T, b *stack.Bootstrap) {
				if err := b.AddFilter("envoy.filters.http.jwt_authn", verifier("payload"), true); err != nil {
					t.Fatal(err)
				}
			},
			want: "envoy.filters.http.jwt_authn comes after the processor",
		},
		"a payload that is put nowhere": {
			change: func(c *config.Config) { c.Tenant.Sources = []config.Source{sub} },
			edit: func(t *testing.T, b *stack.Bootstrap) {
				if err := b.AddFilter("envoy.filters.http.jwt_authn", verifier(""), false); err != nil {
					t.Fatal(err)
				}
			},
			want: "no provider of jwt_authn has payload_in_metadata: payload",
		},
		"metadata that is not forwarded": {
			change: func(c *config.Config) { c.Tenant.Sources = []config.Source{sub} },
			edit:   processor(func(p *extprocv3.ExternalProcessor) { p.MetadataOptions.ForwardingNamespaces = nil }),
			want:   "forwarding_namespaces.untyped lacks envoy.filters.http.jwt_authn",
		},
		"the default time-out":       {edit: processor(func(p *extprocv3.ExternalProcessor) { p.MessageTimeout = nil }), want: "message_timeout is 200ms"},
		"a time-out below the waits": {edit: processor(func(p *extprocv3.ExternalProcessor) { p.MessageTimeout = durationpb.New(5 * time.Second) }), want: "message_timeout is 5s, but the sidecar may be silent for 9s"},
		"no bodies": {edit: processor(func(p *extprocv3.ExternalProcessor) {
			p.ProcessingMode.RequestBodyMode = extprocv3.ProcessingMode_NONE
			p.SendBodyWithoutWaitingForHeaderResponse = false
		}), want: "request_body_mode is NONE"},
		"buffered bodies": {edit: processor(func(p *extprocv3.ExternalProcessor) {
			p.ProcessingMode.RequestBodyMode = extprocv3.ProcessingMode_BUFFERED
			p.SendBodyWithoutWaitingForHeaderResponse = false
		}), want: "request_body_mode is BUFFERED", note: true},
		"bodies that wait": {edit: processor(func(p *extprocv3.ExternalProcessor) { p.SendBodyWithoutWaitingForHeaderResponse = false }), want: "the upstream is contacted before the decision", note: true},
		"no response headers": {edit: processor(func(p *extprocv3.ExternalProcessor) {
			p.ProcessingMode.ResponseHeaderMode = extprocv3.ProcessingMode_SKIP
		}), want: "response_header_mode is SKIP"},
		"no trailers": {edit: processor(func(p *extprocv3.ExternalProcessor) {
			p.ProcessingMode.ResponseTrailerMode = extprocv3.ProcessingMode_SKIP
		}), want: "response_trailer_mode is not SEND"},
		"failing open":                   {edit: processor(func(p *extprocv3.ExternalProcessor) { p.FailureModeAllow = true }), want: "failure_mode_allow is true", note: true},
		"no attribute for the cluster":   {edit: processor(func(p *extprocv3.ExternalProcessor) { p.RequestAttributes = []string{"xds.route_name"} }), want: "request_attributes lacks xds.cluster_name", note: true},
		"no details of responses":        {edit: processor(func(p *extprocv3.ExternalProcessor) { p.ResponseAttributes = nil }), want: "response_attributes lacks response.code_details", note: true},
		"a small buffer":                 {edit: func(_ *testing.T, b *stack.Bootstrap) { b.BufferLimit(32 << 10) }, want: "per_connection_buffer_limit_bytes is 32768"},
		"a filter that buffers first":    {edit: withBuffer, want: "collects whole bodies before the sidecar", note: true},
		"breakers at their default":      {edit: withoutBreakers, want: "circuit_breakers.max_requests is 1024"},
		"a route that ends after 15 s":   {edit: withDefaultTimeout, want: "its timeout is 15s", note: true},
		"settings for an unknown name":   {change: func(c *config.Config) { c.Clusters["chta"] = c.Clusters["chat"] }, edit: withoutRoute("chta"), want: `settings for "chta", but no governed route`},
		"a cluster without its settings": {change: func(c *config.Config) { delete(c.Clusters, "chat") }, want: `no settings of its own for it: those of "*" count`, note: true},
		"TLS that Envoy does not speak":  {change: withTLS, edit: speaking(nil), want: "it speaks no TLS, which listen.grpcTLS asks for"},
		"TLS that only Envoy speaks":     {edit: speaking(&tlsv3.UpstreamTlsContext{}), want: "it speaks TLS, but listen.grpcTLS is not set"},
		"TLS without Envoy's own":        {change: withTLS, edit: speaking(&tlsv3.UpstreamTlsContext{}), want: "it shows no certificate"},
		"no processor at all":            {edit: withoutProcessor, want: "nothing is governed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := demo(t)
			c.Listen.GRPC = "unix://" + filepath.Join(t.TempDir(), "nobody.sock")
			if tc.change != nil {
				tc.change(c)
			}
			found, err := envoyconf.Examine(c, dumpOf(t, c, tc.edit))
			if err != nil {
				t.Fatal(err)
			}
			matched := false
			for _, f := range found {
				if tc.want == "" && f.Fault {
					t.Errorf("found %s", f)
				}
				matched = matched || strings.Contains(f.Message, tc.want) && f.Fault != tc.note
			}
			if tc.want != "" && !matched {
				t.Errorf("found %v, want one with %q, a note: %v", found, tc.want, tc.note)
			}
		})
	}
}

func withTLS(c *config.Config) {
	c.Listen.GRPCTLS = config.ServerTLS{CertFile: "tls.crt", KeyFile: "tls.key", ClientCAFile: "ca.crt"}
}

// speaking has every cluster speak TLS, or none.
func speaking(tls *tlsv3.UpstreamTlsContext) func(*testing.T, *stack.Bootstrap) {
	return func(t *testing.T, b *stack.Bootstrap) {
		for _, c := range b.GetStaticResources().GetClusters() {
			c.TransportSocket = nil
			if tls == nil {
				continue
			}
			packed, err := anypb.New(tls)
			if err != nil {
				t.Fatal(err)
			}
			c.TransportSocket = &corev3.TransportSocket{Name: "envoy.transport_sockets.tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed}}
		}
	}
}

func withBuffer(t *testing.T, b *stack.Bootstrap) {
	if err := b.AddFilter("envoy.filters.http.buffer", &bufferv3.Buffer{MaxRequestBytes: wrapperspb.UInt32(1 << 20)}, false); err != nil {
		t.Fatal(err)
	}
}

func withoutBreakers(_ *testing.T, b *stack.Bootstrap) {
	for _, c := range b.GetStaticResources().GetClusters() {
		c.CircuitBreakers = nil
	}
}

// eachRoute calls edit with every list of routes.
func eachRoute(t *testing.T, b *stack.Bootstrap, edit func([]*routev3.Route) []*routev3.Route) {
	t.Helper()
	err := b.Connections(func(m *hcmv3.HttpConnectionManager) error {
		for _, h := range m.GetRouteConfig().GetVirtualHosts() {
			h.Routes = edit(h.GetRoutes())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func withDefaultTimeout(t *testing.T, b *stack.Bootstrap) {
	eachRoute(t, b, func(all []*routev3.Route) []*routev3.Route {
		for _, r := range all {
			r.GetRoute().Timeout = nil
		}
		return all
	})
}

func withoutRoute(cluster string) func(*testing.T, *stack.Bootstrap) {
	return func(t *testing.T, b *stack.Bootstrap) {
		eachRoute(t, b, func(all []*routev3.Route) []*routev3.Route {
			var kept []*routev3.Route
			for _, r := range all {
				if r.GetRoute().GetCluster() != cluster {
					kept = append(kept, r)
				}
			}
			return kept
		})
	}
}

func withoutProcessor(t *testing.T, b *stack.Bootstrap) {
	err := b.Connections(func(m *hcmv3.HttpConnectionManager) error {
		var kept []*hcmv3.HttpFilter
		for _, f := range m.GetHttpFilters() {
			if !strings.HasPrefix(f.GetName(), "envoy.filters.http.ext_proc") {
				kept = append(kept, f)
			}
		}
		m.HttpFilters = kept
		for _, h := range m.GetRouteConfig().GetVirtualHosts() {
			for _, r := range h.GetRoutes() {
				r.TypedPerFilterConfig = nil
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDoctorRefusesWhatIsNoDump(t *testing.T) {
	for text, want := range map[string]string{"": "read Envoy's config_dump", "<html>": "read Envoy's config_dump", "{}": "has no listeners", `{"configs": 7}`: "read Envoy's config_dump"} {
		if _, err := envoyconf.Examine(config.Default(), []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Examine(%q) = %v, want an error with %q", text, err, want)
		}
	}
}
