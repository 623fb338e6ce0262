package config

import (
	"encoding/json"
	"fmt"
	"io"
	"reflect"
)

// SchemaFile is where the generated schema lies, from the root of the repository.
const SchemaFile = "deploy/headgate.schema.json"

// Patterns of what the file has as text. Ranges of sizes and durations cannot be said in a schema; the loader checks them.
const (
	sizePattern     = `^[0-9]+(KiB|MiB|GiB|TiB|KB|MB|GB|TB)?$`
	durationPattern = `^(0|([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h)(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))*)$`
)

// node is a JSON Schema (draft 7, which editors know best).
type node struct {
	Schema      string           `json:"$schema,omitempty"`
	Title       string           `json:"title,omitempty"`
	Description string           `json:"description,omitempty"`
	Default     any              `json:"default,omitempty"`
	Type        any              `json:"type,omitempty"`
	Enum        []any            `json:"enum,omitempty"`
	Pattern     string           `json:"pattern,omitempty"`
	Minimum     json.Number      `json:"minimum,omitempty"`
	Maximum     json.Number      `json:"maximum,omitempty"`
	ExclusiveMn json.Number      `json:"exclusiveMinimum,omitempty"`
	AnyOf       []*node          `json:"anyOf,omitempty"`
	Items       *node            `json:"items,omitempty"`
	Properties  map[string]*node `json:"properties,omitempty"`
	Required    []string         `json:"required,omitempty"`
	Additional  any              `json:"additionalProperties,omitempty"` // false, or the schema of a map's values
}

// Schema writes the JSON Schema of the configuration file, from the same tags that the loader obeys. What the schema refuses
// the loader refuses too; the loader also checks ranges of sizes and durations, and values against each other.
func Schema(w io.Writer) error {
	c := reflect.ValueOf(Default()).Elem()
	root := sectionSchema(c.Type(), c)
	root.Schema = "http://json-schema.org/draft-07/schema#"
	root.Title = "Headgate's configuration"
	root.Type = "object"
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(root)
}

// sectionSchema describes a mapping of known keys. An empty section keeps its defaults, so null is allowed. v has the
// defaults; it may be invalid.
func sectionSchema(section reflect.Type, v reflect.Value) *node {
	n := &node{Type: []string{"object", "null"}, Properties: map[string]*node{}, Additional: false}
	for _, f := range fieldsOf(section) {
		var value reflect.Value
		if v.IsValid() {
			value = v.Field(f.index)
		}
		inner := f.schema(value)
		inner.Description = f.describeForEditors()
		n.Properties[f.key] = inner
		if f.required {
			n.Required = append(n.Required, f.key)
		}
	}
	return n
}

// describeForEditors is the meaning, with the range where the schema cannot say it.
func (f field) describeForEditors() string {
	if (f.kind == kindSize || f.kind == kindDuration) && f.min != "" {
		if f.max == "" {
			return fmt.Sprintf("%s At least %s.", f.meaning(), f.min)
		}
		return fmt.Sprintf("%s From %s to %s.", f.meaning(), f.min, f.max)
	}
	return f.meaning()
}

// schema describes the values of a field.
func (f field) schema(v reflect.Value) *node {
	switch f.kind {
	case kindSection:
		return sectionSchema(f.typ, v)
	case kindList:
		return &node{Type: []string{"array", "null"}, Items: f.element().schema(reflect.Value{})}
	case kindMap:
		var sample reflect.Value
		if f.inherit != "" && v.IsValid() {
			sample = v.MapIndex(reflect.ValueOf(f.inherit))
		}
		return &node{Type: []string{"object", "null"}, Additional: f.element().schema(sample)}
	}
	n := f.scalarSchema()
	if v.IsValid() && !f.nullable && !f.required && !f.secret && !v.IsZero() {
		n.Default = f.defaultForEditors(v)
	}
	if f.nullable {
		return &node{AnyOf: []*node{n, {Type: "null"}}}
	}
	return n
}

func (f field) defaultForEditors(v reflect.Value) any {
	switch f.kind {
	case kindSize, kindDuration:
		return formatScalar(f, v)
	}
	return v.Interface()
}

// scalarSchema describes a single value as YAML has it.
func (f field) scalarSchema() *node {
	switch f.kind {
	case kindBool:
		return &node{Type: "boolean"}
	case kindInt:
		return &node{Type: "integer", Minimum: json.Number(f.min), Maximum: json.Number(f.max)}
	case kindFloat:
		return &node{Type: "number", Minimum: json.Number(f.min), Maximum: json.Number(f.max)}
	case kindSize:
		plain := &node{Type: "integer", Minimum: "0"}
		if f.typ.Kind() == reflect.Float64 { // a budget override
			plain = &node{Type: "number", ExclusiveMn: "0"}
		}
		return &node{AnyOf: []*node{{Type: "string", Pattern: sizePattern}, plain}}
	case kindDuration:
		return &node{AnyOf: []*node{{Type: "string", Pattern: durationPattern}, {Enum: []any{0}}}}
	}
	n := &node{Type: "string"}
	for _, word := range f.enum {
		n.Enum = append(n.Enum, word)
	}
	return n
}
