package envoyconf_test

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
)

var update = flag.Bool("update", false, "write the shipped files instead of comparing them")

func demo(t *testing.T) *config.Config {
	t.Helper()
	c, err := config.Load(filepath.Join("..", "..", "internal", "stack", "demo.yaml"), nil)
	if err != nil {
		t.Fatalf("load the demo configuration: %v", err)
	}
	return c
}

func render(t *testing.T, c *config.Config, o envoyconf.Options) string {
	t.Helper()
	var b bytes.Buffer
	if err := envoyconf.Render(&b, c, o); err != nil {
		t.Fatalf("Render(%+v): %v", o, err)
	}
	return b.String()
}

func TestShippedFilesAreTheOutput(t *testing.T) {
	for file, want := range map[string]string{
		"envoy.yaml":                     render(t, demo(t), envoyconf.Options{}),
		"snippets/filter.yaml":           render(t, config.Default(), envoyconf.Options{Part: envoyconf.Filter}),
		"snippets/filter-fail-open.yaml": render(t, config.Default(), envoyconf.Options{Part: envoyconf.Filter, FailOpen: true}),
		"snippets/cluster.yaml":          render(t, config.Default(), envoyconf.Options{Part: envoyconf.Cluster}),
		"snippets/routes.yaml":           render(t, demo(t), envoyconf.Options{Part: envoyconf.Routes}),
	} {
		t.Run(file, func(t *testing.T) {
			if *update {
				if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			got, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, string(got)); diff != "" {
				t.Errorf("the file differs from what Render writes; run go test ./deploy/envoy -update (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEnvoyAcceptsTheOutput(t *testing.T) {
	envoy, err := stack.FindEnvoy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unix := config.Default()
	wide := demo(t)
	wide.Listen.GRPC, wide.Listen.API = "0.0.0.0:9002", "[::]:9004"
	wide.Tenant.Sources = []config.Source{{Metadata: "envoy.filters.http.jwt_authn/payload/sub"}, {Attribute: "source.address"}}
	named := config.Default()
	named.Listen.GRPC, named.Listen.API = "headgate.gateway.svc:9002", ""
	framed := demo(t)
	framed.Bytes.Count = budget.CountFramed
	framed.Clusters["open"] = config.Cluster{Lanes: adaptive.Settings{Mode: adaptive.Off}, Protocol: config.HTTP1}
	for name, text := range map[string]string{
		"framed, and a cluster without lanes":    render(t, framed, envoyconf.Options{}),
		"the shipped bootstrap":                  render(t, demo(t), envoyconf.Options{}),
		"failing open":                           render(t, demo(t), envoyconf.Options{FailOpen: true}),
		"a unix socket, no leases":               render(t, unix, envoyconf.Options{}),
		"all interfaces, metadata and attribute": render(t, wide, envoyconf.Options{}),
		"a host name, no API":                    render(t, named, envoyconf.Options{}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "envoy.yaml")
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			out, err := exec.CommandContext(t.Context(), envoy, "--mode", "validate", "-c", file, "-l", "warn").CombinedOutput()
			if err != nil || strings.Contains(string(out), "[warning]") {
				t.Errorf("envoy --mode validate: %v\n%s", err, out)
			}
		})
	}
}

func TestRenderFollowsTheSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*config.Config)
		options envoyconf.Options
		want    []string
		not     []string
	}{
		"the defaults wait 8 s, so Envoy waits 10 s": {
			want: []string{"message_timeout: 10s", "per_connection_buffer_limit_bytes: 1048576", "failure_mode_allow: false"},
			not:  []string{"The namespaces that the configured tenant and principal sources read"},
		},
		"no variants of routes where lanes want the body": {not: []string{"name: content-length", "request_timeout"}},
		"small bodies stay with Envoy where nothing governs": {
			change: func(c *config.Config) {
				c.Clusters["default"] = config.Cluster{Lanes: adaptive.Settings{Mode: adaptive.Off}}
			},
			want: []string{"match: prefix: / headers: - name: content-length range_match: {start: 0, end: 32769} route: {cluster: default, timeout: 0s}",
				"processing_mode: {request_header_mode: SEND, request_body_mode: NONE, request_trailer_mode: SKIP, response_header_mode: SKIP,"},
			not: []string{"safe_regex"},
		},
		"but not where messages are capped": {
			change: func(c *config.Config) {
				c.Clusters["default"] = config.Cluster{Lanes: adaptive.Settings{Mode: adaptive.Off}}
				c.Bytes.Structure.HardMaxMessages = 1
			},
			not: []string{"name: content-length"},
		},
		"framed bodies stay with Envoy": {
			change: func(c *config.Config) { c.Bytes.Count = budget.CountFramed },
			want: []string{`match: path: /v1/messages case_sensitive: false headers: - name: content-length string_match: {safe_regex: {regex: "0|[1-9][0-9]{0,17}"}} route: {cluster: chat`,
				"request_body_mode: NONE, request_trailer_mode: SKIP, response_header_mode: SEND, response_body_mode: NONE, response_trailer_mode: SEND}", "request_timeout: 300s"},
		},
		"framed, with lanes that see the response": {
			change: func(c *config.Config) {
				c.Bytes.Count = budget.CountFramed
				c.Clusters["chat"] = config.Cluster{Lanes: adaptive.Settings{Mode: adaptive.Enforce, FirstToken: adaptive.FirstTokenBody}}
			},
			want: []string{"request_body_mode: NONE, request_trailer_mode: SKIP, response_header_mode: SEND, response_body_mode: STREAMED,"},
		},
		"a longer decision, idle time included": {
			change: func(c *config.Config) { c.Decision.MaxWait, c.Decision.UploadIdle = 30*time.Second, 5*time.Second },
			want:   []string{"message_timeout: 36s"},
		},
		"a byte wait longer than any decision": {
			change: func(c *config.Config) { c.Bytes.Queue.MaxWait = time.Minute },
			want:   []string{"message_timeout: 61s"},
		},
		"a large evidence window": {
			change: func(c *config.Config) { c.Decision.Window = 64 << 20 },
			want:   []string{"per_connection_buffer_limit_bytes: 134217728", "initial_connection_window_size: 2147483647"},
		},
		"sources name what Envoy must hand over, each once": {
			change: func(c *config.Config) {
				c.Tenant.Sources = []config.Source{{Metadata: "envoy.filters.http.jwt_authn/payload/sub"}, {Attribute: "source.address"}}
				c.PrincipalSources = []config.Source{{Metadata: "envoy.filters.http.jwt_authn/payload/azp"}, {Attribute: "xds.route_name"}}
			},
			want: []string{
				"forwarding_namespaces: untyped: - envoy.filters.http.jwt_authn #",
				"- xds.cluster_name - xds.route_name - source.address #",
			},
		},
		"lanes that are enforced want the witness": {
			change: func(c *config.Config) { c.Clusters["chat"] = lanes(adaptive.Enforce, adaptive.FirstTokenAuto) },
			want: []string{
				"- name: envoy.filters.http.ext_proc.witness typed_config:", "stat_prefix: witness", "response_body_mode: STREAMED response_trailer_mode: SKIP",
				"response_body_mode: NONE response_trailer_mode: SEND", "response_attributes: - response.code_details",
				"match: {prefix: /} route: {cluster: default, timeout: 0s} # No limit learns from these responses.",
				"match: {path: /v1/completions, case_sensitive: false} route: {cluster: chat, timeout: 0s} request_headers_to_remove: [x-omniroute-lease-owner] #",
			},
			not: []string{"match: {path: /v1/completions, case_sensitive: false} route: {cluster: chat, timeout: 0s} request_headers_to_remove: [x-omniroute-lease-owner] # No limit"},
		},
		"lanes in shadow cost nothing more": {
			change: func(c *config.Config) { c.Clusters["chat"] = lanes(adaptive.Shadow, adaptive.FirstTokenAuto) },
			not:    []string{"ext_proc.witness"},
		},
		"lanes in shadow with a witness": {
			change: func(c *config.Config) { c.Clusters["chat"] = lanes(adaptive.Shadow, adaptive.FirstTokenWitness) },
			want:   []string{"- name: envoy.filters.http.ext_proc.witness"},
		},
		"lanes that learn from headers": {
			change: func(c *config.Config) { c.Clusters["chat"] = lanes(adaptive.Enforce, adaptive.FirstTokenHeaders) },
			not:    []string{"ext_proc.witness"},
		},
		"lanes that learn from bodies": {
			change: func(c *config.Config) { c.Clusters["chat"] = lanes(adaptive.Enforce, adaptive.FirstTokenBody) },
			want:   []string{"response_body_mode: STREAMED response_trailer_mode: SEND"},
			not:    []string{"ext_proc.witness"},
		},
		"failing open": {options: envoyconf.Options{FailOpen: true}, want: []string{"failure_mode_allow: true"}},
		"readers that may be slow": {
			options: envoyconf.Options{StreamIdle: 90 * time.Second},
			want:    []string{"stream_idle_timeout: 90s"}, not: []string{"stream_idle_timeout: 1800s"},
		},
		"a socket and a path": {
			change: func(c *config.Config) { c.Listen.GRPC = "unix:///run/x y/s.sock" },
			want:   []string{`{pipe: {path: "/run/x y/s.sock"}}`},
		},
		"a listener on every interface": {
			options: envoyconf.Options{Listen: "0.0.0.0:8080", Admin: "[::1]:9901"},
			want:    []string{"address: {socket_address: {address: 0.0.0.0, port_value: 8080}}", `address: {socket_address: {address: "::1", port_value: 9901}}`},
		},
		"a listener without a host": {
			options: envoyconf.Options{Listen: ":8080"},
			want:    []string{"address: {socket_address: {address: 0.0.0.0, port_value: 8080}}"},
		},
		"a listener on every interface of IPv6": {
			options: envoyconf.Options{Listen: "[::]:8080"},
			want:    []string{`address: {socket_address: {address: "::", port_value: 8080}}`},
		},
		"HTTP/1.1 servers get HTTP/1.1, also from clients with HTTP/2": {
			change: func(c *config.Config) { c.Clusters = config.Default().Clusters },
			want:   []string{"explicit_http_config: http_protocol_options: enable_trailers: true"},
			not:    []string{"use_downstream_protocol_config", "wait_for_warm_on_init"},
		},
		"a cluster for gRPC gets HTTP/2": {
			change: func(c *config.Config) {
				c.Clusters = config.Default().Clusters
				grpc := c.Cluster(config.AnyCluster)
				grpc.Protocol = config.HTTP2
				c.Clusters["grpc"] = grpc
			},
			want: []string{"- name: grpc type: STATIC", "typed_extension_protocol_options: &http2", "explicit_http_config: http2_protocol_options: {}", "- name: default type: STATIC"},
		},
		"connections speak what their cluster speaks": {
			change: func(c *config.Config) {
				c.Clusters[config.AnyCluster] = config.Default().Cluster(config.AnyCluster)
				leased := c.Cluster("leased")
				leased.Protocol = config.HTTP2
				c.Clusters["leased"] = leased
			},
			want: []string{"- name: acct-1 type: STATIC connect_timeout: 5s load_assignment: cluster_name: acct-1 endpoints: - lb_endpoints: - endpoint: address: {socket_address: {address: 127.0.0.1, port_value: 9001}} circuit_breakers: *wide # HTTP/2"},
		},
		"an upstream with a name does not hold up the start": {
			options: envoyconf.Options{Upstream: "llm-gateway:8080"},
			want:    []string{"type: STRICT_DNS connect_timeout: 5s # Envoy starts, and serves its other clusters, also while no name server answers. wait_for_warm_on_init: false"},
		},
		"no API": {
			change: func(c *config.Config) { c.Listen.API = "" },
			not:    []string{"session-leases", "The sidecar's own API"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := demo(t)
			if tc.change != nil {
				tc.change(c)
			}
			got := strings.Join(strings.Fields(render(t, c, tc.options)), " ")
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("output lacks %q: %s", want, got)
				}
			}
			for _, not := range tc.not {
				if strings.Contains(got, not) {
					t.Errorf("output has %q, which does not belong there", not)
				}
			}
		})
	}
}

