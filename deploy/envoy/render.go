package envoyconf

import (
	"bytes"
	"embed"
	"fmt"
	"io"
	"strings"
	"text/template"
	"time"

	"github.com/headgate/headgate/pkg/config"
)

// Part is what Render writes.
type Part string

// The parts of a configuration.
const (
	All     Part = "all"     // a complete bootstrap
	Filter  Part = "filter"  // the ext_proc filter, an item of http_filters
	Cluster Part = "cluster" // the clusters of the processor and of the sidecar's API, items of clusters
	Routes  Part = "routes"  // the routes, items of a virtual host's routes
)

// Options say what to render and for which addresses. The zero value renders the whole bootstrap with the ports of
// the demo.
type Options struct {
	For    For    // empty is ForEnvoy
	Target Target // what the objects of For are called
	// EnvoyVersion is the version that has to understand it, such as 1.38; empty is the newest. Fields it lacks are left out, with
	// a comment that says what is lost.
	EnvoyVersion string

	Part     Part   // empty is All
	FailOpen bool   // lets requests pass unchecked while the processor fails
	Listen   string // Envoy's listener, host:port; empty is 127.0.0.1:10000
	Admin    string // Envoy's admin address, host:port; empty is 127.0.0.1:9901
	Upstream string // address of every upstream cluster, host:port; empty is 127.0.0.1:9001

	// TLSDir is the folder, as Envoy sees it, with what it needs where the sidecar asks for TLS (listen.grpcTLS, listen.apiTLS):
	// its certificate tls.crt, its key tls.key, and ca.crt, the CA of the sidecar's certificate; empty is DefaultTLSDir. TLSName
	// is the DNS name that the sidecar's certificate must have; empty is DefaultTLSName.
	TLSDir, TLSName string

	StreamIdle time.Duration // how long an exchange may be silent in both directions; 0 is DefaultStreamIdle
}

// DefaultStreamIdle is long: a model may think for minutes before its next byte.
const DefaultStreamIdle = 30 * time.Minute

// Where Envoy's certificate is, and the name in the sidecar's, unless Options say otherwise.
const (
	DefaultTLSDir  = "/etc/headgate/envoy-tls"
	DefaultTLSName = "headgate"
)

//go:embed templates/*.tmpl
var templates embed.FS

// Render writes the part of the Envoy configuration that o asks for, as it matches c. It fails for an unknown part, an
// address that is none, and when w does.
func Render(w io.Writer, c *config.Config, o Options) error {
	v, err := newView(c, o)
	if err != nil {
		return fmt.Errorf("render Envoy configuration: %w", err)
	}
	t, err := template.New("").Funcs(template.FuncMap{"str": scalar, "indent": indent}).ParseFS(templates, "templates/*.tmpl")
	if err != nil {
		return fmt.Errorf("parse Envoy templates: %w", err)
	}
	text, err := v.print(t, o)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write Envoy configuration: %w", err)
	}
	return nil
}

// print executes the templates that o asks for.
func (v *view) print(t *template.Template, o Options) (string, error) {
	with := func(name string, data any) (string, error) {
		var b bytes.Buffer
		if err := t.ExecuteTemplate(&b, name+".yaml.tmpl", data); err != nil {
			return "", fmt.Errorf("render Envoy %s: %w", name, err)
		}
		return b.String(), nil
	}
	execute := func(name string) (string, error) { return with(name, v) }
	switch o.For {
	case ForEnvoy, "":
		return v.part(o.Part, execute)
	case ForEnvoyGateway, ForIstioGateway, ForIstioWorkload:
	default:
		return "", fmt.Errorf("render Envoy configuration: unknown target %q, want %s, %s, %s or %s", o.For, ForEnvoy, ForEnvoyGateway, ForIstioGateway, ForIstioWorkload)
	}
	if o.Part != "" && o.Part != All {
		return "", fmt.Errorf("render Envoy configuration: part %q is for %s only", o.Part, ForEnvoy)
	}
	p, err := v.policy(o, execute)
	if err != nil {
		return "", fmt.Errorf("render the policies of %s: %w", o.For, err)
	}
	if o.For == ForEnvoyGateway {
		if v.ProcessorTLS != nil || v.APITLS != nil {
			return "", fmt.Errorf("render Envoy configuration: listen.grpcTLS and listen.apiTLS are not for %s, whose Backend has no certificate of Envoy's; keep strangers away with a NetworkPolicy", o.For)
		}
		return with("envoy-gateway", p)
	}
	return with("istio", p)
}

// part executes the template of p; the bootstrap is made of the other three.
func (v *view) part(p Part, execute func(string) (string, error)) (string, error) {
	switch p {
	case Filter, Cluster, Routes:
		return execute(string(p))
	case All, "":
	default:
		return "", fmt.Errorf("render Envoy configuration: unknown part %q, want %s, %s, %s or %s", p, All, Filter, Cluster, Routes)
	}
	var err error
	if v.Filter, err = execute(string(Filter)); err != nil {
		return "", err
	}
	if v.Clusters, err = execute(string(Cluster)); err != nil {
		return "", err
	}
	if v.RouteList, err = execute(string(Routes)); err != nil {
		return "", err
	}
	return execute("bootstrap")
}

// indent puts n spaces before every line of s and drops the last line break.
func indent(n int, s string) string {
	pad := strings.Repeat(" ", n)
	return pad + strings.ReplaceAll(strings.TrimRight(s, "\n"), "\n", "\n"+pad)
}
