package manifests

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/pkg/config"
)

const (
	helmFolder = "../../deploy/helm/"
	chart      = helmFolder + "headgate"
)

// buildHelm builds Helm from its module once; the path is absolute.
var buildHelm = sync.OnceValues(func() (string, error) {
	path, err := filepath.Abs("../../build/helm")
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "go", "build", "-C", "../../tools/helm", "-o", path, "helm.sh/helm/v3/cmd/helm").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build helm: %w\n%s", err, out)
	}
	return path, nil
})

// helm runs Helm and returns what it prints to standard output.
func helm(t *testing.T, args ...string) (string, error) {
	t.Helper()
	path, err := buildHelm()
	if err != nil {
		t.Fatal(err)
	}
	if args[0] == "template" { // releases of Helm have the version of Kubernetes that was the latest then; a build of the module has 1.20
		args = append(args, "--kube-version", "1.33.0")
	}
	home := t.TempDir()
	c := exec.CommandContext(t.Context(), path, args...)
	c.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home, "KUBECONFIG=/dev/null")
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("helm %s: %w\n%s%s", strings.Join(args, " "), err, &stdout, &stderr)
	}
	return stdout.String(), nil
}

// TestChartFilesAreUpToDate: what the chart has from elsewhere is the same there: the settings of the base, the Envoy configuration
// printed for them, alerts, dashboard, and the schema of the configuration within that of the values.
func TestChartFilesAreUpToDate(t *testing.T) {
	for to, from := range map[string]string{
		"headgate.yaml": k8s + "base/headgate.yaml", "envoy.yaml": k8s + "base/envoy.yaml", "lifecycle.sh": k8s + "base/lifecycle.sh",
		"alerts.yaml": monitoring + "alerts.yaml", "dashboard.json": monitoring + "dashboard.json",
	} {
		want, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if to == "headgate.yaml" { // where the schema is differs
			want = bytes.Replace(want, []byte("$schema=../../"), []byte("$schema=../../../"), 1)
		}
		same(t, chart+"/files/"+to, want)
	}
	settings, err := config.Load(k8s+"base/headgate.yaml", nil)
	if err != nil {
		t.Fatal(err)
	}
	example := render(t, settings, envoyconf.Options{Listen: "0.0.0.0:8080", Upstream: "127.0.0.1:8000"})
	same(t, helmFolder+"sidecar-example/files/envoy.yaml", []byte(example))
	var values map[string]any
	text, err := os.ReadFile(helmFolder + "values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	var schema bytes.Buffer
	if err := config.Schema(&schema); err != nil {
		t.Fatal(err)
	}
	var properties map[string]any
	if err := json.Unmarshal(schema.Bytes(), &properties); err != nil {
		t.Fatal(err)
	}
	delete(properties, "$schema")
	values["properties"].(map[string]any)["config"] = properties
	want, err := json.MarshalIndent(values, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	same(t, chart+"/values.schema.json", append(want, '\n'))
}

// same compares a file, or writes it with -update.
func same(t *testing.T, path string, want []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is out of date (%v); run make generate", path, err)
	}
}

// TestChartIsWhatKustomizeBuilds: the chart's objects are those of the overlay, but for names that hold the release's and labels and
// annotations of Helm's own. All decode strictly.
func TestChartIsWhatKustomizeBuilds(t *testing.T) {
	for values, overlay := range map[string]string{"": "base", "examples/gateway.yaml": "overlays/gateway"} {
		t.Run(overlay, func(t *testing.T) {
			args := []string{"template", "gateway", chart}
			if values != "" {
				args = append(args, "--values", chart+"/"+values)
			}
			out, err := helm(t, args...)
			if err != nil {
				t.Fatal(err)
			}
			got, want := map[string]any{}, map[string]any{}
			for _, text := range documents(out) {
				if _, _, err := decoder(t).Decode([]byte(text), nil, nil); err != nil {
					t.Errorf("%v\n%s", err, text)
				}
				addObject(t, got, []byte(text))
			}
			for _, m := range build(t, overlay) {
				addObject(t, want, m.yaml)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the chart differs from %s (-kustomize +helm):\n%s", overlay, diff)
			}
		})
	}
}

// documents are the objects in what Helm prints.
func documents(out string) []string {
	var found []string
	for text := range strings.SplitSeq(out, "\n---\n") {
		if strings.Contains(text, "\nkind: ") {
			found = append(found, strings.TrimPrefix(text, "---\n")+"\n")
		}
	}
	return found
}

// addObject adds an object by kind and name, in the form that both tools share.
func addObject(t *testing.T, to map[string]any, text []byte) {
	t.Helper()
	var object map[string]any
	if err := yaml.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	metadata := object["metadata"].(map[string]any)
	delete(metadata, "labels") // of the object; those of pods and selectors count
	delete(metadata, "namespace")
	kind, name := object["kind"].(string), sharedName(metadata["name"].(string))
	if kind == "PodMonitor" || kind == "PrometheusRule" {
		name = "gateway"
	}
	metadata["name"] = name
	if kind == "Deployment" {
		template := object["spec"].(map[string]any)["template"].(map[string]any)
		delete(template["metadata"].(map[string]any), "annotations")
		spec := template["spec"].(map[string]any)
		for _, v := range spec["volumes"].([]any) {
			if c, ok := v.(map[string]any)["configMap"].(map[string]any); ok {
				c["name"] = sharedName(c["name"].(string))
			}
		}
		for _, list := range []string{"containers", "initContainers"} {
			for _, c := range spec[list].([]any) {
				delete(c.(map[string]any), "imagePullPolicy")
			}
		}
	}
	if data, ok := object["data"].(map[string]any); ok && data["headgate.yaml"] != nil { // the line that names the schema
		_, rest, _ := strings.Cut(data["headgate.yaml"].(string), "\n")
		data["headgate.yaml"] = rest
	}
	to[kind+" "+name] = object
}

// sharedName is the name of a ConfigMap without the release and without the hash of its content.
func sharedName(name string) string {
	name = strings.TrimPrefix(name, "gateway-")
	if strings.HasPrefix(name, "envoy-config") {
		return "envoy-config"
	}
	return name
}

// TestChartLints: helm lint finds nothing with every documented values file, and the schema refuses what is wrong by its path.
func TestChartLints(t *testing.T) {
	examples, err := filepath.Glob(chart + "/examples/*.yaml")
	if err != nil || len(examples) == 0 {
		t.Fatalf("%d examples (%v), want some", len(examples), err)
	}
	for _, args := range append([][]string{nil}, perFile(examples)...) {
		if _, err := helm(t, append([]string{"lint", "--strict", chart}, args...)...); err != nil {
			t.Error(err)
		}
	}
	for wrong, want := range map[string]string{
		"replica=3":                          "replica",
		"replicas=many":                      "replicas",
		"image.digest=latest":                "digest",
		"service.port=0":                     "port",
		"config.bytes.largeBdy=1":            "largeBdy",
		"config.clusters.chat.lanes.mode=on": "mode",
		"config.decision.maxWait=5":          "maxWait",
		"envoy.resources.limits.memory=null": "memory",
	} {
		if _, err := helm(t, "template", "x", chart, "--set", wrong); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: %v, want a refusal that names %s", wrong, err, want)
		}
	}
}

