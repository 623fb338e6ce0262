package cross

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/admin"
)

// envoy is a version of Envoy; the zero version is the one that all tests use.
type envoy struct{ version, binary string }

func (e envoy) String() string {
	if e.version == "" {
		return "default"
	}
	return e.version
}

// envoys are those to try.
var envoys []envoy

func findEnvoys(ctx context.Context, root string) error {
	versions := strings.Fields(os.Getenv("CROSS_ENVOYS"))
	if len(versions) == 0 {
		binary, err := stack.FindEnvoy(ctx)
		envoys = []envoy{{binary: binary}}
		return err
	}
	finder := stack.Finder{Root: root, Progress: os.Stderr}
	for _, v := range versions {
		binary, err := finder.EnvoyVersion(ctx, v)
		if err != nil {
			return err
		}
		envoys = append(envoys, envoy{v, binary})
	}
	return nil
}

// start starts a stack with this Envoy.
func (e envoy) start(t *testing.T, o stack.Options) *stack.Stack {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	o.Binary, o.Run.Binary, o.Version = sidecarBinary, e.binary, e.version
	s, err := stack.Start(ctx, o)
	if err != nil {
		t.Fatalf("start the stack with Envoy %s: %v", e, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("sidecar: %s\nEnvoy: %s", s.Sidecar.Tail(), s.Envoy.Tail())
		}
		s.Stop()
	})
	return s
}

// lanes are those of the health document.
type lanes struct{ admin.Health }

func readLanes(ctx context.Context, s *stack.Stack) (h lanes, err error) {
	text, err := s.Sidecar.Get(ctx, "/api/monitoring/health")
	if err == nil {
		err = json.Unmarshal([]byte(text), &h.Health)
	}
	return h, err
}

func (h lanes) active(cluster string) int { return h.AdaptiveAdmission[cluster].ActiveCount }
func (h lanes) waiting(cluster string) int {
	l := h.AdaptiveAdmission[cluster]
	return l.QueuedCount + l.LaneQueuedCount
}

// nothingLeft checks that sidecar, Envoy and upstream are idle, and that Envoy has no complaint about the processor.
func nothingLeft(t *testing.T, s *stack.Stack) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var left map[string]float64
	var err error
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if left, err = busy(ctx, s); err == nil && len(left) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Errorf("after 10 s there is still %v (%v), want nothing", left, err)
			break
		}
	}
	if faults, err := s.Faults(ctx); err != nil || len(faults) > 0 {
		t.Errorf("Envoy counted %v (%v), want none of these", faults, err)
	}
}

// busy returns everything that is zero when nothing is going on.
func busy(ctx context.Context, s *stack.Stack) (map[string]float64, error) {
	left, err := s.Sidecar.Busy(ctx)
	if err != nil {
		return nil, err
	}
	stats, err := s.Envoy.Stats(ctx, "_rq_active")
	if err != nil {
		return nil, err
	}
	for name, n := range stats {
		if n != 0 && name != "http.admin.downstream_rq_active" && !strings.Contains(name, "processor") {
			left[name] = float64(n)
		}
	}
	started, err := s.Envoy.ProcessorStat(ctx, "streams_started")
	if err != nil {
		return nil, err
	}
	closed, err := s.Envoy.ProcessorStat(ctx, "streams_closed")
	if err != nil {
		return nil, err
	}
	if started != closed {
		left["streams to the processor"] = float64(started - closed)
	}
	if n := s.Upstream.Counts().Active; n != 0 {
		left["requests at the upstream"] = float64(n)
	}
	return left, nil
}

// impossible reports an end that Envoy does not let a kind of request have in a mode: one that buffers waits for the end of
// what has none. The body of an upgrade is of that kind too, and where nobody shows it to the sidecar nothing ends it.
func impossible(k kind, m stack.Mode, end string) bool {
	return strings.Contains("aqG", end) && (buffers(m) && (k.tunnel || k.anyAnswer) || m == stack.ModeNone && k.anyAnswer)
}

// hangs reports a tunnel through which Envoy 1.39 lets nothing pass: those over HTTP/1.1 where it streams and waits for the
// headers' answer, and those over HTTP/2 wherever it streams.
func (e envoy) hangs(k kind, m stack.Mode) bool {
	if !strings.HasPrefix(e.version, "1.39.") || !k.tunnel {
		return false
	}
	return m == stack.ModeStreamed || k.name == "h2 WebSocket" && (m == stack.ModeEarly || m == stack.ModeFullDuplex)
}
