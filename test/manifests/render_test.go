package manifests

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"

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

func TestPrintedFilesAreUpToDate(t *testing.T) {
	want := map[string]string{"components/monitoring/prometheusrule.yaml": prometheusRule(t)}
	for folder, o := range bootstraps {
		want[folder+"/envoy.yaml"] = render(t, load(t, folder+"/headgate.yaml"), o)
	}
	for file, from := range map[string]struct {
		settings string
		target   envoyconf.For
	}{
		"overlays/istio/gateway/envoyfilter.yaml":     {"overlays/istio/gateway/headgate.yaml", envoyconf.ForIstioGateway},
		"overlays/istio/workload/envoyfilter.yaml":    {"overlays/istio/workload/headgate.yaml", envoyconf.ForIstioWorkload},
		"overlays/envoy-gateway/routes/policies.yaml": {"overlays/envoy-gateway/infrastructure/headgate.yaml", envoyconf.ForEnvoyGateway},
	} {
		want[file] = render(t, load(t, from.settings), envoyconf.Options{For: from.target})
	}

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
