package manifests

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/headgate/headgate/pkg/config"
)

// pod is a pod that an overlay runs.
type pod struct {
	name, namespace string
	labels          map[string]string
	spec            corev1.PodSpec
	claims          []corev1.PersistentVolumeClaim
	partial         bool // a controller adds to it: other containers, users
}

// pods collects the pods of an overlay, those that Envoy Gateway will make included.
func pods(all []manifest) []pod {
	var found []pod
	for _, d := range only[*appsv1.Deployment](all) {
		_, injected := d.Spec.Template.Labels["sidecar.istio.io/inject"]
		found = append(found, pod{d.Name, d.Namespace, d.Spec.Template.Labels, d.Spec.Template.Spec, nil, injected})
	}
	for _, s := range only[*appsv1.StatefulSet](all) {
		found = append(found, pod{s.Name, s.Namespace, s.Spec.Template.Labels, s.Spec.Template.Spec, s.Spec.VolumeClaimTemplates, false})
	}
	for _, e := range only[*egv1a1.EnvoyProxy](all) {
		d := e.Spec.Provider.Kubernetes.EnvoyDeployment
		envoy := corev1.Container{Name: "envoy", Image: "set by Envoy Gateway", Resources: *d.Container.Resources, VolumeMounts: d.Container.VolumeMounts}
		found = append(found, pod{
			name: e.Name, namespace: "envoy-gateway-system", partial: true,
			labels: map[string]string{
				"gateway.envoyproxy.io/owning-gateway-namespace": e.Namespace, "gateway.envoyproxy.io/owning-gateway-name": "headgate",
			},
			spec: corev1.PodSpec{
				SecurityContext: d.Pod.SecurityContext, Volumes: d.Pod.Volumes,
				InitContainers: d.InitContainers, Containers: []corev1.Container{envoy},
			},
		})
	}
	return found
}

func (p pod) containers() []corev1.Container {
	return slices.Concat(p.spec.InitContainers, p.spec.Containers)
}

func (p pod) container(name string) *corev1.Container {
	all := p.containers()
	if i := slices.IndexFunc(all, func(c corev1.Container) bool { return c.Name == name }); i >= 0 {
		return &all[i]
	}
	return nil
}

func TestPods(t *testing.T) {
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) {
			t.Parallel()
			all := build(t, overlay)
			found := pods(all)
			if len(found) == 0 {
				t.Fatal("no pods")
			}
			for _, p := range found {
				checkSecurity(t, p)
				checkReferences(t, p, all)
				if c := p.container("extproc"); c != nil {
					checkSidecar(t, overlay, p, *c)
				}
			}
		})
	}
}

// checkSecurity checks what the restricted Pod Security Standard asks for, and a root file system that cannot be written.
// A controller that adds to the pod answers for its own containers.
func checkSecurity(t *testing.T, p pod) {
	t.Helper()
	if s := p.spec.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot ||
		s.SeccompProfile == nil || s.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
		t.Errorf("%s: pod security %+v, want non-root and the runtime's seccomp profile", p.name, s)
	}
	for _, c := range p.containers() {
		s := c.SecurityContext
		if p.partial && s == nil {
			continue
		}
		switch {
		case s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem:
			t.Errorf("%s/%s: the root file system can be written", p.name, c.Name)
		case s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation:
			t.Errorf("%s/%s: privileges may escalate", p.name, c.Name)
		case s.Capabilities == nil || !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0:
			t.Errorf("%s/%s: capabilities %+v, want all dropped and none added", p.name, c.Name, s.Capabilities)
		case !p.partial && s.RunAsUser == nil && p.spec.SecurityContext.RunAsUser == nil:
			t.Errorf("%s/%s: no user", p.name, c.Name)
		}
		if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Requests.Cpu().IsZero() {
			t.Errorf("%s/%s: resources %+v, want requests of processor and memory and a limit of memory", p.name, c.Name, c.Resources)
		}
		if strings.HasSuffix(c.Image, ":latest") || (!strings.Contains(c.Image, ":") && !p.partial) {
			t.Errorf("%s/%s: image %q has no tag", p.name, c.Name, c.Image)
		}
	}
}

// checkReferences checks that what a pod mentions is there.
func checkReferences(t *testing.T, p pod, all []manifest) {
	t.Helper()
	names := map[string]bool{}
	for _, c := range p.containers() {
		if names[c.Name] {
			t.Errorf("%s: two containers are called %s", p.name, c.Name)
		}
		names[c.Name] = true
	}
	volumes := map[string]bool{}
	for _, v := range p.claims {
		volumes[v.Name] = true
	}
	for _, v := range p.spec.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil {
			if configMap(all, p.namespace, v.ConfigMap.Name) == nil {
				t.Errorf("%s: volume %s is config map %s/%s, which the overlay does not have", p.name, v.Name, p.namespace, v.ConfigMap.Name)
			}
		}
	}
	mounted := map[string]bool{}
	for _, c := range p.containers() {
		for _, m := range c.VolumeMounts {
			mounted[m.Name] = true
			if !volumes[m.Name] {
				t.Errorf("%s/%s mounts %s, which is no volume of the pod", p.name, c.Name, m.Name)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom == nil || e.ValueFrom.ResourceFieldRef == nil {
				continue
			}
			other := p.container(e.ValueFrom.ResourceFieldRef.ContainerName)
			if other == nil || other.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s/%s: %s is the memory limit of %q, which has none", p.name, c.Name, e.Name, e.ValueFrom.ResourceFieldRef.ContainerName)
			}
		}
	}
	for v := range volumes {
		if !mounted[v] {
			t.Errorf("%s: nobody mounts volume %s", p.name, v)
		}
	}
}

