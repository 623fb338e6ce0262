package extproc

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// TestShapeOfAPath: the path says which API is called, whatever a gateway puts before it.
func TestShapeOfAPath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path    string
		version bool // anthropic-version is there
		want    shape
	}{
		{"/v1/chat/completions", false, openAI},
		{"/v1/responses", false, openAI},
		{"/openai/deployments/x/chat/completions?api-version=1", false, openAI},
		{"/v1/threads/t/messages", false, openAI},
		{"/v1beta/openai/chat/completions", false, openAI},
		{"/v1/models/x", false, openAI},
		{"/v1/models/ft:gpt:x", false, openAI},
		{"/", false, openAI},
		{"", false, openAI},
		{"/v1/messages", false, anthropic},
		{"/v1/messages/", false, anthropic},
		{"/v1/messages?beta=true", false, anthropic},
		{"/chat/v1/messages", false, anthropic},
		{"/v1/messages/count_tokens", false, anthropic},
		{"/v1/messages/batches/b/results", false, anthropic},
		{"/v1/models", true, anthropic},
		{"/v1/projects/p/locations/l/publishers/anthropic/models/claude:streamRawPredict", false, anthropic},
		{"/v1beta/models/gemini:generateContent", false, google},
		{"/gemini/v1beta/models/gemini:streamGenerateContent?alt=sse", false, google},
		{"/v1/models/gemini:countTokens", false, google},
		{"/v1/models/gemini%3AcountTokens", false, google},
		{"/v1/models/gemini%3agenerateContent///", false, google},
		{"/v1/tunedModels/a:b:generateContent", false, google},
		{"/v1/projects/p/publishers/anthropic/models/claude%3ArawPredict", false, anthropic},
		{"/v1/messages///", false, anthropic},
		{"/v1/projects/p/locations/l/publishers/google/models/gemini:predict", false, google},
		{"/v1beta/files", false, google},
		{"/find?of=/v1/messages", false, openAI},
		{"/find?of=:generateContent", false, openAI},
	} {
		if got := readPath([]byte(c.path)).shape(c.version); got != c.want {
			t.Errorf("%s (anthropic-version %t): shape %d, want %d", c.path, c.version, got, c.want)
		}
	}
}

// TestShapesOfEveryRefusal: in every shape each refusal is short JSON with the message where the shape has it, and the
// reason at error.reason.
func TestShapesOfEveryRefusal(t *testing.T) {
	t.Parallel()
	for _, row := range Verdicts() {
		v := &verdict{Row: row, RetryAfter: row.Retry}
		for _, s := range []shape{openAI, anthropic, google} {
			text := s.body(v)
			var body struct {
				Type  string
				Error struct {
					Message, Type, Reason, Status string
					Code                          any
					Details                       any
				}
			}
			if err := json.Unmarshal(text, &body); err != nil {
				t.Fatalf("%s in shape %d: %v: %s", row.Reason, s, err, text)
			}
			if e := body.Error; len(text) > 512 || e.Message != row.Message || e.Reason != row.Reason {
				t.Errorf("%s in shape %d is %s (%d bytes), want the message, the reason and at most 512 bytes", row.Reason, s, text, len(text))
			}
			switch e := body.Error; s {
			case openAI:
				if e.Type != row.Type || e.Code != row.Code || body.Type != "" {
					t.Errorf("OpenAI: %s, want type %s and code %s", text, row.Type, row.Code)
				}
			case anthropic:
				if body.Type != "error" || !strings.HasSuffix(e.Type, "_error") && e.Type != "request_too_large" {
					t.Errorf("Anthropic: %s, want type error around one of the documented types", text)
				}
			case google:
				if e.Code != float64(row.HTTP) || e.Status == "UNKNOWN" || strings.Contains(string(text), "RetryInfo") != (row.Retry > 0) {
					t.Errorf("Google: %s, want code %d, a status, and RetryInfo only with a Retry-After", text, row.HTTP)
				}
			case grpcCall:
			}
		}
	}
}

// TestWhoIsToRetry: client libraries are let retry what may succeed, after the wait, and nothing that is hopeless; a wait of
// more than a minute is the caller's decision.
func TestWhoIsToRetry(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		verdict                *verdict
		should, after, afterMS string
	}{
		{&verdict{Row: table[queueTimeout], RetryAfter: 3 * time.Second}, "true", "3", "3000"},
		{&verdict{Row: table[admissionShutdown]}, "true", "", ""},
		{&verdict{Row: table[fanoutSkipped]}, "false", "", ""},
		{&verdict{Row: table[payloadTooLarge]}, "false", "", ""},
		{&verdict{Row: rowOfLease[lease.LeaseRequired]}, "false", "", ""},
		{&verdict{Row: rowOfLease[lease.FenceStale]}, "false", "", ""},
		{&verdict{Row: rowOfLease[lease.ServiceUnavailable]}, "true", "", ""},
		{&verdict{Row: rowOfLease[lease.CapacityUnavailable], RetryAfter: time.Minute}, "true", "60", "60000"},
		{&verdict{Row: rowOfLease[lease.CapacityUnavailable], RetryAfter: 2 * time.Minute}, "false", "120", "120000"},
	} {
		got := map[string]string{}
		for _, h := range openAI.headers(c.verdict) {
			got[h.Name] = h.Value
		}
		if got["x-should-retry"] != c.should || got["retry-after"] != c.after || got["retry-after-ms"] != c.afterMS {
			t.Errorf("%s after %v: %v, want x-should-retry %s, retry-after %q, retry-after-ms %q", c.verdict.Reason, c.verdict.RetryAfter, got, c.should, c.after, c.afterMS)
		}
	}
}
