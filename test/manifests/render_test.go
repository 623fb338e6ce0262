package manifests

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"text/template"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/pkg/config"
)

var update = flag.Bool("update", false, "write the printed files instead of comparing them")

// load loads a sidecar configuration under deploy/k8s.
func load(t *testing.T, path string, environ ...string) *config.Config {
	t.Helper()
	c, err := config.Load(filepath.FromSlash(k8s+path), environ)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
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

// bootstraps are the Envoy configurations of the pods that run Envoy by themselves, with the options that print them:
//
//	extproc envoy --config headgate.yaml --listen 0.0.0.0:8080 --upstream …
var bootstraps = map[string]envoyconf.Options{
	"base":                        {Listen: "0.0.0.0:8080", Upstream: "llm-gateway:8080"},
	"overlays/gateway-with-redis": {Listen: "0.0.0.0:8080", Upstream: "llm-gateway:8080"},
	"overlays/shared-process":     {Listen: "0.0.0.0:8080", Upstream: "127.0.0.1:8000"},
}

// parts is what the templates of the printed manifests see.
type parts struct {
	Name, Selector, Context                     string
	Filters, Clusters, APIRoutes                []string
	MessageTimeout, FilterName                  string
	BufferLimit, StreamWindow, ConnectionWindow int64
	Patches                                     []patch
}

// patch is one operation on the filter that Envoy Gateway makes.
type patch struct{ Explanation, Path, Value string }

// newParts takes apart what `extproc envoy` prints.
func newParts(t *testing.T, c *config.Config) parts {
	t.Helper()
	var all struct {
		StaticResources struct {
			Listeners []struct {
				BufferLimit  int64 `json:"per_connection_buffer_limit_bytes"`
				FilterChains []struct {
					Filters []struct {
						TypedConfig struct {
							HTTP2 struct {
								Stream     int64 `json:"initial_stream_window_size"`
								Connection int64 `json:"initial_connection_window_size"`
							} `json:"http2_protocol_options"`
						} `json:"typed_config"`
					}
				} `json:"filter_chains"`
			}
		} `json:"static_resources"`
	}
	if err := yaml.Unmarshal([]byte(render(t, c, envoyconf.Options{})), &all); err != nil {
		t.Fatal(err)
	}
	listener := all.StaticResources.Listeners[0]
	http2 := listener.FilterChains[0].Filters[0].TypedConfig.HTTP2
	p := parts{
		Filters:     items(render(t, c, envoyconf.Options{Part: envoyconf.Filter})),
		Clusters:    items(render(t, c, envoyconf.Options{Part: envoyconf.Cluster})),
		BufferLimit: listener.BufferLimit, StreamWindow: http2.Stream, ConnectionWindow: http2.Connection,
		FilterName: "envoy.filters.http.ext_proc/envoyextensionpolicy/headgate/headgate/extproc/0",
	}
	for _, route := range items(render(t, c, envoyconf.Options{Part: envoyconf.Routes})) {
		if strings.HasPrefix(route, "name: headgate-api\n") {
			p.APIRoutes = append(p.APIRoutes, route)
		}
	}
	filter := filterOf(t, c)
	p.MessageTimeout = filter["message_timeout"].(string)
	for _, o := range []struct{ explanation, field string }{
		{"Envoy sends the body without waiting, and contacts no upstream before the decision.", "send_body_without_waiting_for_header_response"},
		{"Trailers hold the gRPC stream to the end of the response; the response's body stays with Envoy.", "processing_mode"},
		{"Bodies are never changed, so the upstream may see the client's content-length.", "allow_content_length_header"},
		{"The policy's pattern excludes the name of the cluster.", "request_attributes"},
		{"Who answered: the upstream, or Envoy because it got no answer.", "response_attributes"},
		{"What the sidecar may set or remove, on requests and on its own refusals.", "mutation_rules"},
	} {
		value, err := json.Marshal(filter[o.field])
		if err != nil {
			t.Fatal(err)
		}
		p.Patches = append(p.Patches, patch{o.explanation, "/" + o.field, string(value)})
	}
	return p
}

// filterOf returns the fields of the ext_proc filter that `extproc envoy` prints.
func filterOf(t *testing.T, c *config.Config) map[string]any {
	t.Helper()
	var filters []struct {
		TypedConfig map[string]any `json:"typed_config"`
	}
	if err := yaml.Unmarshal([]byte(render(t, c, envoyconf.Options{Part: envoyconf.Filter})), &filters); err != nil {
		t.Fatal(err)
	}
	return filters[len(filters)-1].TypedConfig // a witness comes before it
}

// items splits a YAML list into the text of its items, comments included.
func items(list string) []string {
	var all []string
	for line := range strings.Lines(list) {
		if rest, ok := strings.CutPrefix(line, "- "); ok {
			all = append(all, rest)
		} else if rest, ok := strings.CutPrefix(line, "  "); ok && len(all) > 0 {
			all[len(all)-1] += rest
		}
	}
	return all
}

func fill(t *testing.T, name string, p parts) string {
	t.Helper()
	funcs := template.FuncMap{"indent": func(n int, s string) string {
		pad := strings.Repeat(" ", n)
		return pad + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n"+pad)
	}}
	parsed, err := template.New(name).Funcs(funcs).ParseFiles("templates/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	if err := parsed.Execute(&b, p); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestPrintedFilesAreUpToDate(t *testing.T) {
	want := map[string]string{"components/monitoring/prometheusrule.yaml": prometheusRule(t)}
	for folder, o := range bootstraps {
		want[folder+"/envoy.yaml"] = render(t, load(t, folder+"/headgate.yaml"), o)
	}
	gateway := newParts(t, load(t, "overlays/istio/gateway/headgate.yaml"))
	gateway.Name, gateway.Selector, gateway.Context = "headgate-ingress", "istio: headgate-ingress", "GATEWAY"
	want["overlays/istio/gateway/envoyfilter.yaml"] = fill(t, "istio.yaml.tmpl", gateway)
	workload := newParts(t, load(t, "overlays/istio/workload/headgate.yaml"))
	workload.Name, workload.Selector, workload.Context = "headgate-inbound", "headgate: inbound", "SIDECAR_INBOUND"
	want["overlays/istio/workload/envoyfilter.yaml"] = fill(t, "istio.yaml.tmpl", workload)
	want["overlays/envoy-gateway/routes/policies.yaml"] = fill(t, "envoy-gateway.yaml.tmpl",
		newParts(t, load(t, "overlays/envoy-gateway/infrastructure/headgate.yaml")))

	for file, text := range want {
		path := filepath.FromSlash(k8s + file)
		if *update {
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		got, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if diff := cmp.Diff(text, string(got)); diff != "" {
			t.Errorf("%s is not what is printed now; run go test . -update (-want +got):\n%s", file, diff)
		}
	}
}
