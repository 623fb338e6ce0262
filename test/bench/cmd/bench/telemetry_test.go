package main

import (
	"bytes"
	"net/http"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
)

// message encodes messages as the field of another.
func message(field protowire.Number, inner ...[]byte) (encoded []byte) {
	for _, m := range inner {
		encoded = protowire.AppendBytes(protowire.AppendTag(encoded, field, protowire.BytesType), m)
	}
	return encoded
}

func TestCollectorCountsSpans(t *testing.T) {
	t.Parallel()
	c, err := newCollector()
	if err != nil {
		t.Fatal(err)
	}
	defer c.server.Close()
	other := protowire.AppendVarint(protowire.AppendTag(nil, 7, protowire.VarintType), 5)
	scope := append(message(2, []byte("a"), []byte("b"), nil), other...)
	export := append(message(1, message(2, scope, message(2, nil)), nil), message(3, []byte("not a resource"))...)
	answer, err := http.Post("http://"+c.addr+"/v1/traces", "application/x-protobuf", bytes.NewReader(export))
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatalf("export: %v, %v, want 200", answer, err)
	}
	answer.Body.Close()
	if n := c.spans.Load(); n != 4 {
		t.Errorf("%d spans, want 4", n)
	}
	if n := countFields([]byte{0xff}, 1); n != 0 {
		t.Errorf("%d messages in garbage, want 0", n)
	}
}

func TestGoalsAreSaidForEveryKindOfRequest(t *testing.T) {
	t.Parallel()
	off := []figures{{CPUMicros: 100}}
	r := report{Rows: []row{
		newRow(replayed, "GET", "off", off, off),
		newRow(replayed, "GET", "default sampling", []figures{{CPUMicros: 103}}, off),
		newRow(replayed, "GET", "all sampled", []figures{{CPUMicros: 98}}, off),
	}}
	var said strings.Builder
	r.goals(&said)
	want := "default sampling, direct, 8 at a time, GET: +3.0 % processor time per request, the goal is at most +5 %\n" +
		"all sampled, direct, 8 at a time, GET: -2.0 % processor time per request, the goal is at most +15 %\n"
	if said.String() != want {
		t.Errorf("got %q, want %q", said.String(), want)
	}
}

func TestTheEnvironmentsTelemetryIsLeftOut(t *testing.T) {
	t.Parallel()
	got := withoutTelemetry([]string{"PATH=/bin", "OTEL_SDK_DISABLED=true", "HOTEL_ROOM=7"})
	if want := []string{"PATH=/bin", "HOTEL_ROOM=7"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
