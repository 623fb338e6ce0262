package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	istioapi "istio.io/api/networking/v1alpha3"
	istiov1alpha3 "istio.io/client-go/pkg/apis/networking/v1alpha3"
	corev1 "k8s.io/api/core/v1"

	"github.com/headgate/headgate/internal/stack"
)

// validate has the real Envoy check a bootstrap; its warnings (deprecated fields) are faults too.
func validate(t *testing.T, bootstrap []byte) {
	t.Helper()
	envoy, err := stack.Finder{Root: filepath.Join("..", "..")}.Envoy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "envoy.yaml")
	if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), envoy, "--mode", "validate", "-c", file, "-l", "warn").CombinedOutput()
	if err != nil || strings.Contains(string(out), "[warning]") {
		t.Errorf("envoy --mode validate: %v\n%s", err, out)
	}
}

func validateProto(t *testing.T, b *bootstrapv3.Bootstrap) {
	t.Helper()
	text, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	validate(t, text)
}

func TestEnvoyAcceptsTheBootstrapsInConfigMaps(t *testing.T) {
	seen := 0
	for _, overlay := range overlays {
		for _, c := range only[*corev1.ConfigMap](build(t, overlay)) {
			text, ok := c.Data["envoy.yaml"]
			if !ok {
				continue
			}
			seen++
			t.Run(overlay, func(t *testing.T) {
				t.Parallel()
				if at := "{socket_address: {address: 0.0.0.0, port_value: 8080}}"; !strings.Contains(text, "- name: ingress\n    address: "+at+"\n") {
					t.Errorf("Envoy's listener is not at %s, where the Service and the kubelet look for it", at)
				}
				validate(t, []byte(text))
			})
		}
	}
	if want := len(bootstraps) + 1; seen != want { // the overlay gateway has that of the base
		t.Errorf("%d overlays have an Envoy configuration, want %d", seen, want)
	}
}

// TestEnvoyAcceptsIstiosFilters puts the patches into a listener as Istio does.
func TestEnvoyAcceptsIstiosFilters(t *testing.T) {
	for _, overlay := range []string{"overlays/istio/gateway", "overlays/istio/workload"} {
		t.Run(overlay, func(t *testing.T) {
			t.Parallel()
			filters := only[*istiov1alpha3.EnvoyFilter](build(t, overlay))
			if len(filters) != 1 {
				t.Fatalf("%d EnvoyFilters, want 1", len(filters))
			}
			validateProto(t, patched(t, filters[0].Spec.ConfigPatches))
		})
	}
}

// patched is a gateway of Istio reduced to what the patches touch, with the patches applied.
func patched(t *testing.T, patches []*istioapi.EnvoyFilter_EnvoyConfigObjectPatch) *bootstrapv3.Bootstrap {
	t.Helper()
	listener := &listenerv3.Listener{}
	manager := &hcmv3.HttpConnectionManager{}
	routes := []*routev3.Route{}
	b := &bootstrapv3.Bootstrap{StaticResources: &bootstrapv3.Bootstrap_StaticResources{}}
	filters := []*hcmv3.HttpFilter{{
		Name: "envoy.filters.http.router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: toAny(t, &routerv3.Router{})},
	}}
	for _, p := range patches {
		value := p.Patch.Value.AsMap()
		switch p.ApplyTo {
		case istioapi.EnvoyFilter_CLUSTER:
			c := &clusterv3.Cluster{}
			unmarshalProto(t, value, c)
			b.StaticResources.Clusters = append(b.StaticResources.Clusters, c)
		case istioapi.EnvoyFilter_LISTENER:
			merge(t, value, listener)
		case istioapi.EnvoyFilter_NETWORK_FILTER:
			network := &listenerv3.Filter{}
			unmarshalProto(t, value, network)
			part := &hcmv3.HttpConnectionManager{}
			if err := network.GetTypedConfig().UnmarshalTo(part); err != nil {
				t.Fatal(err)
			}
			proto.Merge(manager, part)
		case istioapi.EnvoyFilter_HTTP_FILTER:
			f := &hcmv3.HttpFilter{}
			unmarshalProto(t, value, f)
			filters = slices.Insert(filters, len(filters)-1, f) // before the router
		case istioapi.EnvoyFilter_HTTP_ROUTE:
			r := &routev3.Route{}
			unmarshalProto(t, value, r)
			routes = append([]*routev3.Route{r}, routes...)
		default:
			t.Fatalf("a patch applies to %s, which this test does not know", p.ApplyTo)
		}
	}
	merge(t, map[string]any{"stat_prefix": "x", "route_config": map[string]any{"virtual_hosts": []any{
		map[string]any{"name": "x", "domains": []any{"*"}},
	}}}, manager)
	manager.HttpFilters = filters
	manager.GetRouteConfig().VirtualHosts[0].Routes = routes
	merge(t, map[string]any{"name": "x", "address": map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 0}}}, listener)
	listener.FilterChains = []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{
		Name: "envoy.filters.network.http_connection_manager", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: toAny(t, manager)},
	}}}}
	b.StaticResources.Listeners = []*listenerv3.Listener{listener}
	return b
}

func merge[M proto.Message](t *testing.T, value map[string]any, into M) {
	t.Helper()
	part := into.ProtoReflect().New().Interface()
	unmarshalProto(t, value, part)
	proto.Merge(into, part)
}

func toAny(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	packed, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return packed
}
