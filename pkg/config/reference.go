package config

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Reference writes the documentation of every key as Markdown: one table for each section of the file, from the same
// tags that the loader obeys.
func Reference(w io.Writer) error {
	var b bytes.Buffer
	b.WriteString(referenceIntro())
	c := reflect.ValueOf(Default()).Elem()
	for _, f := range fieldsOf(c.Type()) {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n", f.key, f.meaning())
		b.WriteString("| key | type | default | environment | meaning |\n|---|---|---|---|---|\n")
		writeRows(&b, f, c.Field(f.index), f.key, f.key)
	}
	b.WriteString("\n## Variables without a key\n\n| variable | meaning |\n|---|---|\n")
	fmt.Fprintf(&b, "| `%s` | Path of the configuration file when none is given on the command line. |\n", EnvFile)
	for _, name := range noEffectNames() {
		fmt.Fprintf(&b, "| `%s` | Accepted without effect; logged once. |\n", name)
	}
	_, err := w.Write(b.Bytes())
	return err
}

func referenceIntro() string {
	return `# Configuration reference

The file is YAML. Later layers win: built-in defaults, the file, the environment. For ` + "`clusters`" + ` it is, per cluster
and key: built-in default, environment, entry ` + "`\"*\"`" + `, own entry.

Loading is strict: an unknown key, a key given twice, a wrong type, a missing unit, a value out of range, a second YAML
document and an unknown ` + "`HEADGATE_`" + ` variable are errors, reported all together with path and line or variable. At start
the process exits; at a reload the old configuration stays in effect.

| notation | accepted | refused |
|---|---|---|
| size | ` + "`262144`, `256KiB`, `1MiB`, `1GiB`, `1TiB` (powers of 1024), `1KB`, `1MB`, `1GB`, `1TB` (powers of 1000), quoted or not" + ` | ` + "`1Mi`, `1M`, `512B`, `1mb`, `1 MiB`, `1.5MiB`, `1e6`, `-1`" + ` |
| duration | ` + "`150ms`, `2s`, `1m30s`, `1h`, `0`" + ` | ` + "`2`, `2 s`, `1d`, `-1s`" + ` |
| integer | ` + "`64`" + ` | ` + "`\"64\"`, `64.0`, `6e1`, `0x40`, `064`, `6_4`" + ` |
| number | ` + "`0.25`, `1`, `1e-3`" + ` | ` + "`\"0.25\"`, `.nan`, `.inf`" + ` |
| true or false | ` + "`true`, `false`" + ` | ` + "`\"true\"`, `yes`, `on`, `1`" + ` |
| string | ` + "`text`, `\"123\"`" + ` | ` + "`123`, `true`" + ` (quote them) |
| section, list, map | a mapping or list; left empty it keeps the defaults | |

A list in the file replaces the default list. A file without content is refused, because it is usually one that is being
written; ` + "`{}`" + ` means the defaults. Anchors work, merge keys (` + "`<<`" + `) do not.

Every value outside maps and lists has a variable, listed here; lists of strings are separated by commas there. Values
are trimmed, an empty one counts as not set, ` + "`true`, `false`, `1` and `0`" + ` (in any case) are truth values, and what cannot be
read is an error. Variables with ` + "(ms)" + ` hold whole milliseconds without a unit. A key that has two variables may get both
only with the same value. Variables that Kubernetes injects for a Service called ` + "`headgate`" + ` are ignored.
`
}

// writeRows documents a field, or what is in it. path is the one of the environment name, which lists and maps end.
func writeRows(b *bytes.Buffer, f field, v reflect.Value, shown, path string) {
	switch f.kind {
	case kindSection:
		for _, inner := range fieldsOf(f.typ) {
			at := ""
			if path != "" {
				at = join(path, inner.key)
			}
			writeRows(b, inner, v.Field(inner.index), shown+"."+inner.key, at)
		}
	case kindMap:
		writeElements(b, f, v, shown+".<name>")
	case kindList:
		if f.stringList() {
			writeRow(b, f, v, shown, path)
			return
		}
		writeElements(b, f, v, shown+"[]")
	default:
		writeRow(b, f, v, shown, path)
	}
}

// writeElements documents the elements of a list or map. Those of a map that is inherited have the defaults of the
// entry inherited from; others have none.
func writeElements(b *bytes.Buffer, f field, v reflect.Value, shown string) {
	sample := reflect.New(f.typ.Elem()).Elem()
	if f.inherit != "" {
		sample = v.MapIndex(reflect.ValueOf(f.inherit))
	}
	e := f.element()
	if e.scalar() {
		sample = reflect.Value{} // no default
	}
	writeRow(b, f, v, strings.TrimSuffix(strings.TrimSuffix(shown, "[]"), ".<name>"), "")
	writeRows(b, e, sample, shown, "")
}

func writeRow(b *bytes.Buffer, f field, v reflect.Value, shown, path string) {
	var names []string
	if path != "" {
		names = append(names, "`"+envName(path)+"`")
	}
	if f.alias != "" {
		name := "`" + f.alias + "`"
		if f.aliasMS {
			name += " (ms)"
		}
		names = append(names, name)
	}
	fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", shown, f.describeType(), f.describeDefault(v), strings.Join(names, ", "), cell(f.meaning()))
}

func (f field) describeType() string {
	name := map[kind]string{
		kindList: "list", kindMap: "map", kindString: "string", kindBool: "true or false", kindInt: "integer",
		kindFloat: "number", kindSize: "size", kindDuration: "duration",
	}[f.kind]
	if f.stringList() {
		name = "list of strings"
	}
	if len(f.enum) > 0 {
		name = "`" + strings.Join(f.enum, "`, `") + "`"
	}
	switch {
	case f.min != "" && f.max != "":
		name += fmt.Sprintf(", %s to %s", f.min, f.max)
	case f.min != "":
		name += ", at least " + f.min
	}
	if f.required {
		name += ", required"
	}
	if f.nullable {
		name += ", or null"
	}
	return name
}

func (f field) describeDefault(v reflect.Value) string {
	switch {
	case f.required || !v.IsValid():
		return ""
	case f.nullable:
		return "null"
	case f.stringList():
		if v.Len() == 0 {
			return "none"
		}
		return "`" + strings.Join(v.Interface().([]string), "`, `") + "`"
	case f.kind == kindList || f.kind == kindMap:
		return f.describeEntries(v)
	case f.kind == kindString && v.Len() == 0:
		return "empty"
	}
	return "`" + formatScalar(f, v) + "`"
}

// meaning is the documentation of a field, and whether a reload is enough.
func (f field) meaning() string {
	if f.restart {
		return f.doc + " A change needs a restart."
	}
	return f.doc
}

func (f field) describeEntries(v reflect.Value) string {
	switch {
	case v.Len() == 0:
		return "none"
	case f.inherit != "":
		return "`\"" + f.inherit + "\"` only"
	}
	node := encoder{sparse: true}.value(f, v)
	node.Style = yaml.FlowStyle
	text, err := yaml.Marshal(node)
	if err != nil {
		return ""
	}
	return "`" + strings.TrimSpace(string(text)) + "`"
}

// cell keeps a text inside its cell of a table.
func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