// lanes are a cluster's settings with that mode and way to see first tokens.
func lanes(mode adaptive.Mode, first adaptive.FirstToken) config.Cluster {
	c := config.Default().Cluster(config.AnyCluster)
	c.Lanes.Mode, c.Lanes.FirstToken = mode, first
	return c
}

func TestRenderRefusesWhatItCannotRender(t *testing.T) {
	for name, tc := range map[string]struct {
		change  func(*config.Config)
		options envoyconf.Options
		want    string
	}{
		"an unknown part":           {options: envoyconf.Options{Part: "listener"}, want: `unknown part "listener"`},
		"a listener without a port": {options: envoyconf.Options{Listen: "127.0.0.1"}, want: "address of Envoy's listener"},
		"a listener with a name":    {options: envoyconf.Options{Listen: "gateway:8080"}, want: "listens on an IP address"},
		"a port that is none":       {options: envoyconf.Options{Upstream: "127.0.0.1:70000"}, want: "address of the upstream"},
		"an address that is none":   {change: func(c *config.Config) { c.Listen.GRPC = "nowhere" }, want: "address of listen.grpc"},
	} {
		t.Run(name, func(t *testing.T) {
			c := demo(t)
			if tc.change != nil {
				tc.change(c)
			}
			err := envoyconf.Render(&bytes.Buffer{}, c, tc.options)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Render = %v, want an error with %q", err, tc.want)
			}
		})
	}
}

// TestFramedBodiesAreReadWhereALeaseNeedsThem: which connections may serve a request depends on the model that its body names.
func TestFramedBodiesAreReadWhereALeaseNeedsThem(t *testing.T) {
	for models, want := range map[string]bool{"*": true, "gpt-4o": false} {
		c := demo(t)
		c.Bytes.Count = budget.CountFramed
		connections := c.Leases.Pools["leased"].Connections
		for i := range connections {
			connections[i].Models = []string{models}
		}
		text := strings.Join(strings.Fields(render(t, c, envoyconf.Options{Part: envoyconf.Routes})), " ")
		if got := strings.Contains(text, "prefix: /leased/ case_sensitive: false headers: - name: content-length"); got != want {
			t.Errorf("models %s: bodies stay with Envoy: %t, want %t", models, got, want)
		}
	}
}
