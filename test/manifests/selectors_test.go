package manifests

import (
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	istiov1alpha3 "istio.io/client-go/pkg/apis/networking/v1alpha3"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestSelectorsSelect(t *testing.T) {
	for _, overlay := range overlays {
		t.Run(overlay, func(t *testing.T) {
			t.Parallel()
			all := build(t, overlay)
			found := pods(all)
			selected := func(what string, selector map[string]string) []pod {
				t.Helper()
				var matching []pod
				for _, p := range found {
					if subset(selector, p.labels) {
						matching = append(matching, p)
					}
				}
				if len(matching) != 1 {
					t.Errorf("%s selects %d kinds of pods by %v, want 1", what, len(matching), selector)
				}
				return matching
			}
			for _, s := range only[*corev1.Service](all) {
				for _, p := range selected("Service "+s.Name, s.Spec.Selector) {
					for _, port := range s.Spec.Ports {
						checkPort(t, "Service "+s.Name, p, port.TargetPort)
					}
				}
			}
			for _, n := range only[*networkingv1.NetworkPolicy](all) {
				for _, p := range selected("NetworkPolicy "+n.Name, n.Spec.PodSelector.MatchLabels) {
					for _, rule := range n.Spec.Ingress {
						for _, port := range rule.Ports {
							checkPort(t, "NetworkPolicy "+n.Name, p, *port.Port)
						}
					}
				}
			}
			for _, b := range only[*policyv1.PodDisruptionBudget](all) {
				selected("PodDisruptionBudget "+b.Name, b.Spec.Selector.MatchLabels)
			}
			for _, m := range only[*monitoringv1.PodMonitor](all) {
				for _, p := range selected("PodMonitor "+m.Name, m.Spec.Selector.MatchLabels) {
					checkPort(t, "PodMonitor "+m.Name, p, intstr.FromString(*m.Spec.PodMetricsEndpoints[0].Port))
				}
			}
			for _, f := range only[*istiov1alpha3.EnvoyFilter](all) {
				selected("EnvoyFilter "+f.Name, f.Spec.WorkloadSelector.Labels)
			}
			for _, h := range only[*autoscalingv2.HorizontalPodAutoscaler](all) {
				checkAutoscaler(t, h, all)
			}
		})
	}
}

// checkPort checks that a named port is one of the pod's.
func checkPort(t *testing.T, what string, p pod, port intstr.IntOrString) {
	t.Helper()
	if port.Type == intstr.Int {
		return
	}
	for _, c := range p.containers() {
		for _, known := range c.Ports {
			if known.Name == port.StrVal {
				return
			}
		}
	}
	t.Errorf("%s: no container of %s has a port %q", what, p.name, port.StrVal)
}

func checkAutoscaler(t *testing.T, h *autoscalingv2.HorizontalPodAutoscaler, all []manifest) {
	t.Helper()
	for _, d := range only[*appsv1.Deployment](all) {
		if d.Name != h.Spec.ScaleTargetRef.Name {
			continue
		}
		if d.Spec.Replicas != nil {
			t.Errorf("Deployment %s has %d replicas of its own, which every apply would put in place of the autoscaler's", d.Name, *d.Spec.Replicas)
		}
		scaled := pod{name: d.Name, spec: d.Spec.Template.Spec}
		for _, m := range h.Spec.Metrics {
			if m.ContainerResource != nil && scaled.container(m.ContainerResource.Container) == nil {
				t.Errorf("the autoscaler watches container %s, which %s does not have", m.ContainerResource.Container, d.Name)
			}
		}
		return
	}
	t.Errorf("the autoscaler's Deployment %s is not there", h.Spec.ScaleTargetRef.Name)
}
