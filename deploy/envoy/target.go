package envoyconf

import (
	"encoding/json"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"
)

// For is whose configuration is printed.
type For string

// What Render prints for.
const (
	ForEnvoy         For = "envoy"          // an Envoy of one's own: the parts of Part
	ForEnvoyGateway  For = "envoy-gateway"  // the policies of Envoy Gateway
	ForIstioGateway  For = "istio-gateway"  // an EnvoyFilter for an ingress gateway of Istio
	ForIstioWorkload For = "istio-workload" // an EnvoyFilter for the inbound side of a workload in Istio's mesh
)

// Target names the Kubernetes objects that a printed policy is for. Empty fields have the names of the shipped overlays.
type Target struct {
	Namespace string   // of the Gateway and the policies of Envoy Gateway
	Gateway   string   // name of the Gateway, for Envoy Gateway
	Listener  string   // name of its listener
	Routes    []string // names of the HTTPRoutes to govern
	Label     string   // KEY=VALUE of the pods that an EnvoyFilter selects
}

// withDefaults fills in the names of the shipped overlays.
func (t Target) withDefaults(f For) Target {
	t.Namespace, t.Gateway, t.Listener = orElse(t.Namespace, "headgate"), orElse(t.Gateway, "headgate"), orElse(t.Listener, "http")
	if len(t.Routes) == 0 {
		t.Routes = []string{"chat"}
	}
	if f == ForIstioGateway {
		t.Label = orElse(t.Label, "istio=headgate-ingress")
	} else {
		t.Label = orElse(t.Label, "headgate=inbound")
	}
	return t
}

// policy is what the templates of the policies see.
type policy struct {
	*view
	Target
	Name, Context, FilterName     string
	Key, Value                    string // of Label
	Filters, Clusters, APIRoutes  []string
	Patches                       []patch
	NamespacesToRead, RetryPolicy bool
}

// patch is one operation on the filter that Envoy Gateway makes.
type patch struct{ Explanation, Path, Value string }

// policy prepares the objects that target asks for.
func (v *view) policy(o Options, execute func(string) (string, error)) (policy, error) {
	p := policy{view: v, Target: o.Target.withDefaults(o.For), Name: "headgate-inbound", Context: "SIDECAR_INBOUND"}
	if o.For == ForIstioGateway {
		p.Name, p.Context = "headgate-ingress", "GATEWAY"
	}
	key, value, ok := strings.Cut(p.Label, "=")
	if !ok || key == "" || value == "" {
		return p, fmt.Errorf("label %q, want KEY=VALUE", p.Label)
	}
	p.Key, p.Value = key, value
	filter, err := execute(string(Filter))
	if err != nil {
		return p, err
	}
	clusters, err := execute(string(Cluster))
	if err != nil {
		return p, err
	}
	routes, err := execute(string(Routes))
	if err != nil {
		return p, err
	}
	p.Filters, p.Clusters = items(filter), items(clusters)
	for _, route := range items(routes) {
		if strings.HasPrefix(route, "name: "+v.APICluster+"\n") {
			p.APIRoutes = append(p.APIRoutes, route)
		}
	}
	p.FilterName = "envoy.filters.http.ext_proc/envoyextensionpolicy/" + p.Namespace + "/headgate/extproc/0"
	p.NamespacesToRead = len(v.MetadataNamespaces) > 0
	p.Patches, err = patches(filter)
	return p, err
}

// patches are the fields of the processor's filter that Envoy Gateway's policy cannot express.
func patches(filter string) ([]patch, error) {
	var filters []struct {
		TypedConfig map[string]any `yaml:"typed_config"`
	}
	if err := yaml.Unmarshal([]byte(filter), &filters); err != nil {
		return nil, fmt.Errorf("read the printed filter: %w", err)
	}
	fields := filters[len(filters)-1].TypedConfig // a witness comes before it
	var all []patch
	for _, o := range []struct{ explanation, field string }{
		{"Envoy sends the body without waiting, and contacts no upstream before the decision.", "send_body_without_waiting_for_header_response"},
		{"Trailers hold the gRPC stream to the end of the response; the response's body stays with Envoy.", "processing_mode"},
		{"Bodies are never changed, so the upstream may see the client's content-length.", "allow_content_length_header"},
		{"The policy's pattern excludes the name of the cluster.", "request_attributes"},
		{"Who answered: the upstream, or Envoy because it got no answer.", "response_attributes"},
		{"What the sidecar may set or remove, on requests and on its own refusals.", "mutation_rules"},
	} {
		if _, printed := fields[o.field]; !printed {
			continue // the version of Envoy does not know it
		}
		value, err := json.Marshal(fields[o.field])
		if err != nil {
			return nil, fmt.Errorf("write %s: %w", o.field, err)
		}
		all = append(all, patch{o.explanation, "/" + o.field, string(value)})
	}
	return all, nil
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
