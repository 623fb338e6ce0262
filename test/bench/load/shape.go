// Package load drives requests through Envoy and counts what comes back.
package load

import (
	"fmt"
	"strconv"
	"strings"
)

// Shape is a kind of request.
type Shape struct {
	Name   string
	Bytes  int // of the body; 0 is a GET
	Events int // that the answer is a stream of; 0 is an answer in one piece
}

// Shapes are those every benchmark measures.
func Shapes() []Shape {
	return []Shape{{"GET", 0, 0}, {"POST 1 KiB", 1 << 10, 0}, {"POST 4 KiB", 4 << 10, 0}, {"POST 64 KiB", 64 << 10, 0}, {"POST 1 MiB", 1 << 20, 0}}
}

// Long are those whose answers are streams, and one whose body is large, which only a run through Envoy has.
func Long() []Shape { return []Shape{{"POST 16 MiB", 16 << 20, 0}, {"200 events", 4 << 10, 200}} }

// eventsHeader asks the upstream for a stream.
const eventsHeader = "x-bench-events"

// Path is what requests ask for: a route to a language model.
const Path = "/v1/chat/completions"

// Request returns the HTTP/1.1 request of the shape, with more headers.
func (s Shape) Request(more ...Header) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nhost: bench.example\r\n", s.method(), Path)
	for _, h := range append(s.headers(), more...) {
		fmt.Fprintf(&b, "%s: %s\r\n", h.Name, h.Value)
	}
	if s.Bytes > 0 {
		fmt.Fprintf(&b, "content-length: %d\r\n", s.Bytes)
	}
	b.WriteString("\r\n")
	b.WriteString(s.Body())
	return []byte(b.String())
}

func (s Shape) method() string {
	if s.Bytes == 0 {
		return "GET"
	}
	return "POST"
}

// headers are those of every request but the length of its body.
func (s Shape) headers() []Header {
	all := []Header{{"user-agent", "headgate-bench"}, {"x-tenant-id", "team-a"}}
	if s.Events > 0 {
		all = append(all, Header{eventsHeader, strconv.Itoa(s.Events)})
	}
	if s.Bytes > 0 {
		all = append(all, Header{"content-type", "application/json"})
	}
	return all
}

// Body returns the JSON of the shape: a conversation in messages of about a kilobyte.
func (s Shape) Body() string {
	const head, tail = `{"model":"bench","messages":[`, `],"stream":false}`
	const open, shut = `{"role":"user","content":"`, `"}`
	const sentence = `The gate opens when the lane has room, and not before.\nIf it says \"wait\", the wait is bounded; it refuses at once.\n`
	if s.Bytes == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString(head)
	for left := s.Bytes - len(head) - len(tail); left > 0; {
		message := min(left, 1024)
		if left-message < 100 { // too little for another message
			message = left
		}
		text := message - len(open) - len(shut)
		if message < left {
			text-- // for the comma
		}
		b.WriteString(open)
		b.WriteString(strings.Repeat(sentence, text/len(sentence)))
		b.WriteString(strings.Repeat("x", text%len(sentence)))
		b.WriteString(shut)
		if message < left {
			b.WriteByte(',')
		}
		left -= message
	}
	b.WriteString(tail)
	return b.String()
}
