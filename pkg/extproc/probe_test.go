package extproc

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
)

// TestSlowProbesKeepNobodyOut: probes that are being sent take no place of those that are there. Given four times as many
// slow ones as there are places, a probe with a token is answered; the slow ones are cut off at the deadline.
func TestSlowProbesKeepNobodyOut(t *testing.T) {
	r := newRig(t, nil)
	api := httptest.NewServer(r.server.ProbeHandler())
	defer api.Close()
	slow := make([]net.Conn, 4*maxProbes)
	for i := range slow {
		c, err := net.Dial("tcp", api.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "POST /v1/admission/probe HTTP/1.1\r\nHost: t\r\nContent-Length: 100\r\n\r\n{")
		slow[i] = c
	}
	token := r.parents.Issue(adaptive.Parent{Lane: "l", Cluster: "x", Depth: 1})
	c := http.Client{Timeout: 30 * time.Second}
	answer, err := c.Post(api.URL, "application/json", strings.NewReader(fmt.Sprintf(`{"parent":%q,"targets":[{"cluster":"a"}]}`, token)))
	if err != nil {
		t.Fatalf("a probe beside %d slow ones: %v", len(slow), err)
	}
	body, _ := io.ReadAll(answer.Body)
	answer.Body.Close()
	if answer.StatusCode != 200 || !strings.Contains(string(body), `"admit":1`) {
		t.Errorf("a probe beside %d slow ones: %d %s, want 200 and one to admit", len(slow), answer.StatusCode, body)
	}
	_ = slow[0].SetReadDeadline(time.Now().Add(30 * time.Second))
	got := make([]byte, len("HTTP/1.1 408"))
	if _, err := io.ReadFull(slow[0], got); err != nil || string(got) != "HTTP/1.1 408" {
		t.Errorf("a probe that does not arrive: %q (%v), want 408 after %v", got, err, probeReadTimeout)
	}
	c.CloseIdleConnections()
}

// TestProbesInMemoryAreBounded: many large probes that stop just before their end hold 16 MiB at the most; more are
// refused at once, and what was held is free afterwards.
func TestProbesInMemoryAreBounded(t *testing.T) {
	var m probeMemory
	n := 0
	for m.take(maxProbeBody) {
		n++
	}
	if want := maxProbesReading / maxProbeBody; n != want {
		t.Errorf("room for %d probes of the largest size, want %d", n, want)
	}
	_, release, refusal := m.readProbeBody(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader("{}")))
	release()
	if refusal == nil || refusal.status != http.StatusServiceUnavailable {
		t.Errorf("one more: %v, want 503", refusal)
	}
	m.held.Store(0)
	body, release, refusal := m.readProbeBody(httptest.NewRecorder(), httptest.NewRequest("POST", "/", strings.NewReader("{}")))
	release()
	if refusal != nil || string(body) != "{}" || m.held.Load() != 0 {
		t.Errorf("afterwards: %q (%v), %d bytes still counted, want {} and none", body, refusal, m.held.Load())
	}
}
