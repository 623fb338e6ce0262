package envoyconf_test

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/config"
)

const processorFilter, witnessFilter = "envoy.filters.http.ext_proc", "envoy.filters.http.ext_proc.witness"

// chain is what a YAML text says about the two filters: their names in the order in which Envoy comes to have them, and the
// operations by which Istio inserts them.
type chain struct{ filters, operations []string }

func chainOf(t *testing.T, text []byte) (c chain) {
	t.Helper()
	documents := yaml.NewDecoder(bytes.NewReader(text))
	for {
		var n yaml.Node
		if err := documents.Decode(&n); err != nil {
			return c // the end; other tests say what is wrong with a file
		}
		c.add(&n)
	}
}

func (c *chain) add(n *yaml.Node) {
	if n.Kind == yaml.MappingNode {
		fields := map[string]*yaml.Node{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			fields[n.Content[i].Value] = n.Content[i+1]
		}
		if name := fields["name"]; name != nil && fields["typed_config"] != nil && (name.Value == processorFilter || name.Value == witnessFilter) {
			c.filters = append(c.filters, name.Value)
		}
		if to := fields["applyTo"]; to != nil && to.Value == "HTTP_FILTER" && fields["patch"] != nil {
			patch := fields["patch"].Content
			for i := 0; i+1 < len(patch); i += 2 {
				if patch[i].Value == "operation" {
					c.operations = append(c.operations, patch[i+1].Value)
				}
			}
		}
	}
	for _, child := range n.Content {
		c.add(child)
	}
}

// check finds the order wrong where the processor stands before the witness. Responses pass the filters from the last to the
// first: the witness would see a response before the processor has named its exchange, and no first token would be found.
func (c chain) check(t *testing.T, what string, witnessed bool) {
	t.Helper()
	want := []string{processorFilter}
	if witnessed {
		want = []string{witnessFilter, processorFilter}
	}
	if !slices.Equal(c.filters, want) {
		t.Errorf("%s: filters %q, want %q", what, c.filters, want)
	}
	for _, o := range c.operations {
		if o != "INSERT_BEFORE" { // the router, one after the other: all others turn the order round
			t.Errorf("%s: a filter is inserted with %s, want INSERT_BEFORE", what, o)
		}
	}
}

// TestWitnessStandsBeforeTheProcessor: in every chain of filters that is printed, and in every one that is shipped.
func TestWitnessStandsBeforeTheProcessor(t *testing.T) {
	for _, part := range []envoyconf.Part{envoyconf.All, envoyconf.Filter} {
		for _, failOpen := range []bool{false, true} {
			for _, mode := range []adaptive.Mode{adaptive.Off, adaptive.Shadow, adaptive.Enforce} {
				c := config.Default()
				chat := c.Clusters[config.AnyCluster]
				chat.Lanes.Mode = mode
				c.Clusters["chat"] = chat
				text := render(t, c, envoyconf.Options{Part: part, FailOpen: failOpen})
				chainOf(t, []byte(text)).check(t, string(part)+" "+string(mode), mode == adaptive.Enforce)
			}
		}
	}
	chains := 0
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if c := chainOf(t, text); len(c.filters) > 0 {
			chains++
			c.check(t, path, strings.Contains(string(text), witnessFilter+"\n"))
		}
		return err
	})
	if err != nil || chains < 7 {
		t.Errorf("found %d shipped chains (%v), want those of the demo, two snippets, three gateways and Istio's two", chains, err)
	}
}
