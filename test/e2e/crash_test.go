package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// TestACrashFailsOnlyWhatTheUpstreamWorksOn: the sidecar is killed again and again under load. A request that Envoy had
// forwarded and that the upstream has not answered yet gets a 503, since nobody knows what becomes of it; every other one is
// answered, also what the dead sidecar had read and not decided: Envoy sends it to the next.
//
// Not in parallel with others: a sidecar has to start within the wait.
func TestACrashFailsOnlyWhatTheUpstreamWorksOn(t *testing.T) {
	log := newAccessLog(t)
	s := start(t, stack.Options{Overlay: quickDrain, Run: stack.EnvoyOptions{AccessLog: log.file}}, expectation{faults: []string{"streams_failed"}})
	load := startLoad(t, 50<<10, func() *stack.Stack { return s })
	const kills = 10
	for i := range kills {
		time.Sleep(300 * time.Millisecond)
		load.enter(fmt.Sprintf("crash %d", i))
		s.Sidecar.Kill()
		time.Sleep(100 * time.Millisecond)
		restart(t, s)
	}
	load.stop()
	load.all.Wait()
	failed := 0
	for _, n := range load.failed {
		failed += n
	}
	var undecided []string
	cut := 0
	eventually(t, "the access log to name every failure", func() bool {
		text, err := os.ReadFile(log.file.Name())
		if err != nil {
			t.Fatal(err)
		}
		cut, undecided = 0, nil
		for _, line := range lines(string(text)) {
			switch {
			case strings.Contains(line, " status=200 "):
			case strings.Contains(line, " decision=admitted "):
				cut++
			default:
				undecided = append(undecided, line)
			}
		}
		return cut+len(undecided) == failed
	})
	t.Logf("%d requests over %d crashes: %d were with the upstream and failed, %d undecided", load.sent, kills, cut, len(undecided))
	if len(undecided) > 0 {
		t.Errorf("%d requests that were not admitted failed, want none, the first: %s", len(undecided), undecided[0])
	}
	if cut == 0 {
		t.Error("no crash met a request that was with the upstream, so the load was too thin to show anything")
	}
	for what := range load.failed {
		if !strings.Contains(what, " = 503 ") {
			t.Errorf("a client saw %s, want 503 and nothing else", what)
		}
	}
}

// TestACrashKeepsWhoWaits: what waits in a lane when the sidecar dies waits in the next one's lane, or is admitted there.
func TestACrashKeepsWhoWaits(t *testing.T) {
	s := start(t, stack.Options{Overlay: "clusters: {default: {lanes: {mode: enforce, minLimit: 9, initialLimit: 9, maxLimit: 9, maxShare: 1, maxWait: 30s}}}"},
		expectation{faults: []string{"streams_failed"}})
	answers := make(chan string, 4)
	ask := func(path string) {
		got, err := send(t.Context(), s, client(t, false), request{method: "POST", path: path, body: strings.NewReader("{}")})
		answers <- fmt.Sprintf("%s %d %s (%v)", path, got.status, got.reason(), err)
	}
	go ask("/first?ms=60000")
	eventually(t, "the first to be with the upstream", func() bool { return s.Upstream.CountsOf("/first").Active == 1 })
	for range 3 {
		go ask("/waits")
	}
	eventually(t, "three to wait", func() bool { return inLanes(t, s) == 3 })
	s.Sidecar.Kill()
	restart(t, s)
	want := map[string]int{"/first?ms=60000 503  (<nil>)": 1, "/waits 200  (<nil>)": 3}
	for range 4 {
		got := <-answers
		if want[got]--; want[got] < 0 {
			t.Errorf("answered %s, want 503 for what was with the upstream and 200 for who waited", got)
		}
	}
}

// inLanes is how many wait for the upstream of the default route.
func inLanes(t *testing.T, s *stack.Stack) int {
	t.Helper()
	l := health(t, s).AdaptiveAdmission["default"]
	return l.QueuedCount + l.LaneQueuedCount
}
