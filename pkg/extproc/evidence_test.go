package extproc

import (
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/config"
)

// chat is a JSON document with so many messages.
func chat(messages int) string {
	return `{"messages":[` + strings.TrimSuffix(strings.Repeat(`{"role":"user","content":"x"},`, messages), ",") + `]}`
}

// disguises are headers under which a body may be JSON all the same, as decoders go by its bytes.
var disguises = map[string][]string{
	"as JSON":         {"content-type", "application/json"},
	"as plain text":   {"content-type", "text/plain"},
	"as a form":       {"content-type", "application/x-www-form-urlencoded"},
	"as bytes":        {"content-type", "application/octet-stream"},
	"as nothing":      nil,
	"as compressed":   {"content-type", "application/json", "content-encoding", "gzip"},
	"as gRPC":         {"content-type", "application/grpc"},
	"as two of these": {"content-type", "text/plain", "content-type", "application/json"},
}

// TestBytesDecideWhatIsScanned: whatever the headers call a body, what begins like JSON is counted, capped and priced as
// JSON: with 100 messages it is refused where 3 are the most, and costs what it costs as JSON where there is no cap.
func TestBytesDecideWhatIsScanned(t *testing.T) {
	t.Run("the cap", func(t *testing.T) {
		capped := newRig(t, func(c *config.Config) { c.Bytes.Structure.HardMaxMessages = 3 })
		for name, headers := range disguises {
			headers = append([]string{":method", "POST"}, headers...)
			for opening, text := range map[string]string{"at once": chat(100), "after a byte order mark": "\xef\xbb\xbf" + chat(100), "after blanks": " \r\n\t" + chat(100)} {
				s := capped.open()
				s.send(rh(early, false, headers...), rb(text, true))
				a := s.next()
				if kind(a) == "RH" { // gRPC is decided on the headers
					a = s.next()
				}
				if got := a.GetImmediateResponse().GetStatus().GetCode(); got != 413 {
					t.Errorf("%s, %s: 100 messages answered with %s %d, want 413", name, opening, kind(a), got)
				}
				s.cancel()
			}
		}
	})
	t.Run("the price", func(t *testing.T) {
		priced := newRig(t, enforce(1000))
		cost := func(headers []string) int {
			s := priced.open()
			s.send(rh(early, false, append([]string{":method", "POST"}, headers...)...), rb(chat(100), true))
			s.wants("RH", "RB")
			defer s.finish()
			return priced.lanes.Snapshot()["chat"].ActiveCost
		}
		want := cost(disguises["as JSON"])
		for name, headers := range disguises {
			if got := cost(headers); got != want {
				t.Errorf("%s: 100 messages cost %d, want %d as with an honest content type", name, got, want)
			}
		}
	})
}

// TestAPauseEscapesNothing: the decision is taken on what has arrived when the upload pauses. What comes after that is
// priced, reserved and capped as it arrives.
func TestAPauseEscapesNothing(t *testing.T) {
	paused := func(c *config.Config) { c.Decision.UploadIdle = 20 * time.Millisecond }
	text := chat(150)
	for _, headers := range [][]string{{":method", "POST", "content-type", "application/json"}, {":method", "POST", "content-type", "application/grpc"}} {
		t.Run(headers[3], func(t *testing.T) {
			r := newRig(t, func(c *config.Config) { enforce(1000)(c); paused(c); c.Bytes.Structure.Messages = 100 })
			whole := r.open()
			whole.send(rh(early, false), rb(text, true))
			whole.wants("RH", "RB")
			want := r.lanes.Snapshot()["chat"].ActiveCost
			if b := r.bytes.Snapshot().InflightBytes; b != structureBytes {
				t.Fatalf("150 messages where 100 are heavy hold %d bytes, want %d", b, structureBytes)
			}
			whole.finish()
			r.settled()

			s := r.open()
			s.send(rh(early, false, headers...), rb(text[:20], false))
			s.wants("RH", "RB")
			if got := r.lanes.Snapshot()["chat"].ActiveCost; got >= want {
				t.Fatalf("the beginning costs %d, want less than %d", got, want)
			}
			s.send(rb(text[20:], true))
			s.wants("RB")
			if got := r.lanes.Snapshot()["chat"].ActiveCost; got != want {
				t.Errorf("after the pause it costs %d, want %d as without one", got, want)
			}
			if got := r.bytes.Snapshot().InflightBytes; got != structureBytes {
				t.Errorf("after the pause it holds %d bytes, want %d as without one", got, structureBytes)
			}
			s.finish()
		})
	}
	t.Run("the cap", func(t *testing.T) {
		r := newRig(t, func(c *config.Config) { paused(c); c.Bytes.Structure.HardMaxMessages = 100 })
		s := r.open()
		s.send(rh(early, false), rb(text[:20], false))
		s.wants("RH", "RB")
		s.send(rb(text[20:], true))
		s.refused(413, "message_limit")
	})
}
