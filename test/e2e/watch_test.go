package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/admin"
)

// health returns the sidecar's health document.
func health(t *testing.T, s *stack.Stack) admin.Health {
	t.Helper()
	h, err := healthOf(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func healthOf(ctx context.Context, s *stack.Stack) (h admin.Health, err error) {
	text, err := s.Sidecar.Get(ctx, "/api/monitoring/health")
	if err != nil {
		return h, err
	}
	if err := json.Unmarshal([]byte(text), &h); err != nil {
		return h, fmt.Errorf("read the health document: %w", err)
	}
	return h, nil
}

// decisions returns how many decisions the sidecar has counted, by reason, without those that never happened.
func decisions(t *testing.T, s *stack.Stack) map[string]int {
	t.Helper()
	return decisionsBy(t, s, "reason")
}

// decisionsBy is decisions by another label.
func decisionsBy(t *testing.T, s *stack.Stack, label string) map[string]int {
	t.Helper()
	text, err := s.Sidecar.Get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, line := range lines(text) {
		labels, found := strings.CutPrefix(line, "headgate_decisions_total{")
		_, value, _ := strings.Cut(labels, label+`="`)
		value, _, closed := strings.Cut(value, `"`)
		var n float64
		if !found || !closed {
			continue
		}
		if _, err := fmt.Sscan(line[strings.LastIndex(line, "}")+1:], &n); err != nil {
			t.Fatalf("read %q: %v", line, err)
		}
		if n > 0 {
			counts[value] += int(n)
		}
	}
	return counts
}

// samples are what a watch has seen of the sidecar.
type samples struct {
	count      int
	mostBytes  int64 // reserved at once
	mostQueued int64 // bytes waiting at once
	over       int   // samples with more bytes reserved than the budget has
	err        error
}

// watch samples the sidecar as often as it can until the returned function is called.
func watch(ctx context.Context, s *stack.Stack) (stop func() samples) {
	ctx, cancel := context.WithCancel(ctx)
	var seen samples
	var done sync.WaitGroup
	done.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
			h, err := healthOf(ctx, s)
			if err != nil {
				if ctx.Err() == nil {
					seen.err = err
				}
				continue
			}
			b := h.ChatAdmission
			seen.count++
			seen.mostBytes, seen.mostQueued = max(seen.mostBytes, b.InflightBytes), max(seen.mostQueued, b.QueuedBytes)
			if b.InflightBytes > b.MaxInflightBytes || b.InflightBytes < 0 {
				seen.over++
			}
		}
	})
	return func() samples {
		cancel()
		done.Wait()
		return seen
	}
}

// check fails the test when more was reserved than the budget has, or nothing was seen.
func (seen samples) check(t *testing.T) {
	t.Helper()
	if seen.err != nil || seen.count == 0 || seen.over > 0 {
		t.Errorf("in %d of %d samples more bytes were reserved than the budget has (most %d, error %v), want none", seen.over, seen.count, seen.mostBytes, seen.err)
	}
}

// accessLog gives Envoy's access log to a test.
type accessLog struct{ file *os.File }

func newAccessLog(t *testing.T) accessLog {
	t.Helper()
	f, err := os.Create(t.TempDir() + "/access.log")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return accessLog{f}
}

// line waits for the line about a path and returns it.
func (l accessLog) line(t *testing.T, path string) (line string) {
	t.Helper()
	eventually(t, "the access log of "+path, func() bool {
		text, err := os.ReadFile(l.file.Name())
		if err != nil {
			t.Fatal(err)
		}
		for _, line = range lines(string(text)) {
			if strings.Contains(line, " "+path+" ") {
				return true
			}
		}
		return false
	})
	return line
}

// oneAtATime are settings for a cluster whose lane admits one request without a body, which costs 4, and lets the others
// wait that long.
func oneAtATime(cluster, wait string) string {
	return fmt.Sprintf("clusters: {%s: {lanes: {mode: enforce, minLimit: 4, initialLimit: 4, maxLimit: 4, maxShare: 1, maxWait: %s}}}", cluster, wait)
}
