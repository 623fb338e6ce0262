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
	Part     Part   // empty is All
	FailOpen bool   // lets requests pass unchecked while the processor fails
	Listen   string // Envoy's listener, host:port; empty is 127.0.0.1:10000
	Admin    string // Envoy's admin address, host:port; empty is 127.0.0.1:9901
	Upstream string // address of every upstream cluster, host:port; empty is 127.0.0.1:9001

	StreamIdle time.Duration // how long an exchange may be silent in both directions; 0 is DefaultStreamIdle
}

// DefaultStreamIdle is long: a model may think for minutes before its next byte.
const DefaultStreamIdle = 30 * time.Minute

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
	text, err := v.part(t, o.Part)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("write Envoy configuration: %w", err)
	}
	return nil
}

// part executes the template of p; the bootstrap is made of the other three.
func (v *view) part(t *template.Template, p Part) (string, error) {
	execute := func(name string) (string, error) {
		var b bytes.Buffer
		if err := t.ExecuteTemplate(&b, name+".yaml.tmpl", v); err != nil {
			return "", fmt.Errorf("render Envoy %s: %w", name, err)
		}
		return b.String(), nil
	}
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
