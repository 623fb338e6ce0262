package manifests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"sigs.k8s.io/yaml"

	"github.com/headgate/headgate/pkg/config"
)

// schema compiles the schema with a validator that is not ours.
func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	compiled, err := jsonschema.NewCompiler().Compile(root + config.SchemaFile)
	if err != nil {
		t.Fatalf("compile the schema: %v", err)
	}
	return compiled
}

func fitsSchema(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	asJSON, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("not YAML: %v\n%s", err, text)
	}
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(string(asJSON)))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(document)
}

var (
	schemaLine = regexp.MustCompile(`\A# yaml-language-server: \$schema=(\S+)\n`)
	sections   = regexp.MustCompile(`(?m)^(listen|routeCluster|tenant|principalSources|decision|bytes|pressure|clusters|leases|principals|fanout|shutdown|priority|telemetry|log):`)
	yamlBlock  = regexp.MustCompile("(?s)```yaml\n(.*?)```")
)

// TestShippedConfigurationsFitTheSchema: every configuration in the repository names the schema in its first line, by a path
// that leads there, and is valid under it.
func TestShippedConfigurationsFitTheSchema(t *testing.T) {
	s, n := schema(t), 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") && len(d.Name()) > 2 || d.Name() == "node_modules" || d.Name() == "build") {
			return fs.SkipDir
		}
		if name := d.Name(); name != "headgate.yaml" && name != "demo.yaml" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil || strings.Contains(string(text), "\nkind: ") { // a manifest of Kubernetes
			return err
		}
		n++
		named := schemaLine.FindSubmatch(text)
		if named == nil {
			t.Errorf("%s does not begin with a yaml-language-server line", path)
		} else if at := filepath.Join(filepath.Dir(path), string(named[1])); at != filepath.Clean(root+config.SchemaFile) {
			t.Errorf("%s names the schema at %s, want %s", path, at, config.SchemaFile)
		}
		if err := fitsSchema(t, s, string(text)); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 8 {
		t.Errorf("%d configurations found, want at least 8", n)
	}
}

// TestDocumentedConfigurationsFitTheSchema: so is every example of a page.
func TestDocumentedConfigurationsFitTheSchema(t *testing.T) {
	pages, err := filepath.Glob(root + "docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	s, n := schema(t), 0
	for _, page := range append(pages, root+"README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range yamlBlock.FindAllSubmatch(text, -1) {
			if !sections.Match(block[1]) {
				continue
			}
			n++
			if err := fitsSchema(t, s, string(block[1])); err != nil {
				t.Errorf("%s: %v\n%s", page, err, block[1])
			}
		}
	}
	if n < 8 {
		t.Errorf("%d examples found, want at least 8", n)
	}
}

// TestSchemaAgreesWithTheLoader: the schema accepts what the loader accepts, and refuses
// what the loader refuses for a key, a type, a notation or a range of numbers.
func TestSchemaAgreesWithTheLoader(t *testing.T) {
	s := schema(t)
	for text, valid := range map[string]bool{
		"{}":                                                         true,
		"bytes:":                                                     true,
		"bytes: {largeBody: 262144}":                                 true,
		"bytes: {largeBody: 256KiB}":                                 true,
		"bytes: {largeBody: 256Ki}":                                  false,
		"bytes: {largeBody: '1 MiB'}":                                false,
		"bytes: {largeBody: -1}":                                     false,
		"bytes: {largeBody: true}":                                   false,
		"bytes: {largeBdy: 1}":                                       false,
		"bytes: {budget: {override: 1.5}}":                           true,
		"bytes: {budget: {override: null}}":                          true,
		"bytes: {budget: {override: 0}}":                             false,
		"bytes: {budget: {fraction: 2}}":                             false,
		"bytes: {budget: {fraction: x}}":                             false,
		"bytes: {releaseAt: responseEnd}":                            true,
		"bytes: {releaseAt: never}":                                  false,
		"decision: {maxWait: 1m30s}":                                 true,
		"decision: {maxWait: 2}":                                     false,
		"decision: {maxWait: 1d}":                                    false,
		"shutdown: {drain: 0}":                                       true,
		"shutdown: {drain: 0s}":                                      true,
		"tenant: {sources: [{header: x}]}":                           true,
		"tenant: {sources: [{heder: x}]}":                            false,
		"tenant: {sources: {header: x}}":                             false,
		"tenant: {weights: {a: 2}}":                                  true,
		"tenant: {weights: {a: 0}}":                                  false,
		"tenant: {maxLanes: 0}":                                      false,
		"tenant: {maxLanes: 1.5}":                                    false,
		"clusters: {a: {lanes: {mode: enforce}}}":                    true,
		"clusters: {a: {lanes: {mode: sometimes}}}":                  false,
		"clusters: {a: {lines: {}}}":                                 false,
		"log: {level: loud}":                                         false,
		"principals: [{id: a}]":                                      true,
		"principals: [{keySHA256: x}]":                               false,
		"listen: {grpc: 9002}":                                       false,
		"unknown: 1":                                                 false,
		"leases: {pools: {p: {connections: [{cluster: a}]}}}":        false,
		"leases: {pools: {p: {connections: [{id: a, cluster: a}]}}}": true,
	} {
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, loads := config.Load(file, nil)
		fits := fitsSchema(t, s, text)
		if (fits == nil) != valid || (loads == nil) != valid {
			t.Errorf("%s: schema %v, loader %v, want valid %t in both", text, fits, loads, valid)
		}
	}
}
