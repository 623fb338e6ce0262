package config

import "go.yaml.in/yaml/v3"

// accepts reports whether the type YAML gives a scalar suits the field. Sizes and durations are text or numbers; whether
// a number is right for one is for its parser to say, which knows better what to advise.
func (f field) accepts(n *yaml.Node) bool {
	tag := n.ShortTag()
	switch f.kind {
	case kindBool:
		return tag == "!!bool"
	case kindInt:
		return tag == "!!int"
	case kindFloat:
		return tag == "!!int" || tag == "!!float"
	case kindSize, kindDuration:
		return tag == "!!str" || tag == "!!int" || tag == "!!float"
	default:
		return tag == "!!str"
	}
}

func (f field) quoteHint(n *yaml.Node) string {
	quoted := n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0
	switch {
	case f.kind == kindString:
		return "; quote it"
	case quoted && (f.kind == kindBool || f.kind == kindInt || f.kind == kindFloat):
		return "; leave the quotes out"
	}
	return ""
}

// noun names the kind of value a field wants.
func (f field) noun() string {
	switch f.kind {
	case kindBool:
		return "true or false"
	case kindInt:
		return "an integer"
	case kindFloat:
		return "a number"
	case kindSize:
		return "a size"
	case kindDuration:
		return "a duration"
	case kindList:
		return "a list"
	case kindMap, kindSection:
		return "a mapping"
	}
	return "a string"
}

// describe names what stands there, without showing it.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!str":
		return "a string"
	case "!!int":
		return "an integer"
	case "!!float":
		return "a number with fraction or exponent"
	case "!!bool":
		return "true or false"
	case "!!null":
		return "nothing"
	case "!!timestamp":
		return "a date"
	}
	return "a value with a tag of its own" // which may be a secret that begins with an exclamation mark
}

func isNull(n *yaml.Node) bool {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null"
}
