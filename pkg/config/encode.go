package config

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/headgate/headgate/pkg/budget/size"
)

const redacted = "[redacted]"

// Hash identifies the content of the configuration: 16 hex digits, equal for equal settings wherever they came from.
func (c *Config) Hash() string {
	data, err := c.encode(false)
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// Redacted returns the complete configuration as YAML, with secrets hidden. But for those, Load reads it back.
func (c *Config) Redacted() ([]byte, error) { return c.encode(true) }

func (c *Config) encode(hide bool) ([]byte, error) {
	data, err := yaml.Marshal(encoder{hide: hide}.section(reflect.ValueOf(c).Elem()))
	if err != nil {
		return nil, fmt.Errorf("encoding the configuration: %w", err)
	}
	return data, nil
}

// encoder writes the notation that decoder reads: sizes with units, durations, no exponents in sizes.
type encoder struct {
	hide   bool // secrets
	sparse bool // leave out zero values
}

func (e encoder) section(v reflect.Value) *yaml.Node {
	node := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range fieldsOf(v.Type()) {
		if e.sparse && v.Field(f.index).IsZero() {
			continue
		}
		node.Content = append(node.Content, text(f.key), e.value(f, v.Field(f.index)))
	}
	return node
}

func (e encoder) value(f field, v reflect.Value) *yaml.Node {
	if f.nullable {
		if v.IsNil() {
			return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
		}
		v = v.Elem()
	}
	switch f.kind {
	case kindSection:
		return e.section(v)
	case kindList:
		node := &yaml.Node{Kind: yaml.SequenceNode}
		for i := range v.Len() {
			node.Content = append(node.Content, e.value(f.element(), v.Index(i)))
		}
		return node
	case kindMap:
		node := &yaml.Node{Kind: yaml.MappingNode}
		for _, key := range sortedKeys(v) {
			node.Content = append(node.Content, text(key), e.value(f.element(), v.MapIndex(reflect.ValueOf(key))))
		}
		return node
	}
	if f.secret && e.hide && !v.IsZero() {
		return text(redacted)
	}
	if f.kind == kindString {
		return text(formatScalar(f, v))
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: formatScalar(f, v)}
}

// sortedKeys lists the keys of a map, which the schema has as strings only.
func sortedKeys(m reflect.Value) []string {
	keys := make([]string, 0, m.Len())
	for _, key := range m.MapKeys() {
		keys = append(keys, key.String())
	}
	slices.Sort(keys)
	return keys
}

// text is a string that stays one. Anything unusual is quoted with escapes: the literal style that the YAML package would
// choose for several lines cannot hold every text.
func text(s string) *yaml.Node {
	node := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		node.Style = yaml.DoubleQuotedStyle
	}
	return node
}

// formatScalar is the inverse of parseScalar.
func formatScalar(f field, v reflect.Value) string {
	switch f.kind {
	case kindBool:
		return strconv.FormatBool(v.Bool())
	case kindInt:
		return strconv.FormatInt(v.Int(), 10)
	case kindFloat:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case kindDuration:
		return formatDuration(time.Duration(v.Int()))
	case kindSize:
		if v.Kind() == reflect.Float64 {
			return strconv.FormatFloat(v.Float(), 'f', -1, 64)
		}
		return size.Bytes(v.Int()).String()
	}
	return v.String()
}

// formatDuration leaves out the zero parts that Duration.String keeps: 2m, not 2m0s.
func formatDuration(d time.Duration) string {
	s := d.String()
	if d == 0 {
		return "0s"
	}
	if d%time.Minute == 0 {
		s = strings.TrimSuffix(s, "0s")
	}
	if d%time.Hour == 0 {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
