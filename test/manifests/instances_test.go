package manifests

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// secondGateway is the overlay that docs/kubernetes.md shows for another gateway in the same namespace, with its path made to
// fit a folder next to base.
func secondGateway(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(filepath.FromSlash("../../docs/kubernetes.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile("(?s)```yaml\n(# A second gateway.*?)```").FindSubmatch(page)
	if found == nil {
		t.Fatal("docs/kubernetes.md shows no overlay for a second gateway")
	}
	return regexp.MustCompile(`\.\./headgate/deploy/k8s/`).ReplaceAllString(string(found[1]), "../")
}

func TestTwoGatewaysFitInANamespace(t *testing.T) {
	folder, err := os.MkdirTemp(filepath.FromSlash(k8s), "second-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(secondGateway(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	first, second := build(t, "overlays/gateway"), build(t, filepath.Base(folder))
	for _, pair := range [][2][]manifest{{first, second}, {second, first}} {
		mine, theirs := only[*appsv1.Deployment](pair[0])[0], only[*appsv1.Deployment](pair[1])[0]
		if mine.Name == theirs.Name {
			t.Fatalf("both Deployments are called %s", mine.Name)
		}
		for what, s := range ownSelectors(pair[0]) {
			selector, err := metav1.LabelSelectorAsSelector(s)
			if err != nil {
				t.Fatal(err)
			}
			if !selector.Matches(labels.Set(mine.Spec.Template.Labels)) {
				t.Errorf("%s of %s selects %s, not its own pods", what, mine.Name, selector)
			}
			if selector.Matches(labels.Set(theirs.Spec.Template.Labels)) {
				t.Errorf("%s of %s selects %s, and with that the pods of %s too", what, mine.Name, selector, theirs.Name)
			}
		}
		for _, p := range only[*networkingv1.NetworkPolicy](pair[0]) {
			if !reachesUpstream(t, p) {
				t.Errorf("the policy of %s does not let it reach pods with app.kubernetes.io/name: llm-gateway alone", mine.Name)
			}
		}
	}
}

// ownSelectors are the selectors with which the objects of a gateway find its pods.
func ownSelectors(all []manifest) map[string]*metav1.LabelSelector {
	found := map[string]*metav1.LabelSelector{}
	for _, d := range only[*appsv1.Deployment](all) {
		found["the Deployment"] = d.Spec.Selector
		found["the topology spread"] = d.Spec.Template.Spec.TopologySpreadConstraints[0].LabelSelector
	}
	for _, s := range only[*corev1.Service](all) {
		found["the Service"] = &metav1.LabelSelector{MatchLabels: s.Spec.Selector}
	}
	for _, b := range only[*policyv1.PodDisruptionBudget](all) {
		found["the PodDisruptionBudget"] = b.Spec.Selector
	}
	for _, p := range only[*networkingv1.NetworkPolicy](all) {
		found["the NetworkPolicy"] = &p.Spec.PodSelector
	}
	for _, m := range only[*monitoringv1.PodMonitor](all) {
		found["the PodMonitor"] = &m.Spec.Selector
	}
	return found
}

// reachesUpstream reports whether a policy lets pods of the upstream, which has no label of the gateway's, be reached.
func reachesUpstream(t *testing.T, p *networkingv1.NetworkPolicy) bool {
	t.Helper()
	for _, rule := range p.Spec.Egress {
		for _, peer := range rule.To {
			if peer.PodSelector == nil || peer.NamespaceSelector != nil {
				continue
			}
			selector, err := metav1.LabelSelectorAsSelector(peer.PodSelector)
			if err != nil {
				t.Fatal(err)
			}
			if selector.Matches(labels.Set{"app.kubernetes.io/name": "llm-gateway"}) {
				return true
			}
		}
	}
	return false
}
