package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxNodes bounds what a file may expand to through aliases.
const maxNodes = 1 << 18

// decoder reads YAML nodes into a configuration. It works on nodes, because a strict loader wants what unmarshalling
// into structs loses: lines, duplicate keys, quoting, and all faults instead of the first.
type decoder struct {
	*report
	nodes int
}

// decodeFile reads data over c and reports whether the file could be read to its end, so that what is in c is worth
// checking. An empty document is a fault: in practice it is a file caught between truncation and writing.
func decodeFile(r *report, c *Config, data []byte) bool {
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	err := dec.Decode(&doc)
	switch {
	case errors.Is(err, io.EOF) || (err == nil && (len(doc.Content) == 0 || isNull(doc.Content[0]))):
		r.addLine(0, "", "the file is empty; write {} to mean the defaults")
		return false
	case err != nil:
		r.addLine(0, "", "%s", syntaxMessage(err, data))
		return false
	}
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		r.addLine(second.Line, "", "the file holds more than one YAML document")
	}
	d := &decoder{report: r}
	d.section(reflect.ValueOf(c).Elem(), doc.Content[0], "")
	if d.nodes > maxNodes {
		r.addLine(0, "", "the file expands to more than %d values", maxNodes)
	}
	return d.nodes <= maxNodes
}

// quotedText is what the YAML parser quotes of the document.
var quotedText = regexp.MustCompile("(?s)'.*'|\".*\"|`.*`")

func syntaxMessage(err error, data []byte) string {
	text := quotedText.ReplaceAllString(strings.TrimPrefix(err.Error(), "yaml: "), "'…'") // it may be a secret
	for i, line := range strings.Split(string(data), "\n") {
		if indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]; strings.Contains(indent, "\t") {
			return fmt.Sprintf("not YAML: %s (line %d is indented with a tab; YAML wants spaces)", text, i+1)
		}
	}
	return "not YAML: " + text
}

// enter resolves an alias and reports whether the node should be looked at at all.
func (d *decoder) enter(n *yaml.Node) (*yaml.Node, bool) {
	d.nodes++
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n, d.nodes <= maxNodes
}

// section reads a mapping whose keys are the fields of a struct. An empty section leaves everything as it was.
func (d *decoder) section(v reflect.Value, n *yaml.Node, path string) {
	n, ok := d.enter(n)
	if !ok {
		return
	}
	fields := fieldsOf(v.Type())
	d.mapping(n, path, func(key string, node *yaml.Node, at string) {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if i < 0 {
			d.addLine(node.Line, at, "unknown key%s", suggest(key, keysOf(fields)))
			return
		}
		d.value(v.Field(fields[i].index), fields[i], node, at)
	})
	if n.Kind != yaml.MappingNode {
		return
	}
	for _, f := range fields {
		if f.required && v.Field(f.index).IsZero() && !d.touched(join(path, f.key)) {
			d.addLine(n.Line, join(path, f.key), "is required")
		}
	}
}

// mapping calls entry for every key of a mapping, once, with the node of its value.
func (d *decoder) mapping(n *yaml.Node, path string, entry func(key string, node *yaml.Node, at string)) {
	if isNull(n) {
		return
	}
	if n.Kind != yaml.MappingNode {
		d.addLine(n.Line, path, "must be a mapping, not %s", describe(n))
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind == yaml.AliasNode {
			key = key.Alias
		}
		at := join(path, key.Value)
		switch first, twice := lines[key.Value]; {
		case key.Kind != yaml.ScalarNode || isNull(key):
			d.addLine(key.Line, path, "keys must be strings, not %s", describe(key))
		case key.ShortTag() == "!!merge":
			d.addLine(key.Line, path, "merge keys (<<) are not supported; clusters inherit from \"*\"")
		case strings.TrimSpace(key.Value) != key.Value:
			d.addLine(key.Line, path, "the key %q has blanks around it", clip(key.Value))
		case twice:
			d.addLine(key.Line, at, "key given twice, first on line %d", first)
		default:
			lines[key.Value] = key.Line
			d.origins[at] = origin{line: key.Line}
			entry(key.Value, value, at)
		}
	}
}

