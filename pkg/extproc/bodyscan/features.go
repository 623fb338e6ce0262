package bodyscan

import (
	"math"
	"strconv"
)

const (
	maxNodes = 10_000 // more values than this are exhausting
	maxDepth = 32     // as many open containers are exhausting, and what is in them is not looked at
	maxCount = math.MaxInt32
)

// Features are what the scan knows so far. Without Known all others are zero.
type Features struct {
	Messages    int   // messages, inputs, prompts and contents
	Tools       int   // tools, functions and function declarations
	Fanout      int   // answers asked for; 0 = not stated, at most 2^31-1
	Tokens      int64 // estimate from the text, rounded down
	Stream      bool  // the answer is asked for as a stream; meaningful with StreamKnown
	StreamKnown bool  // the body says whether to stream
	Known       bool  // a JSON document has begun, and is well-formed so far
	Exhausted   bool  // too many values or too deep: what it takes to decode is out of proportion, and all counts are lower bounds
	Complete    bool  // the document has ended; false when exhausted
}

// member is what the name before a value means.
type member uint8

const (
	otherMember member = iota
	messagesMember
	inputMember // numbers in it are tokens
	modelMember
	toolsMember
	functionsMember
	declarationsMember // functionDeclarations of one element of tools
	fanoutMember
	streamMember
	configMember
	wrapperMember
)

// place is what a container is. Objects come before arrays.
type place uint8

const (
	otherObject place = iota
	topObject
	wrapperObject
	configObject // generationConfig
	toolObject   // an element of tools
	otherArray
	batchArray // the document is a list of requests
	messagesArray
	inputArray
	tokensArray // an entry of inputArray
	toolsArray
	functionsArray
	declarationsArray
)

func (p place) isArray() bool { return p >= otherArray }

// namesMatter says whether member names in this object select features.
func (p place) namesMatter() bool { return p >= topObject && p <= toolObject }

// isFeatureLevel says whether this is one of the two objects that are the request, whose names are no text.
func (p place) isFeatureLevel() bool { return p == topObject || p == wrapperObject }

// memberNamed finds what name means in an object at place p. Case does not matter, since it does not to many decoders.
func memberNamed(p place, name []byte) member {
	var space [maxName]byte
	name = fold(space[:0], name)
	switch p {
	case topObject, wrapperObject:
		switch string(name) {
		case "messages", "contents", "requests", "instances":
			return messagesMember
		case "input", "prompt":
			return inputMember
		case "model":
			return modelMember
		case "tools":
			return toolsMember
		case "functions", "functiondeclarations", "function_declarations":
			return functionsMember
		case "n", "candidatecount", "candidate_count":
			return fanoutMember
		case "stream":
			return streamMember
		case "generationconfig", "generation_config":
			return configMember
		case "request":
			if p == topObject {
				return wrapperMember
			}
		}
	case configObject:
		switch string(name) {
		case "candidatecount", "candidate_count":
			return fanoutMember
		}
	case toolObject:
		switch string(name) {
		case "functiondeclarations", "function_declarations":
			return declarationsMember
		}
	}
	return otherMember
}

// fold appends name in lower case as encoding/json folds it: besides the ASCII letters, two others fold to some of them.
func fold(to, name []byte) []byte {
	for i := 0; i < len(name); i++ {
		switch c := name[i]; {
		case c >= 'A' && c <= 'Z':
			to = append(to, c+'a'-'A')
		case c == 0xC5 && i+1 < len(name) && name[i+1] == 0xBF: // U+017F, the long s
			to = append(to, 's')
			i++
		case c == 0xE2 && i+2 < len(name) && name[i+1] == 0x84 && name[i+2] == 0xAA: // U+212A, the Kelvin sign
			to = append(to, 'k')
			i += 2
		default:
			to = append(to, c)
		}
	}
	return to
}

// objectPlace is the place of an object that opens as the value of m in parent.
func objectPlace(parent place, m member) place {
	switch {
	case m == wrapperMember:
		return wrapperObject
	case m == configMember:
		return configObject
	case parent == toolsArray:
		return toolObject
	case parent == batchArray:
		return topObject
	}
	return otherObject
}

// arrayPlace is the place of an array that opens as the value of m in parent.
func arrayPlace(parent place, m member) place {
	if parent == inputArray {
		return tokensArray
	}
	switch m {
	case messagesMember:
		return messagesArray
	case inputMember:
		return inputArray
	case toolsMember:
		return toolsArray
	case functionsMember:
		return functionsArray
	case declarationsMember:
		return declarationsArray
	}
	return otherArray
}

// counts is what the scan has added up.
type counts struct {
	nodes        int // values seen, the document itself included
	messages     int
	tools        int
	declarations int // in the current element of tools
	fanout       int
	quarters     int64   // of a token
	stream       [2]flag // at the top, in the wrapper
}

type flag struct{ known, value bool }

// addElement counts a value that begins in an array with the given byte.
func (c *counts) addElement(array place, first byte) {
	number := first == '-' || (first >= '0' && first <= '9') || first == 'N' || first == 'I' // NaN, Infinity
	switch array {
	case messagesArray:
		c.messages++
	case batchArray:
		if first == '{' {
			c.messages++
		}
	case inputArray, tokensArray:
		switch {
		case number: // of a prompt that is tokenised already: no entry, and no structure either
			c.quarters += quartersPerToken
			c.nodes--
		case array == inputArray:
			c.messages++
		}
	case toolsArray:
		c.tools++
		c.declarations = 0
	case functionsArray:
		c.tools++
	case declarationsArray:
		if c.declarations++; c.declarations > 1 { // the element of tools counted for the first
			c.tools++
		}
	}
}

// setStream notes a stream flag in the object at place p; the last of equal names holds.
func (c *counts) setStream(p place, value bool) {
	level := 0
	if p == wrapperObject {
		level = 1
	}
	c.stream[level] = flag{known: true, value: value}
}

// addFanout takes a number literal. Fractions are cut off, as lenient parsers do; one longer than the scan keeps (long
// says so) counts as the maximum, because no honest count is that long.
func (c *counts) addFanout(literal []byte, long bool) {
	n := float64(maxCount)
	if !long {
		n, _ = strconv.ParseFloat(string(literal), 64) // out of range is ±Inf; the grammar was checked
	}
	switch {
	case n >= maxCount:
		c.fanout = maxCount
	case int(max(n, 0)) > c.fanout:
		c.fanout = int(n)
	}
}
