package bodyscan

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// node is a JSON value with its names in order and repeated, as no map would keep them.
type node struct {
	kind   byte // '{', '[', '"', '0', 't', 'f' or 'n'
	text   string
	names  []string // of an object
	values []*node  // of an object or array
}

// reference reads features the slow way: encoding/json makes a tree, features are looked up in it.
type reference struct {
	decoder   *json.Decoder
	nodes     int
	tokens    int
	exhausted bool
}

// slowFeatures is what a Scanner must find in body. Of an exhausting body that is malformed only Known and Exhausted are given.
func slowFeatures(body []byte) (f Features, nodes int) {
	body = bytes.TrimPrefix(body, []byte("\xEF\xBB\xBF"))
	r := reference{decoder: json.NewDecoder(bytes.NewReader(body))}
	r.decoder.UseNumber()
	root := r.value(0, theDocument)
	switch {
	case root == nil && r.exhausted:
		return Features{Known: true, Exhausted: true}, r.nodes
	case root == nil:
		return Features{}, r.nodes
	}
	f = Features{Known: true, Complete: !r.exhausted, Exhausted: r.exhausted}
	quarters := root.quarters(root.kind == '{')
	tops := []*node{root}
	if root.kind == '[' {
		tops = nil
		for _, v := range root.values {
			if v.kind == '{' {
				f.Messages++
				quarters -= v.namesQuarters()
				tops = append(tops, v)
			}
		}
	}
	levels := []*node{}
	for _, top := range tops {
		if top.kind != '{' {
			continue
		}
		levels = append(levels, top)
		for _, v := range top.all("request") {
			if v.kind == '{' {
				quarters -= v.namesQuarters()
				levels = append(levels, v)
			}
		}
	}
	for i := len(levels) - 1; i >= 0; i-- {
		levels[i].addTo(&f)
	}
	f.Tokens = int64((quarters + quartersPerToken*r.tokens) / 4)
	return f, r.nodes
}

// context is where the reference reads a value.
type context int

const (
	elsewhere   context = iota
	theDocument         // the document
	entry               // of a list of requests
	wrapped             // under "request"
	inputs              // an input or prompt
	inInputs            // an element of one
	inTokens            // an element of such an element
)

// value reads the next value inside depth containers; nil when it is malformed.
func (r *reference) value(depth int, in context) *node {
	token, err := r.decoder.Token()
	if err != nil {
		return nil
	}
	number, isNumber := token.(json.Number)
	if isNumber && (in == inInputs || in == inTokens) {
		r.tokens++
		return &node{kind: '0', text: number.String()}
	}
	if r.nodes++; r.nodes > maxNodes {
		r.exhausted = true
	}
	switch v := token.(type) {
	case json.Delim:
		if depth+1 >= maxDepth {
			r.exhausted = true
			return r.skip(byte(v))
		}
		return r.container(byte(v), depth, in)
	case string:
		return &node{kind: '"', text: v}
	case json.Number:
		return &node{kind: '0', text: v.String()}
	case bool:
		return &node{kind: strconv.FormatBool(v)[0]}
	}
	return &node{kind: 'n'}
}

// skip reads a container that is too deep.
func (r *reference) skip(kind byte) *node {
	for open := 1; open > 0; {
		token, err := r.decoder.Token()
		if err != nil {
			return nil
		}
		if delim, ok := token.(json.Delim); ok {
			open += map[json.Delim]int{'[': 1, '{': 1, ']': -1, '}': -1}[delim]
		}
	}
	return &node{kind: kind}
}

func (r *reference) container(kind byte, depth int, in context) *node {
	n := &node{kind: kind}
	for r.decoder.More() {
		inside := elsewhere
		switch {
		case kind == '[' && in == theDocument:
			inside = entry
		case kind == '[' && in == inputs:
			inside = inInputs
		case kind == '[' && in == inInputs:
			inside = inTokens
		}
		if kind == '{' {
			name, err := r.decoder.Token()
			if err != nil {
				return nil
			}
			n.names = append(n.names, name.(string))
			feature := in == theDocument || in == entry || in == wrapped
			switch folded := strings.ToLower(name.(string)); {
			case feature && (strings.EqualFold(folded, "input") || strings.EqualFold(folded, "prompt")):
				inside = inputs
			case feature && in != wrapped && strings.EqualFold(folded, "request"):
				inside = wrapped
			}
		}
		v := r.value(depth+1, inside)
		if v == nil {
			return nil
		}
		n.values = append(n.values, v)
	}
	if _, err := r.decoder.Token(); err != nil {
		return nil
	}
	return n
}

// all is every value under one of names.
func (n *node) all(names ...string) []*node {
	var found []*node
	for i, name := range n.names {
		for _, want := range names {
			if strings.EqualFold(name, want) {
				found = append(found, n.values[i])
			}
		}
	}
	return found
}

func (n *node) addTo(f *Features) {
	for _, v := range n.all("input", "prompt") {
		if v.kind != '[' {
			continue
		}
		for _, entry := range v.values {
			if entry.kind != '0' {
				f.Messages++
			}
		}
	}
	for _, v := range n.all("input", "prompt") {
		if v.kind == '{' || (v.kind == '"' && v.text != "") {
			f.Messages++
		}
	}
	for _, v := range n.all("messages", "contents", "requests", "instances") {
		switch {
		case v.kind == '[':
			f.Messages += len(v.values)
		case v.kind == '{', v.kind == '"' && v.text != "":
			f.Messages++
		}
	}
	for _, v := range n.all("functions", "functionDeclarations", "function_declarations") {
		if v.kind == '[' {
			f.Tools += len(v.values)
		}
	}
	for _, v := range n.all("tools") {
		if v.kind == '[' {
			for _, tool := range v.values {
				f.Tools += max(1, tool.declarations())
			}
		}
	}
	for _, v := range n.all("stream") {
		if v.kind == 't' || v.kind == 'f' {
			f.Stream, f.StreamKnown = v.kind == 't', true
		}
	}
	fanouts := n.all("n", "candidateCount", "candidate_count")
	for _, v := range n.all("generationConfig", "generation_config") {
		fanouts = append(fanouts, v.all("candidateCount", "candidate_count")...)
	}
	for _, v := range fanouts {
		f.Fanout = max(f.Fanout, v.count())
	}
}

func (n *node) declarations() int {
	sum := 0
	for _, v := range n.all("functionDeclarations", "function_declarations") {
		if v.kind == '[' {
			sum += len(v.values)
		}
	}
	return sum
}

func (n *node) count() int {
	if n.kind != '0' {
		return 0
	}
	v, _ := strconv.ParseFloat(n.text, 64)
	if len(n.text) > maxName {
		return math.MaxInt32
	}
	return int(min(max(v, 0), math.MaxInt32))
}

// quarters estimates the text under n, without the names of n itself when it is a feature level.
func (n *node) quarters(featureLevel bool) int {
	sum := 0
	if n.kind == '"' {
		sum = textQuarters(n.text)
	}
	if n.kind == '{' && !featureLevel {
		sum = n.namesQuarters()
	}
	for _, v := range n.values {
		sum += v.quarters(false)
	}
	return sum
}

func (n *node) namesQuarters() int {
	sum := 0
	for _, name := range n.names {
		sum += textQuarters(name)
	}
	return sum
}

func textQuarters(text string) int {
	sum := 0
	for _, r := range text {
		if sum++; r >= utf8.RuneSelf {
			sum += 3
		}
	}
	return sum
}