func configMap(all []manifest, namespace, name string) *corev1.ConfigMap {
	for _, c := range only[*corev1.ConfigMap](all) {
		if c.Name == name && c.Namespace == namespace {
			return c
		}
	}
	return nil
}

// checkSidecar checks that the sidecar starts before what it serves, and with a configuration that is valid with the
// pod's environment and is the one Envoy was configured for.
func checkSidecar(t *testing.T, overlay string, p pod, c corev1.Container) {
	t.Helper()
	if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
		t.Errorf("%s: extproc is no native sidecar", p.name)
	}
	for what, probe := range map[string]*corev1.Probe{"startup": c.StartupProbe, "readiness": c.ReadinessProbe, "liveness": c.LivenessProbe} {
		if probe == nil || probe.Exec == nil || !slices.Equal(probe.Exec.Command[:2], []string{"/extproc", "health"}) {
			t.Errorf("%s: %s probe %+v, want extproc health: the admin port listens on loopback", p.name, what, probe)
		} else if i := slices.Index(probe.Exec.Command, "--address"); i < 0 || probe.Exec.Command[i+1] != "127.0.0.1:9003" {
			t.Errorf("%s: %s probe %q, want --address 127.0.0.1:9003, so that it does not read the configuration", p.name, what, probe.Exec.Command)
		} else if probe.TimeoutSeconds < 3 {
			t.Errorf("%s: %s probe ends after %d s, but extproc health takes up to 2 s", p.name, what, probe.TimeoutSeconds)
		}
	}
	cfg := sidecarConfig(t, overlay, p, c)
	if got, want := cfg.Bytes.Budget.ProtectedMemory, protectedMemory(p, c); got == nil || int64(*got) != want {
		t.Errorf("%s: protected memory %v, want %d", p.name, got, want)
	}
	grace := int64((cfg.Shutdown.Grace).Seconds())
	if p.spec.TerminationGracePeriodSeconds != nil && grace >= *p.spec.TerminationGracePeriodSeconds {
		t.Errorf("%s: the sidecar's grace of %d s does not fit into the pod's %d s", p.name, grace, *p.spec.TerminationGracePeriodSeconds)
	}
	socket := strings.TrimPrefix(cfg.Listen.GRPC, "unix://")
	for _, name := range []string{"extproc", "envoy", "istio-proxy"} {
		other := p.container(name)
		if other == nil {
			continue
		}
		if !slices.ContainsFunc(other.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == filepath.Dir(socket) }) {
			t.Errorf("%s/%s does not mount %s, where the socket is", p.name, name, filepath.Dir(socket))
		}
	}
}

// sidecarConfig loads the configuration that the pod's sidecar starts with.
func sidecarConfig(t *testing.T, overlay string, p pod, c corev1.Container) *config.Config {
	t.Helper()
	var environ []string
	file := ""
	for _, e := range c.Env {
		value := e.Value
		switch {
		case e.ValueFrom == nil:
		case e.ValueFrom.ResourceFieldRef != nil:
			value = protectedText(p, e)
		default:
			continue // names of the pod: for telemetry
		}
		if e.Name == config.EnvFile {
			file = value
			continue
		}
		environ = append(environ, e.Name+"="+value)
	}
	if file != "/etc/headgate/headgate.yaml" {
		t.Fatalf("%s: the sidecar reads %q", p.name, file)
	}
	text := ""
	for _, m := range only[*corev1.ConfigMap](build(t, overlay)) {
		if strings.HasPrefix(m.Name, "headgate-config") || strings.HasPrefix(m.Name, "headgate-template") {
			text = m.Data["headgate.yaml"]
		}
	}
	path := filepath.Join(t.TempDir(), "headgate.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(path, environ)
	if err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	if len(cfg.Notes) > 0 {
		t.Errorf("%s: the configuration has notes: %q", p.name, cfg.Notes)
	}
	return cfg
}

func protectedMemory(p pod, c corev1.Container) int64 {
	for _, e := range c.Env {
		if e.Name == "HEADGATE_BYTES_BUDGET_PROTECTED_MEMORY" {
			return p.container(e.ValueFrom.ResourceFieldRef.ContainerName).Resources.Limits.Memory().Value()
		}
	}
	return 0
}

func protectedText(p pod, e corev1.EnvVar) string {
	limit := p.container(e.ValueFrom.ResourceFieldRef.ContainerName).Resources.Limits.Memory()
	return limit.AsDec().String()
}

// subset reports whether labels has everything that the selector asks for.
func subset(selector, labels map[string]string) bool {
	for key, value := range maps.All(selector) {
		if labels[key] != value {
			return false
		}
	}
	return true
}
