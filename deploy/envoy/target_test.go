package envoyconf_test

import (
	"bytes"
	"strings"
	"testing"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/pkg/config"
)

func TestRenderForControlPlanes(t *testing.T) {
	jwt := config.Default()
	jwt.Tenant.Sources = []config.Source{{Metadata: "envoy.filters.http.jwt_authn/tenants/sub"}}
	for name, tc := range map[string]struct {
		c       *config.Config
		options envoyconf.Options
		want    []string
		not     []string
	}{
		"Envoy Gateway, with its own names": {
			c:       jwt,
			options: envoyconf.Options{For: envoyconf.ForEnvoyGateway, Target: envoyconf.Target{Namespace: "ai", Gateway: "front", Listener: "web", Routes: []string{"a", "b"}}},
			want: []string{
				"kind: HTTPRoute name: a - group: gateway.networking.k8s.io kind: HTTPRoute name: b",
				"accessibleNamespaces: - envoy.filters.http.jwt_authn writableNamespaces: [headgate]",
				"kind: BackendTrafficPolicy", "kind: Gateway name: front circuitBreaker: maxConnections: 100000",
				"name: ai/front/web operation:", "envoyextensionpolicy/ai/headgate/extproc/0", "path: /send_body_without_waiting_for_header_response value: true",
			},
		},
		"Envoy Gateway that reads no metadata":   {c: config.Default(), options: envoyconf.Options{For: envoyconf.ForEnvoyGateway}, not: []string{"accessibleNamespaces"}},
		"Envoy Gateway with an older Envoy":      {c: config.Default(), options: envoyconf.Options{For: envoyconf.ForEnvoyGateway, EnvoyVersion: "1.37"}, not: []string{"path: /allow_content_length_header"}},
		"Istio's gateway":                        {c: config.Default(), options: envoyconf.Options{For: envoyconf.ForIstioGateway}, want: []string{"priority: 100 workloadSelector: labels: istio: headgate-ingress", "context: GATEWAY", "name: headgate-api"}},
		"a workload with a label of one's own":   {c: config.Default(), options: envoyconf.Options{For: envoyconf.ForIstioWorkload, Target: envoyconf.Target{Label: "app=chat"}}, want: []string{"labels: app: chat", "context: SIDECAR_INBOUND"}},
		"an Envoy that knows the newest fields":  {c: config.Default(), want: []string{"allow_content_length_header: true", "status_on_error: code: ServiceUnavailable"}},
		"Envoy 1.37 takes status_on_error alone": {c: config.Default(), options: envoyconf.Options{EnvoyVersion: "v1.37.2"}, want: []string{"# allow_content_length_header needs Envoy 1.38", "status_on_error: code:"}, not: []string{"allow_content_length_header: true"}},
		"Envoy 1.32 takes neither":               {c: config.Default(), options: envoyconf.Options{EnvoyVersion: "1.32"}, want: []string{"# allow_content_length_header needs Envoy 1.38", "# status_on_error needs Envoy 1.36"}, not: []string{"code: ServiceUnavailable"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := strings.Join(strings.Fields(render(t, tc.c, tc.options)), " ")
			for _, want := range tc.want {
				if !strings.Contains(got, want) {
					t.Errorf("output lacks %q: %s", want, got)
				}
			}
			for _, not := range tc.not {
				if strings.Contains(got, not) {
					t.Errorf("output has %q, which does not belong there", not)
				}
			}
		})
	}
}

// TestCertificatesOfControlPlanes: Istio's filters have Envoy's side of the sidecar's TLS; Envoy Gateway's Backend cannot.
func TestCertificatesOfControlPlanes(t *testing.T) {
	c := demo(t)
	withTLS(c)
	o := envoyconf.Options{For: envoyconf.ForIstioGateway, TLSDir: "/certs", TLSName: "extproc.example"}
	got := render(t, c, o)
	for _, want := range []string{"filename: /certs/tls.crt", "filename: /certs/tls.key", "filename: /certs/ca.crt", "exact: extproc.example", "sni: extproc.example"} {
		if n := strings.Count(got, want); n != 1 { // the API speaks none
			t.Errorf("Istio's filter has %q %d times, want once", want, n)
		}
	}
	o.For = envoyconf.ForEnvoyGateway
	if err := envoyconf.Render(&bytes.Buffer{}, c, o); err == nil || !strings.Contains(err.Error(), "listen.grpcTLS") {
		t.Errorf("Render for Envoy Gateway = %v, want an error that names listen.grpcTLS", err)
	}
}

func TestRenderRefusesTargets(t *testing.T) {
	for want, o := range map[string]envoyconf.Options{
		`unknown target "nginx"`:            {For: "nginx"},
		`part "filter" is for envoy only`:   {For: envoyconf.ForEnvoyGateway, Part: envoyconf.Filter},
		`label "app", want KEY=VALUE`:       {For: envoyconf.ForIstioWorkload, Target: envoyconf.Target{Label: "app"}},
		`version of Envoy "1.31": 1.32`:     {EnvoyVersion: "1.31"},
		`version of Envoy "2.0", want one`:  {EnvoyVersion: "2.0"},
		`version of Envoy "many", want one`: {EnvoyVersion: "many"},
	} {
		err := envoyconf.Render(&bytes.Buffer{}, config.Default(), o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Render(%+v) = %v, want an error with %q", o, err, want)
		}
	}
}
