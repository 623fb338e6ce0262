//go:build llm

package llm

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// TestStreamsArriveAsTheyWereSent: through Envoy with every gate on and the witness called, the providers' own libraries get
// each stream byte by byte as the server sent it, and each event when it was sent: not in the company of later ones.
func TestStreamsArriveAsTheyWereSent(t *testing.T) {
	servers := map[string]func(*testing.T) string{
		"FastAPI": func(t *testing.T) string { return fastAPI(t, 8, 200*time.Millisecond) },
		"aimock":  aimock,
	}
	for name, server := range servers {
		t.Run(name, func(t *testing.T) {
			recorder := newRecorder(t, server(t))
			s := start(t, recorder.addr, "")
			showWitness(t, s)
			for _, sdk := range []string{"openai", "anthropic"} {
				t.Run(sdk, func(t *testing.T) {
					var got struct {
						Body   []byte
						Pieces [][2]float64 // when, in seconds, and how many bytes
					}
					recorder.reset()
					call(t, map[string]any{"do": "stream", "sdk": sdk, "base": s.Envoy.URL(), "tokens": 12}, &got)
					sent, err := recorder.body()
					if err != nil {
						t.Fatal(err)
					}
					if !bytes.Equal(got.Body, joined(sent)) {
						t.Errorf("the client got %q\nbut the server sent %q", got.Body, joined(sent))
					}
					var received []piece
					for _, p := range got.Pieces {
						whole, part := math.Modf(p[0])
						received = append(received, piece{time.Unix(int64(whole), int64(part*1e9)), got.Body[:int(p[1])]})
						got.Body = got.Body[int(p[1]):]
					}
					wantUnbuffered(t, events(sent), events(received))
				})
			}
			wantIdle(t, s)
		})
	}
}

// showWitness makes a request, after which the sidecar knows that the witness works.
func showWitness(t *testing.T, s *stack.Stack) {
	t.Helper()
	response, err := http.Post(s.Envoy.URL()+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"demo","stream":true,"max_tokens":1,"messages":[{"role":"user","content":"Is all quiet?"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("a first request: %d, %v", response.StatusCode, err)
	}
}

// wantUnbuffered checks how much later the client had each event. What collects events gives half of the stream's time as the
// median; a busy machine delays some.
func wantUnbuffered(t *testing.T, sent, received []time.Time) {
	t.Helper()
	if len(sent) < 5 || len(sent) != len(received) {
		t.Fatalf("%d events sent, %d received, want 5 or more, and the same number", len(sent), len(received))
	}
	took := sent[len(sent)-1].Sub(sent[0])
	if took < time.Second {
		t.Fatalf("the server took %v for its events, want a second or more, or nothing is shown", took)
	}
	var lags []time.Duration
	for i := range sent {
		lags = append(lags, received[i].Sub(sent[i]))
	}
	slices.Sort(lags)
	median, most := lags[len(lags)/2], lags[len(lags)-1]
	fmt.Printf("%s: %d events in %v, the client had them %v later (median), %v at most\n", t.Name(), len(sent), took.Round(time.Millisecond), median, most)
	if median > 100*time.Millisecond || most > took/2 {
		t.Errorf("events came %v later (median), %v at most, over %v; want at most 100 ms and half of it", median, most, took)
	}
}
