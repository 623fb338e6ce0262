package extproc

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"testing"
	"time"

	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/config"
)

// TestARefusalsLineSaysHowBusyItIs: beside one heavy request of 3 MiB and one of 2 MiB that waits, in a budget of 4 MiB.
func TestARefusalsLineSaysHowBusyItIs(t *testing.T) {
	t.Parallel()
	c := budget.New(config.Default().Bytes, memory.Budget{Bytes: 4 * mib}, func() memory.Pressure { return memory.Pressure{Healthy: true} })
	hold, _, _ := c.Acquire(budget.Request{Key: "a", Bytes: 3 * mib})
	_, waiter, refusal := c.Acquire(budget.Request{Key: "b", Bytes: 2 * mib, MaxWait: time.Minute})
	if hold == nil || waiter == nil {
		t.Fatalf("no reservation or no wait: %v", refusal)
	}
	defer hold.Release()
	defer waiter.Cancel()
	var line bytes.Buffer
	newShedLog(slog.New(slog.NewJSONHandler(&line, nil))).refused(Decision{Reason: "queue_timeout"}, c)
	var got map[string]any
	if err := json.Unmarshal(line.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]any{"reason": "queue_timeout", "activeHeavy": 1., "waiting": 1., "queuedBytes": 2. * mib} {
		if got[name] != want {
			t.Errorf("the line says %s %v, want %v: %s", name, got[name], want, line.String())
		}
	}
}
