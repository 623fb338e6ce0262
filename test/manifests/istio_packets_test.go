package manifests

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/encoding/protojson"
	istiov1alpha3 "istio.io/client-go/pkg/apis/networking/v1alpha3"
	"sigs.k8s.io/yaml"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/internal/stack"
)

// TestIstiosFiltersLetPacketsThrough runs what the EnvoyFilters make of a listener, with routes and clusters as Istio names them,
// in front of a real upstream and with a real sidecar: requests arrive, one that is too large does not, and extproc doctor is
// content.
func TestIstiosFiltersLetPacketsThrough(t *testing.T) {
	for overlay, cluster := range map[string]string{
		"overlays/istio/gateway": "outbound|8080||llm-gateway.headgate.svc.cluster.local", "overlays/istio/workload": "inbound|8080||",
	} {
		t.Run(overlay, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			upstream, err := stack.NewUpstream("")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(upstream.Close)
			sidecar := startSidecar(ctx, t, overlay)
			b := patched(t, only[*istiov1alpha3.EnvoyFilter](build(t, overlay))[0].Spec.ConfigPatches)
			routeTo(t, b, cluster, upstream.Addr(), strings.TrimPrefix(sidecar.Config.Listen.GRPC, "unix://"))
			envoy := startBootstrap(ctx, t, b)

			for body, want := range map[int]int{100: http.StatusOK, 60 << 20: http.StatusRequestEntityTooLarge} {
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, envoy.URL()+"/v1/files", io.LimitReader(blanks{}, int64(body)))
				if err != nil {
					t.Fatal(err)
				}
				r.ContentLength = int64(body)
				answer, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Errorf("%d bytes: %v", body, err)
					continue
				}
				_ = answer.Body.Close()
				if answer.StatusCode != want {
					t.Errorf("%d bytes: %d %s, want %d", body, answer.StatusCode, answer.Header.Get("x-headgate-reason"), want)
				}
			}
			found, err := envoyconf.Examine(sidecar.Config, configDump(t, envoy))
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range found {
				if f.Fault {
					t.Errorf("extproc doctor: %s", f)
				}
			}
		})
	}
}

// blanks is an endless body.
type blanks struct{}

func (blanks) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}

// startSidecar starts a sidecar with the settings of an overlay, on a socket of the test's own.
func startSidecar(ctx context.Context, t *testing.T, overlay string) *stack.Sidecar {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(k8s + overlay + "/headgate.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	settings := strings.Replace(string(text), "/run/headgate/extproc.sock", dir+"/s.sock", 1)
	settings = strings.Replace(settings, "api: 127.0.0.1:9004", `api: ""`, 1)
	free, err := stack.FreePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	settings = strings.Replace(settings, "listen:\n", "listen:\n  admin: "+free[0]+"\n", 1)
	file := filepath.Join(dir, "headgate.yaml")
	if err := os.WriteFile(file, []byte(settings), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "extproc")
	if err := stack.BuildSidecar(ctx, filepath.Join("..", ".."), binary); err != nil {
		t.Fatal(err)
	}
	s, err := stack.StartSidecar(ctx, stack.SidecarOptions{Binary: binary, Config: file})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// routeTo adds what Istio has of itself: a route to the workload's cluster, and that cluster. The sidecar's cluster gets the
// test's socket.
func routeTo(t *testing.T, b *bootstrapv3.Bootstrap, cluster, upstream, socket string) {
	t.Helper()
	manager := &hcmv3.HttpConnectionManager{}
	config := b.GetStaticResources().GetListeners()[0].GetFilterChains()[0].GetFilters()[0].GetTypedConfig()
	if err := config.UnmarshalTo(manager); err != nil {
		t.Fatal(err)
	}
	host := manager.GetRouteConfig().GetVirtualHosts()[0]
	merge(t, map[string]any{"routes": []any{map[string]any{
		"name": "default", "match": map[string]any{"prefix": "/"}, "route": map[string]any{"cluster": cluster, "timeout": "0s"},
	}}}, host)
	if err := config.MarshalFrom(manager); err != nil {
		t.Fatal(err)
	}
	ip, port, _ := strings.Cut(upstream, ":")
	added, err := yaml.YAMLToJSON([]byte(`{static_resources: {clusters: [{name: "` + cluster + `", type: STATIC, load_assignment: {cluster_name: x, endpoints: [
	  {lb_endpoints: [{endpoint: {address: {socket_address: {address: ` + ip + `, port_value: ` + port + `}}}}]}]}}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	var more bootstrapv3.Bootstrap
	if err := protojson.Unmarshal(added, &more); err != nil {
		t.Fatal(err)
	}
	b.StaticResources.Clusters = append(b.StaticResources.Clusters, more.GetStaticResources().GetClusters()...)
	for _, c := range b.GetStaticResources().GetClusters() {
		if c.GetName() == "headgate" {
			c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetPipe().Path = socket
		}
	}
}

// startBootstrap runs a real Envoy.
func startBootstrap(ctx context.Context, t *testing.T, b *bootstrapv3.Bootstrap) *stack.Envoy {
	t.Helper()
	merge(t, map[string]any{"admin": map[string]any{"address": map[string]any{"socket_address": map[string]any{"address": "127.0.0.1", "port_value": 0}}}}, b)
	text, err := protojson.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	binary, err := stack.Finder{Root: filepath.Join("..", "..")}.Envoy(ctx)
	if err != nil {
		t.Fatal(err)
	}
	envoy, err := stack.StartEnvoy(ctx, stack.EnvoyOptions{Binary: binary, Bootstrap: text})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(envoy.Stop)
	return envoy
}

func configDump(t *testing.T, envoy *stack.Envoy) []byte {
	t.Helper()
	r, err := http.Get("http://" + envoy.Admin + "/config_dump")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
