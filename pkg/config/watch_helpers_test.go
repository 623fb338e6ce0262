package config

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds the wait for what should happen at once.
const patience = 20 * time.Second

// watched is a Watcher over a file, with what it applied and logged.
type watched struct {
	*Watcher
	path    string
	trigger chan os.Signal
	applied chan *Config

	mu  sync.Mutex
	log bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

func (w *watched) logged(part string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Count(w.log.String(), part)
}

// watch loads path and watches it until the test ends. Polling is off but for tests that set it.
func watch(t *testing.T, path string, options ...func(*WatchOptions)) *watched {
	t.Helper()
	c, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &watched{path: path, trigger: make(chan os.Signal, 1), applied: make(chan *Config, 16)}
	o := WatchOptions{
		Path: path, Trigger: w.trigger, Debounce: 30 * time.Millisecond, Poll: time.Hour,
		Log: slog.New(slog.NewJSONHandler(w, nil)),
		Apply: func(c *Config) error {
			w.applied <- c
			return nil
		},
	}
	for _, option := range options {
		option(&o)
	}
	w.Watcher = NewWatcher(c, o)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(patience):
			t.Error("Run did not return after its context ended")
		}
	})
	return w
}

func (w *watched) expectApplied(t *testing.T, maxWait time.Duration) {
	t.Helper()
	select {
	case c := <-w.applied:
		if c.Decision.MaxWait != maxWait {
			t.Fatalf("expected decision.maxWait %v to be applied, got %v", maxWait, c.Decision.MaxWait)
		}
	case <-time.After(patience):
		t.Fatalf("nothing applied; status %+v", w.Status())
	}
}

func (w *watched) expectStatus(t *testing.T, what string, ok func(ReloadStatus) bool) ReloadStatus {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		status := w.Status()
		if ok(status) {
			return status
		}
		if time.Now().After(deadline) {
			t.Fatalf("expected %s, got %+v", what, status)
		}
	}
}

func (w *watched) expectNothingApplied(t *testing.T) {
	t.Helper()
	select {
	case c := <-w.applied:
		t.Fatalf("applied decision.maxWait %v", c.Decision.MaxWait)
	case <-time.After(150 * time.Millisecond):
	}
}

func maxWait(seconds int) string { return fmt.Sprintf("decision: {maxWait: %ds}\n", seconds) }

func overwrite(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// replace is what careful programs do. A file overwritten in place can be seen half written when the machine is busy.
func replace(t *testing.T, path, text string) {
	t.Helper()
	overwrite(t, path+".new", text)
	rename(t, path+".new", path)
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func symlink(t *testing.T, target, link string) {
	t.Helper()
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
}
