package manifests

import (
	"encoding/json"
	"os"
	"strconv"
	"testing"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3" // in the recording
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3" // in the recording
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"                        // in the recording
	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	"github.com/ohler55/ojg/jp"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/testing/protocmp"
	"sigs.k8s.io/yaml"
)

// envoyGateway is what Envoy Gateway makes of the overlay without its EnvoyPatchPolicy; the file tells how it was recorded.
type envoyGateway struct {
	Listener  map[string]any `json:"listener"`
	Cluster   map[string]any `json:"cluster"`
	Endpoints map[string]any `json:"endpoints"`
}

func recorded(t *testing.T) envoyGateway {
	t.Helper()
	text, err := os.ReadFile("testdata/envoy-gateway.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var r envoyGateway
	if err := yaml.UnmarshalStrict(text, &r); err != nil {
		t.Fatal(err)
	}
	return r
}

// TestEnvoyGatewayPatchAddsWhatThePolicyCannotSay applies the EnvoyPatchPolicy to the recorded listener as Envoy Gateway
// does: by JSON path on the resource with the field names of the protocol.
func TestEnvoyGatewayPatchAddsWhatThePolicyCannotSay(t *testing.T) {
	given := recorded(t)
	policies := only[*egv1a1.EnvoyPatchPolicy](build(t, "overlays/envoy-gateway"))
	if len(policies) != 1 {
		t.Fatalf("%d EnvoyPatchPolicies, want 1", len(policies))
	}
	listener := &listenerv3.Listener{}
	unmarshalProto(t, given.Listener, listener)
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(listener)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range policies[0].Spec.JSONPatches {
		if p.Name != listener.GetName() {
			t.Fatalf("the patch is for %s, Envoy Gateway's listener is %s", p.Name, listener.GetName())
		}
		text = applyPatch(t, text, p.Operation)
	}
	patched := &listenerv3.Listener{}
	if err := protojson.Unmarshal(text, patched); err != nil {
		t.Fatal(err)
	}

	manager := &hcmv3.HttpConnectionManager{}
	chain := patched.GetDefaultFilterChain()
	if err := chain.GetFilters()[0].GetTypedConfig().UnmarshalTo(manager); err != nil {
		t.Fatal(err)
	}
	got, want := &extprocv3.ExternalProcessor{}, &extprocv3.ExternalProcessor{}
	if err := manager.GetHttpFilters()[0].GetTypedConfig().UnmarshalTo(got); err != nil {
		t.Fatal(err)
	}
	printed := filterOf(t, load(t, "overlays/envoy-gateway/infrastructure/headgate.yaml"))
	delete(printed, "@type")
	unmarshalProto(t, printed, want)
	// Envoy Gateway names the cluster and its authority, and adds a time-out that Envoy does not use here.
	ignored := protocmp.IgnoreFields(want.GetGrpcService(), "envoy_grpc", "timeout")
	if diff := cmp.Diff(want, got, protocmp.Transform(), ignored); diff != "" {
		t.Errorf("the patched filter is not what extproc envoy prints (-want +got):\n%s", diff)
	}

	// Envoy validates it with routes and endpoints in place of a control plane that delivers them.
	manager.RouteSpecifier = nil
	merge(t, map[string]any{"route_config": map[string]any{"virtual_hosts": []any{map[string]any{"name": "x", "domains": []any{"*"}}}}}, manager)
	chain.GetFilters()[0].ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: toAny(t, manager)}
	cluster := &clusterv3.Cluster{}
	unmarshalProto(t, given.Cluster, cluster)
	if target := got.GetGrpcService().GetEnvoyGrpc().GetClusterName(); target != cluster.GetName() {
		t.Errorf("the filter asks cluster %s, the sidecar's is %s", target, cluster.GetName())
	}
	cluster.EdsClusterConfig, cluster.ClusterDiscoveryType = nil, &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	cluster.LoadAssignment = &endpointv3.ClusterLoadAssignment{}
	unmarshalProto(t, given.Endpoints, cluster.LoadAssignment)
	b := &bootstrapv3.Bootstrap{StaticResources: &bootstrapv3.Bootstrap_StaticResources{
		Listeners: []*listenerv3.Listener{patched}, Clusters: []*clusterv3.Cluster{cluster},
	}}
	validateProto(t, b)
}

// applyPatch applies one operation. A JSON path that finds nothing is a fault, as it is for Envoy Gateway.
func applyPatch(t *testing.T, document []byte, o egv1a1.JSONPatchOperation) []byte {
	t.Helper()
	path, err := jp.ParseString(*o.JSONPath)
	if err != nil {
		t.Fatalf("%s: %v", *o.JSONPath, err)
	}
	var tree any
	if err := json.Unmarshal(document, &tree); err != nil {
		t.Fatal(err)
	}
	found := path.Locate(tree, 0)
	if len(found) != 1 {
		t.Fatalf("%s finds %d places in the listener, want 1", *o.JSONPath, len(found))
	}
	operation, err := json.Marshal([]map[string]any{{"op": o.Op, "path": pointer(t, found[0]) + *o.Path, "value": o.Value}})
	if err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(operation)
	if err != nil {
		t.Fatal(err)
	}
	done, err := patch.Apply(document)
	if err != nil {
		t.Fatalf("%s: %v", operation, err)
	}
	return done
}

// pointer turns a normalised JSON path into a JSON pointer.
func pointer(t *testing.T, path jp.Expr) string {
	t.Helper()
	text := ""
	for _, step := range path {
		switch s := step.(type) {
		case jp.Root:
		case jp.Child:
			text += "/" + string(s)
		case jp.Nth:
			text += "/" + strconv.Itoa(int(s))
		default:
			t.Fatalf("a JSON path with a step of type %T", s)
		}
	}
	return text
}
