package extproc

import (
	"strconv"
	"strings"
	"testing"

	modev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
)

func TestModelOfPath(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/v1beta/models/gemini-2.5-pro:streamGenerateContent?alt=sse":                                    "gemini-2.5-pro",
		"/v1beta/models/gemini-2.5-pro:generateContent/":                                                 "gemini-2.5-pro",
		"/v1beta/models/gemini-2.5-pro%3AgenerateContent":                                                "gemini-2.5-pro",
		"/leased/v1beta/tunedModels/mine:generateContent":                                                "mine",
		"/v1/projects/p/locations/l/publishers/anthropic/models/claude-opus-4@20250514:streamRawPredict": "claude-opus-4@20250514",
		"/model/anthropic.claude-3-sonnet-20240229-v1:0/converse-stream":                                 "anthropic.claude-3-sonnet-20240229-v1:0",
		"/model/anthropic.claude-3-sonnet-20240229-v1%3A0/invoke":                                        "anthropic.claude-3-sonnet-20240229-v1:0",
		"/model/arn:aws:bedrock:eu-west-1:1:inference-profile%2Feu.claude/invoke-with-response-stream":   "arn:aws:bedrock:eu-west-1:1:inference-profile/eu.claude",
		"/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21":                             "gpt-4o",
		"/x/openai/Deployments/gpt%2D4o/chat/completions":                                                "gpt-4o",
		"/openai/deployments/%zz/chat/completions":                                                       unreadableModel,
		"/v1beta/models/:generateContent":                                                                unreadableModel,
		"/v1/chat/completions":                                                                           "",
		"/v1/generateContent":                                                                            "",
		"/v1/models/gpt-4o":                                                                              "",
		"/model/x":                                                                                       "",
		"/openai/deployments":                                                                            "",
		"/deployments/x/chat/completions":                                                                "",
		"/v1/chat/completions?model=x:generateContent":                                                   "",
		"/": "",
		"":  "",
		"*": "",
	} {
		if got := readPath([]byte(path)).model(); got != want {
			t.Errorf("%s names %q, want %q", path, got, want)
		}
	}
}

// TestPathsThatAskForAStream: where the API asks for it in the path, however that is spelled.
func TestPathsThatAskForAStream(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{
		"/v1beta/models/g:streamGenerateContent?alt=sse":          true,
		"/v1beta/models/g:streamGenerateContent":                  true,
		"/v1beta/models/g%3AstreamGenerateContent/":               true,
		"/v1/publishers/anthropic/models/c:streamRawPredict":      true,
		"/v1/publishers/google/models/c:serverStreamingPredict":   true,
		"/gateway/model/anthropic.claude/converse-stream":         true,
		"/model/anthropic.claude%3A0/invoke-with-response-stream": true,
		"/v1beta/models/g:generateContent":                        false,
		"/model/anthropic.claude/converse":                        false,
		"/v1/converse-stream":                                     false,
		"/x?y=:streamGenerateContent":                             false,
		"/v1/chat/completions":                                    false,
		"":                                                        false,
	} {
		if got := readPath([]byte(path)).streams(); got != want {
			t.Errorf("%q: stream %v, want %v", path, got, want)
		}
	}
}

func TestPathsWithoutAModelCostNothing(t *testing.T) {
	path := []byte("/api/v1/chat/completions?stream=true")
	if n := testing.AllocsPerRun(100, func() { readPath(path).model() }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// listed makes acct-1 serve m1 alone and acct-2 m2 alone.
func listed(mode lease.Mode) func(*config.Config) {
	return leased(mode, func(c *config.Config) {
		c.Leases.Pools = map[string]lease.PoolSettings{"pool": {Connections: []lease.ConnectionSettings{
			{ID: "acct-1", Models: []string{"m1"}}, {ID: "acct-2", Models: []string{"m2"}},
		}}}
	})
}

// TestUnmanagedRequestsGoWhereTheirModelIsServed: by the body or the path, wherever in the body it stands, and whatever else
// it says before.
func TestUnmanagedRequestsGoWhereTheirModelIsServed(t *testing.T) {
	long := `"messages":["` + strings.Repeat("x", 300<<10) + `"]`
	for _, c := range []struct {
		name, path, body string
		connection       string // "": refused
	}{
		{"in the body", "/v1/chat/completions", `{"model":"m2"}`, "acct-2"},
		{"the other one", "/v1/chat/completions", `{"model":"m1"}`, "acct-1"},
		{"the last of two", "/v1/chat/completions", `{"model":"m1","model":"m2"}`, "acct-2"},
		{"by an escaped name", "/v1/chat/completions", `{"mod\u0065l":"m2"}`, "acct-2"},
		{"by the path, whatever the body says", "/openai/deployments/m2/chat/completions", `{"model":"m1"}`, "acct-2"},
		{"served by nobody", "/v1/chat/completions", `{"model":"m3"}`, ""},
		{"by the path, served by nobody", "/v1beta/models/m3:generateContent", `{}`, ""},
		{"a name that cannot be read", "/v1/chat/completions", `{"model":"m\u00e9"}`, ""},
		{"changed behind the evidence window", "/v1/chat/completions", `{"model":"m1",` + long + `,"model":"m2"}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, listed(lease.ModeManaged))
			s := r.open()
			s.send(rh(early, false, ":method", "POST", ":path", c.path, "content-type", "application/json"))
			s.send(chunks(c.body, 64<<10)...)
			var to string
			for {
				a := s.next()
				if i := a.GetImmediateResponse(); i != nil {
					if got := i.GetStatus().GetCode(); c.connection != "" || got != 409 {
						t.Errorf("refused with %d, want a request to %q", got, c.connection)
					}
					s.ended()
					return
				}
				for _, h := range a.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
					if h.GetHeader().GetKey() == "x-omniroute-connection" {
						to = string(h.GetHeader().GetRawValue())
					}
				}
				if c.connection == "" {
					continue // nothing or a part of the body passes
				}
				if to != c.connection {
					t.Errorf("sent to %q, want %s", to, c.connection)
				}
				s.cancel()
				return
			}
		})
	}
}

// TestLateModels: a body that names another model once the fence has been passed is refused before the upstream has all of it,
// in every mode.
func TestLateModels(t *testing.T) {
	long := `{"messages":["` + strings.Repeat("x", 300<<10) + `"],"model":`
	for name, mode := range map[string]*extprocv3.ProtocolConfiguration{
		"early": early, "streamed": announce(modev3.ProcessingMode_STREAMED), "buffered": announce(modev3.ProcessingMode_BUFFERED),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, listed(lease.ModeRequired))
			l := r.acquireFor("key-a", ownerA, "m1")
			for body, want := range map[string]int{long + `"m1"}`: 0, long + `"m2"}`: 409} {
				size := 64 << 10
				if name == "buffered" {
					size = mib
				}
				all := chunks(body, size)
				s := r.open()
				s.send(rh(mode, false, ":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json", "authorization",
					"Bearer key-a", "x-omniroute-lease-owner", ownerA, "x-omniroute-lease-generation", strconv.FormatInt(l.Generation, 10)))
				s.send(all...)
				answered, got := 0, 0
				for answered <= len(all) && got == 0 {
					if i := s.next().GetImmediateResponse(); i != nil {
						got = int(i.GetStatus().GetCode())
					}
					answered++
				}
				if got != want {
					t.Errorf("model %s: refused with %d after %d of %d answers, want %d before the last (0: not at all)",
						body[len(body)-5:], got, answered, len(all)+1, want)
				}
				s.cancel()
			}
		})
	}
}