func (d *decoder) value(v reflect.Value, f field, n *yaml.Node, path string) {
	switch f.kind {
	case kindSection:
		d.section(v, n, path)
	case kindList:
		d.list(v, f, n, path)
	case kindMap:
		d.entries(v, f, n, path)
	default:
		d.scalar(v, f, n, path)
	}
}

// list replaces the whole list; an empty value leaves it as it was.
func (d *decoder) list(v reflect.Value, f field, n *yaml.Node, path string) {
	n, ok := d.enter(n)
	if !ok || isNull(n) {
		return
	}
	if n.Kind != yaml.SequenceNode {
		d.addLine(n.Line, path, "must be a list, not %s", describe(n))
		return
	}
	v.SetZero() // an empty list is nil, wherever it comes from
	if len(n.Content) == 0 {
		return
	}
	list := reflect.MakeSlice(f.typ, len(n.Content), len(n.Content))
	for i, item := range n.Content {
		if d.nodes > maxNodes {
			return
		}
		at := fmt.Sprintf("%s[%d]", path, i)
		d.origins[at] = origin{line: item.Line}
		d.value(list.Index(i), f.element(), item, at)
	}
	v.Set(list)
}

// entries reads a map. With inheritance the base entry comes first and every other one starts as its copy.
func (d *decoder) entries(v reflect.Value, f field, n *yaml.Node, path string) {
	n, ok := d.enter(n)
	if !ok || isNull(n) {
		return
	}
	type pair struct {
		key, at string
		node    *yaml.Node
	}
	var pairs []pair
	d.mapping(n, path, func(key string, node *yaml.Node, at string) {
		pairs = append(pairs, pair{key, at, node})
	})
	out := reflect.MakeMap(f.typ)
	base := reflect.New(f.typ.Elem()).Elem()
	if f.inherit != "" {
		slices.SortStableFunc(pairs, func(a, b pair) int { return boolRank(b.key == f.inherit) - boolRank(a.key == f.inherit) })
		if old := v.MapIndex(reflect.ValueOf(f.inherit)); old.IsValid() {
			base.Set(old)
			out.SetMapIndex(reflect.ValueOf(f.inherit), base)
		}
	}
	for _, p := range pairs {
		elem := reflect.New(f.typ.Elem()).Elem()
		elem.Set(base)
		d.value(elem, f.element(), p.node, p.at)
		out.SetMapIndex(reflect.ValueOf(p.key), elem)
		if p.key == f.inherit && f.inherit != "" {
			base.Set(elem)
		}
	}
	v.Set(out)
}

func boolRank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// scalar reads a single value. A value that is faulty is not taken over, so that later checks see only sound values.
func (d *decoder) scalar(v reflect.Value, f field, n *yaml.Node, path string) {
	n, ok := d.enter(n)
	switch {
	case !ok:
		return
	case isNull(n) && f.nullable:
		v.SetZero()
		return
	case isNull(n):
		d.addLine(n.Line, path, "has no value; leave the key out for the default")
		return
	case n.Kind != yaml.ScalarNode:
		d.addLine(n.Line, path, "must be %s, not %s", f.noun(), describe(n))
		return
	case !f.accepts(n):
		d.addLine(n.Line, path, "must be %s, not %s%s", f.noun(), describe(n), f.quoteHint(n))
		return
	}
	got, err := f.parseScalar(n.Value)
	if err != nil {
		d.addLine(n.Line, path, "%v", err)
		return
	}
	f.assign(v, got)
}

// assign stores a parsed value, behind a pointer of its own where the field is nullable.
func (f field) assign(v, got reflect.Value) {
	if !f.nullable {
		v.Set(got)
		return
	}
	p := reflect.New(f.typ)
	p.Elem().Set(got)
	v.Set(p)
}
