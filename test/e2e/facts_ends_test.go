package e2e

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestFactEndsOfStreams: what Envoy does when the processor ends a stream, by when and how.
func TestFactEndsOfStreams(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	c := client(t, false)
	after := func(phases string, end error) script { // obliging, up to these phases
		return func(d *dialogue) error {
			for d.phases() != phases {
				m, err := d.hear()
				if err != nil {
					return err
				}
				if d.phases() == phases && phases == "RH" && end != nil {
					break // held until the end
				}
				if err := d.Send(pass(m)); err != nil {
					return err
				}
			}
			return end
		}
	}
	broken := status.Error(codes.Internal, "broken")
	events := request{path: "/drip?n=5&ms=50"}
	body := func() request {
		return request{method: "POST", path: "/whole", body: noise(5 * mebibyte), length: 5 * mebibyte}
	}

	l.play(func(d *dialogue) error { _, err := d.hear(); return err }) // OK without an answer
	got := must(t, l.Stack, c, body())
	passed(t, "the processor leaves before the decision", got, nil, 5*mebibyte, digest(noise(5*mebibyte)))

	l.play(after("RH", nil))
	got = must(t, l.Stack, c, body())
	passed(t, "the processor lets go with the headers' answer", got, nil, 5*mebibyte, digest(noise(5*mebibyte)))

	for _, when := range []string{"RH.", "RH. SH"} {
		l.play(after(when, nil))
		if got := must(t, l.Stack, c, events); got.status != 200 || strings.Count(got.body, "data: ") != 5 {
			t.Errorf("left after %s: %d with %d events, want 200 with all 5", when, got.status, strings.Count(got.body, "data: "))
		}
	}

	l.play(after("RH", broken))
	if got := must(t, l.Stack, c, request{method: "POST", body: strings.NewReader("x"), length: 1}); got.status != 503 {
		t.Errorf("broken before the decision = %d, want 503", got.status)
	}
	l.play(after("RH. SH", broken))
	if got, err := send(t.Context(), l.Stack, c, events); err == nil && strings.Count(got.body, "data: ") == 5 {
		t.Errorf("broken while the response streams: %d with all events, want it cut", got.status)
	}
	if n, err := l.Envoy.ProcessorStat(t.Context(), "streams_failed"); err != nil || n != 2 {
		t.Errorf("%d streams failed (%v), want the 2 broken ones", n, err)
	}
}
