package manifests

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	istiov1 "istio.io/client-go/pkg/apis/networking/v1"
	istiov1alpha3 "istio.io/client-go/pkg/apis/networking/v1alpha3"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const k8s = "../../deploy/k8s/"

// overlays are everything that a user builds, by folder under deploy/k8s.
var overlays = []string{
	"base",
	"overlays/gateway",
	"overlays/gateway-with-redis",
	"overlays/shared-process",
	"overlays/istio/gateway",
	"overlays/istio/workload",
	"overlays/envoy-gateway",
}

// manifest is one object of a built overlay.
type manifest struct {
	object runtime.Object
	yaml   []byte
}

// decoder decodes the kinds that the overlays may have, strictly.
func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, autoscalingv2.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme,
		istiov1.AddToScheme, istiov1alpha3.AddToScheme, gatewayv1.Install, egv1a1.AddToScheme, monitoringv1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatalf("register API types: %v", err)
		}
	}
	return json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true})
}

// build builds an overlay and decodes it. Any object that cannot be decoded ends the test.
func build(t *testing.T, overlay string) []manifest {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.FromSlash(k8s+overlay))
	if err != nil {
		t.Fatalf("kustomize build %s: %v", overlay, err)
	}
	decode := decoder(t)
	var all []manifest
	for _, r := range built.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatalf("%s: %v", r.CurId(), err)
		}
		object, _, err := decode.Decode(text, nil, nil)
		if err != nil {
			t.Fatalf("%s of %s: %v\n%s", r.CurId(), overlay, err, text)
		}
		all = append(all, manifest{object, text})
	}
	if len(all) == 0 {
		t.Fatalf("%s builds nothing", overlay)
	}
	return all
}

// only returns the objects of one type.
func only[T runtime.Object](all []manifest) []T {
	var found []T
	for _, m := range all {
		if object, ok := m.object.(T); ok {
			found = append(found, object)
		}
	}
	return found
}

func TestEveryKustomizationIsBuilt(t *testing.T) {
	built := map[string]bool{}
	for _, o := range overlays {
		built[o] = true
	}
	err := filepath.WalkDir(filepath.FromSlash(k8s), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" {
			return err
		}
		folder, err := filepath.Rel(filepath.FromSlash(k8s), filepath.Dir(path))
		folder = filepath.ToSlash(folder)
		text, readErr := os.ReadFile(path)
		if readErr != nil {
			return readErr
		}
		part := strings.HasPrefix(folder, "overlays/envoy-gateway/")
		if !built[folder] && !part && !strings.Contains(string(text), "kind: Component") {
			t.Errorf("%s is neither built by these tests nor a part of what is", folder)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestOverlaysDecodeStrictly(t *testing.T) {
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) {
			t.Parallel()
			for _, m := range build(t, overlay) {
				checkProto(t, m)
			}
		})
	}
}

func TestStrictMeansStrict(t *testing.T) {
	given := "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {selektor: {a: b}}\n"
	if _, _, err := decoder(t).Decode([]byte(given), nil, nil); err == nil || !strings.Contains(err.Error(), "selektor") {
		t.Errorf("a Service with an unknown field: error %v, want one that names the field", err)
	}
}
