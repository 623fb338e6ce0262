package config

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/headgate/headgate/pkg/budget/size"
)

// kind is what a value of the schema looks like in YAML.
type kind int

const (
	kindSection kind = iota
	kindList
	kindMap
	kindString
	kindBool
	kindInt
	kindFloat
	kindSize
	kindDuration
)

// field is one key of a section, as its struct tags describe it.
type field struct {
	index    int
	typ      reflect.Type // without the pointer of a nullable field
	kind     kind
	nullable bool

	key      string
	doc      string
	alias    string // environment name of the reference system
	aliasMS  bool   // its unit is milliseconds
	min, max string // in the notation of the kind; empty is unbounded
	enum     []string
	required bool
	secret   bool
	restart  bool   // a reload does not bring changes into effect
	inherit  string // maps: the entry that the others start from
}

// fieldsOf lists the keys of a section in the order of the struct. Fields tagged "-" are not part of the schema.
func fieldsOf(section reflect.Type) []field {
	var fields []field
	for i := range section.NumField() {
		sf := section.Field(i)
		key := sf.Tag.Get("yaml")
		if !sf.IsExported() || key == "-" {
			continue
		}
		f := field{
			index: i, typ: sf.Type, key: key, doc: sf.Tag.Get("doc"),
			min: sf.Tag.Get("min"), max: sf.Tag.Get("max"), required: sf.Tag.Get("required") == "true",
			secret: isSecret(sf), inherit: sf.Tag.Get("inherit"), restart: sf.Tag.Get("restart") == "true",
		}
		if f.typ.Kind() == reflect.Pointer {
			f.typ, f.nullable = f.typ.Elem(), true
		}
		f.kind = kindOf(f.typ)
		if sf.Tag.Get("size") == "true" {
			f.kind = kindSize
		}
		if enum := sf.Tag.Get("enum"); enum != "" {
			f.enum = strings.Split(enum, ",")
		}
		alias, unit, _ := strings.Cut(sf.Tag.Get("env"), ",")
		f.alias, f.aliasMS = alias, unit == "ms"
		fields = append(fields, f)
	}
	return fields
}

// isSecret reports whether a field's value must never be shown. The hash of an API key counts as one, because the key
// can be guessed against it.
func isSecret(sf reflect.StructField) bool {
	return sf.Tag.Get("secret") == "true" || sf.Tag.Get("yaml") == "keySHA256"
}

// element describes the elements of a list or map; they share the rules of the field.
func (f field) element() field {
	e := f
	e.typ, e.nullable = f.typ.Elem(), false
	e.kind = kindOf(e.typ)
	return e
}

// scalar reports whether the field is a single value.
func (f field) scalar() bool { return f.kind >= kindString }

// stringList reports whether the field is a list of strings, which the environment gives separated by commas.
func (f field) stringList() bool {
	return f.kind == kindList && f.typ.Elem().Kind() == reflect.String
}

func kindOf(t reflect.Type) kind {
	switch t {
	case reflect.TypeFor[size.Bytes]():
		return kindSize
	case reflect.TypeFor[time.Duration]():
		return kindDuration
	}
	switch t.Kind() {
	case reflect.Struct:
		return kindSection
	case reflect.Slice:
		return kindList
	case reflect.Map:
		return kindMap
	case reflect.Bool:
		return kindBool
	case reflect.Int, reflect.Int64:
		return kindInt
	case reflect.Float64:
		return kindFloat
	default:
		return kindString
	}
}

// leaf is a value outside maps and lists, or one of a cluster's lanes: what the environment can set.
type leaf struct {
	path  string
	index []int // of reflect.Value.FieldByIndex
	field field
}

// leavesOf lists the leaves of a section.
func leavesOf(section reflect.Type, path string) []leaf {
	var leaves []leaf
	for _, f := range fieldsOf(section) {
		at := join(path, f.key)
		if f.kind != kindSection {
			if f.scalar() || f.stringList() {
				leaves = append(leaves, leaf{path: at, index: []int{f.index}, field: f})
			}
			continue
		}
		for _, inner := range leavesOf(f.typ, at) {
			inner.index = append([]int{f.index}, inner.index...)
			leaves = append(leaves, inner)
		}
	}
	return leaves
}

// join appends a key to a path. Keys that a path could not be read back with are quoted.
func join(path, key string) string {
	if !plainKey(key) {
		return fmt.Sprintf("%s[%q]", path, key)
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

func plainKey(key string) bool {
	for _, r := range key {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-') {
			return false
		}
	}
	return key != ""
}