func perFile(files []string) (all [][]string) {
	for _, f := range files {
		all = append(all, []string{"--values", f})
	}
	return all
}

// TestChartPassesValuesOn: settings, image by digest and Envoy's configuration arrive where they belong; a changed Envoy
// configuration replaces the pods, changed settings do not.
func TestChartPassesValuesOn(t *testing.T) {
	digest := "sha256:" + strings.Repeat("ab", 32)
	template := func(args ...string) string {
		out, err := helm(t, append([]string{"template", "edge", chart, "--set", "image.digest=" + digest}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	checksum := func(out string) string {
		_, rest, _ := strings.Cut(out, "checksum/envoy-config: ")
		sum, _, _ := strings.Cut(rest, "\n")
		return sum
	}
	plain := template()
	if !strings.Contains(plain, "image: headgate/extproc@"+digest+"\n") || !strings.Contains(plain, "name: edge-headgate-config\n") {
		t.Error("the digest or the release's name is not in what is made")
	}
	settings := template("--set", "config.clusters.chat.lanes.mode=enforce", "--set", "config.log.level=debug")
	var made string
	for _, text := range documents(settings) {
		if strings.Contains(text, "name: edge-headgate-config\n") && strings.Contains(text, "kind: ConfigMap") {
			var m struct{ Data map[string]string }
			if err := yaml.Unmarshal([]byte(text), &m); err != nil {
				t.Fatal(err)
			}
			made = m.Data["headgate.yaml"]
		}
	}
	file := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(file, []byte(made), 0o600); err != nil {
		t.Fatal(err)
	}
	if c, err := config.Load(file, nil); err != nil || c.Log.Level != "debug" || c.Cluster("chat").Lanes.Mode != "enforce" {
		t.Errorf("the settings do not arrive: %v\n%s", err, made)
	}
	if a, b := checksum(plain), checksum(settings); a != b || len(a) != 64 {
		t.Errorf("changed settings replace the pods: %s and %s", a, b)
	}
	if a, b := checksum(plain), checksum(template("--set", "envoy.config=admin: {}")); a == b {
		t.Error("a changed Envoy configuration does not replace the pods")
	}
}

// TestSidecarInAnotherChart: a chart that depends on this one has the sidecar in its own Deployment, as the gateway has it but for the
// container it protects, and the ConfigMap it mounts.
func TestSidecarInAnotherChart(t *testing.T) {
	work := t.TempDir()
	for _, name := range []string{"headgate", "sidecar-example"} {
		if err := os.CopyFS(filepath.Join(work, name), os.DirFS(helmFolder+name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := helm(t, "dependency", "build", filepath.Join(work, "sidecar-example")); err != nil {
		t.Fatal(err)
	}
	out, err := helm(t, "template", "app", filepath.Join(work, "sidecar-example"))
	if err != nil {
		t.Fatal(err)
	}
	if objects := documents(out); len(objects) != 4 {
		t.Errorf("%d objects, want the Deployment, its Service and the ConfigMaps of Envoy and of the sidecar:\n%s", len(objects), out)
	}
	sidecar := func(text string) (map[string]any, string) {
		var d struct {
			Spec struct {
				Template struct {
					Spec struct {
						InitContainers []map[string]any
						Volumes        []struct {
							ConfigMap struct{ Name string }
						}
					}
				}
			}
		}
		if err := yaml.Unmarshal([]byte(text), &d); err != nil {
			t.Fatal(err)
		}
		return d.Spec.Template.Spec.InitContainers[0], d.Spec.Template.Spec.Volumes[1].ConfigMap.Name
	}
	gateway, err := helm(t, "template", "gateway", chart)
	if err != nil {
		t.Fatal(err)
	}
	var want, got map[string]any
	for _, text := range documents(gateway) {
		if strings.Contains(text, "kind: Deployment\n") {
			want, _ = sidecar(strings.ReplaceAll(text, "containerName: envoy", "containerName: app"))
		}
	}
	mounted := ""
	for _, text := range documents(out) {
		if strings.Contains(text, "kind: Deployment\n") {
			got, mounted = sidecar(text)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" || got == nil {
		t.Errorf("the sidecars differ (-gateway +another chart):\n%s", diff)
	}
	if mounted != "app-headgate-config" || !strings.Contains(out, "name: app-headgate-config\n") {
		t.Errorf("the sidecar mounts %q, want the ConfigMap app-headgate-config, which is made", mounted)
	}
}
