package config

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
)

func TestReloadWhenTheFileIsWrittenInPlace(t *testing.T) {
	t.Parallel()
	w := watch(t, writeFile(t, t.TempDir(), maxWait(1)))
	for i := 2; i <= 4; i++ {
		overwrite(t, w.path, maxWait(i))
		w.expectApplied(t, time.Duration(i)*time.Second)
	}
	status := w.expectStatus(t, "3 reloads", func(s ReloadStatus) bool { return s.Count == 3 })
	if !status.LastSuccess || status.LastError != "" || status.At.IsZero() {
		t.Errorf("expected a success, got %+v", status)
	}
	if c, _ := Load(w.path, nil); status.Hash != c.Hash() {
		t.Errorf("expected hash %s, got %s", c.Hash(), status.Hash)
	}
}

func TestReloadWhenTheFileIsRenamedOver(t *testing.T) {
	t.Parallel()
	w := watch(t, writeFile(t, t.TempDir(), maxWait(1)))
	for i := 2; i <= 4; i++ {
		replace(t, w.path, maxWait(i))
		w.expectApplied(t, time.Duration(i)*time.Second)
	}
}

func TestReloadWhenTheFileIsRemovedAndCreated(t *testing.T) {
	t.Parallel()
	w := watch(t, writeFile(t, t.TempDir(), maxWait(1)))
	rename(t, w.path, w.path+"~")
	status := w.expectStatus(t, "a failure", func(s ReloadStatus) bool { return s.Failures == 1 })
	if status.LastSuccess || !strings.Contains(status.LastError, "no such file") {
		t.Errorf("expected that the file is missed, got %+v", status)
	}
	replace(t, w.path, maxWait(2))
	w.expectApplied(t, 2*time.Second)
}

// TestReloadOfAConfigMap does what the kubelet does: the file links to ..data/file, and ..data is swapped.
func TestReloadOfAConfigMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	publish := func(version, text string) {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		overwrite(t, filepath.Join(dir, version, "headgate.yaml"), text)
		symlink(t, version, filepath.Join(dir, "..data_tmp"))
		rename(t, filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data"))
	}
	publish("..2026_01", maxWait(1))
	symlink(t, filepath.Join("..data", "headgate.yaml"), filepath.Join(dir, "headgate.yaml"))
	w := watch(t, filepath.Join(dir, "headgate.yaml"))
	for i := 2; i <= 4; i++ {
		publish(fmt.Sprintf("..2026_%02d", i), maxWait(i))
		if err := os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..2026_%02d", i-1))); err != nil {
			t.Fatal(err)
		}
		w.expectApplied(t, time.Duration(i)*time.Second)
	}
	if failures := w.Status().Failures; failures != 0 {
		t.Errorf("expected no failure on the way, got %d", failures)
	}
}

func TestReloadThroughALinkToAnotherDirectory(t *testing.T) {
	t.Parallel()
	target := writeFile(t, t.TempDir(), maxWait(1))
	link := filepath.Join(t.TempDir(), "config")
	symlink(t, target, link)
	w := watch(t, link)
	overwrite(t, target, maxWait(2))
	w.expectApplied(t, 2*time.Second)
}

func TestPollingFindsWhatNoticesMiss(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for i, version := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(root, version), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(root, version), maxWait(i+1))
	}
	link := filepath.Join(root, "current")
	symlink(t, "a", link)
	w := watch(t, filepath.Join(link, "headgate.yaml"), func(o *WatchOptions) { o.Poll = 20 * time.Millisecond })
	symlink(t, "b", link+"2")
	rename(t, link+"2", link)
	w.expectApplied(t, 2*time.Second)
}

func TestAChangeBeforeTheWatchIsSeen(t *testing.T) {
	t.Parallel()
	path := writeFile(t, t.TempDir(), maxWait(1))
	c, err := Load(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	overwrite(t, path, maxWait(2))
	applied := make(chan *Config, 1)
	ctx, cancel := context.WithCancel(context.Background())
	w := NewWatcher(c, WatchOptions{Path: path, Apply: func(c *Config) error { applied <- c; return nil }})
	done := make(chan struct{})
	go func() { defer close(done); w.Run(ctx) }()
	select {
	case c := <-applied:
		if c.Decision.MaxWait != 2*time.Second {
			t.Errorf("expected 2s, got %v", c.Decision.MaxWait)
		}
	case <-time.After(patience):
		t.Error("the change was missed")
	}
	cancel()
	<-done
}

func TestAFaultyFileKeepsTheOldConfiguration(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"negative size": "bytes: {hardMaxBody: -1}\n", "tab": "bytes:\n\thardMaxBody: 1\n", "unknown key": "max_body: 1\n",
		"empty": "", "exponent": "bytes: {hardMaxBody: 1e6}\n", "unit": "bytes: {hardMaxBody: 1Mi}\n", "cross check": "shutdown: {drain: 1h}\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good := maxWait(1)
			w := watch(t, writeFile(t, t.TempDir(), good), func(o *WatchOptions) { o.Poll = 20 * time.Millisecond })
			hash := w.Status().Hash
			replace(t, w.path, text)
			status := w.expectStatus(t, "a failure", func(s ReloadStatus) bool { return s.Failures > 0 })
			w.expectNothingApplied(t)
			if status.LastSuccess || status.Hash != hash || !strings.Contains(status.LastError, "fault") {
				t.Errorf("expected the old hash %s and the faults, got %+v", hash, status)
			}
			if again := w.Status(); again.Failures != 1 || w.logged("not reloaded") != 1 {
				t.Errorf("expected one attempt and one line, got %d and %d", again.Failures, w.logged("not reloaded"))
			}
			replace(t, w.path, good)
			status = w.expectStatus(t, "recovery", func(s ReloadStatus) bool { return s.LastSuccess })
			if status.LastError != "" || status.Count != 0 {
				t.Errorf("the old file is back: expected no error and no reload, got %+v", status)
			}
		})
	}
}

func TestAllFaultsAreInOneLine(t *testing.T) {
	t.Parallel()
	w := watch(t, writeFile(t, t.TempDir(), maxWait(1)))
	replace(t, w.path, "bytes: {hardMaxBody: -1}\nbogus: 1\nlog: {level: loud}\n")
	w.expectStatus(t, "a failure", func(s ReloadStatus) bool { return s.Failures > 0 })
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(w.log.String()), "\n")
	last := lines[len(lines)-1]
	for _, part := range []string{`"level":"ERROR"`, "bytes.hardMaxBody", "bogus", "log.level", "3 faults"} {
		if !strings.Contains(last, part) {
			t.Errorf("expected %s in %s", part, last)
		}
	}
}

func TestWhatCannotBeAppliedKeepsTheOldConfiguration(t *testing.T) {
	t.Parallel()
	w := watch(t, writeFile(t, t.TempDir(), maxWait(1)), func(o *WatchOptions) {
		apply := o.Apply
		o.Apply = func(c *Config) error {
			if c.Decision.MaxWait == 2*time.Second {
				return errors.New("no such thing as two")
			}
			return apply(c)
		}
	})
	hash := w.Status().Hash
	replace(t, w.path, maxWait(2))
	status := w.expectStatus(t, "a failure", func(s ReloadStatus) bool { return s.Failures == 1 })
	if status.Hash != hash || status.Count != 0 || !strings.Contains(status.LastError, "no such thing as two") {
		t.Errorf("expected hash %s and the error, got %+v", hash, status)
	}
	replace(t, w.path, maxWait(3))
	w.expectApplied(t, 3*time.Second)
}

// TestWhatCannotBeAppliedIsTriedAgain: what stood in the way may pass without the file changing. The tries become rarer, and a
// change of the file is tried at once.
func TestWhatCannotBeAppliedIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := writeFile(t, t.TempDir(), maxWait(1))
		c, err := Load(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var mu sync.Mutex
		var tries []time.Duration
		fails := true
		tried := func(fail bool) (at []time.Duration) { // since the last call; and how it goes from now on
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			at, tries, fails = tries, nil, fail
			return at
		}
		w := NewWatcher(c, WatchOptions{Path: path, Poll: 3 * time.Second, Apply: func(*Config) error {
			mu.Lock()
			defer mu.Unlock()
			tries = append(tries, time.Since(began).Round(time.Second))
			if fails {
				return errors.New("the store is away")
			}
			return nil
		}})
		overwrite(t, path, maxWait(2))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); w.run(ctx, &notices{path: path}) }()
		time.Sleep(200*time.Second - time.Millisecond)
		want := []time.Duration{0, 1, 3, 7, 15, 31, 63, 123, 183}
		for i := range want {
			want[i] *= time.Second
		}
		if got := tried(true); !slices.Equal(got, want) {
			t.Errorf("tried at %v, want %v", got, want)
		}
		if s := w.Status(); s.LastSuccess || s.Failures != int64(len(want)) || !strings.Contains(s.LastError, "the store is away") {
			t.Errorf("status %+v, want %d failures and the reason", s, len(want))
		}
		overwrite(t, path, maxWait(3))
		time.Sleep(5 * time.Second) // a poll, at 201 s, and a retry a second later
		want = []time.Duration{201 * time.Second, 202 * time.Second, 204 * time.Second}
		if got := tried(false); !slices.Equal(got, want) {
			t.Errorf("after a change tried at %v, want %v", got, want)
		}
		time.Sleep(time.Minute)
		if s, got := w.Status(), tried(false); len(got) != 1 || !s.LastSuccess || s.Count != 1 || s.LastError != "" {
			t.Errorf("%d tries once nothing is in the way, status %+v; want one and a success", len(got), s)
		}
		cancel()
		<-done
	})
}

// TestATriggerThatCannotBeAppliedIsTriedAgain: although nothing has changed but what the configuration names.
func TestATriggerThatCannotBeAppliedIsTriedAgain(t *testing.T) {
	t.Parallel()
	var tries atomic.Int32
	w := watch(t, "", func(o *WatchOptions) {
		o.Retry = 10 * time.Millisecond
		apply := o.Apply
		o.Apply = func(c *Config) error {
			if tries.Add(1) < 4 {
				return errors.New("the password file is away")
			}
			return apply(c)
		}
	})
	w.trigger <- syscall.SIGHUP
	w.expectApplied(t, 8*time.Second)
	if status := w.expectStatus(t, "success", func(s ReloadStatus) bool { return s.LastSuccess }); status.Failures != 3 {
		t.Errorf("%d failures before it, want 3", status.Failures)
	}
}

func TestTriggerReloadsEvenWithoutAChange(t *testing.T) {
	t.Parallel()
	w := watch(t, writeFile(t, t.TempDir(), maxWait(1)))
	for range 2 {
		w.trigger <- syscall.SIGHUP
		w.expectApplied(t, time.Second)
	}
	w.expectStatus(t, "2 reloads", func(s ReloadStatus) bool { return s.Count == 2 && s.LastSuccess })
	close(w.trigger) // as signal.Stop and close by a caller that shuts down
	replace(t, w.path, maxWait(5))
	w.expectApplied(t, 5*time.Second)
}

func TestTriggerWithoutAFile(t *testing.T) {
	t.Parallel()
	w := watch(t, "")
	w.trigger <- syscall.SIGHUP
	w.expectApplied(t, 8*time.Second)
}

func TestEqualSettingsAreNotAppliedAgain(t *testing.T) {
	t.Parallel()
	w := watch(t, writeFile(t, t.TempDir(), maxWait(1)))
	replace(t, w.path, "# a comment\n"+maxWait(1))
	w.expectStatus(t, "an attempt", func(s ReloadStatus) bool { return !s.At.IsZero() })
	w.expectNothingApplied(t)
	if status := w.Status(); status.Count != 0 || !status.LastSuccess {
		t.Errorf("expected a success without a reload, got %+v", status)
	}
}

func TestOtherFilesInTheDirectoryAreIgnored(t *testing.T) {
	t.Parallel()
	const dir = "/etc/headgate"
	n := &notices{names: []string{"..data", "headgate.yaml"}}
	for name, want := range map[string]bool{"headgate.yaml": true, "..data": true, "headgate.yaml~": false, "access.log": false} {
		if got := n.concern(fsnotify.Event{Name: filepath.Join(dir, name)}); got != want {
			t.Errorf("%s: expected %t, got %t", name, want, got)
		}
	}
}

// TestNeighboursWakeNobody: what is written beside a file that is no link raises no notice, and what happens to the file does,
// however often it is replaced.
func TestNeighboursWakeNobody(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.yaml")
	overwrite(t, path, maxWait(1))
	w := NewWatcher(Default(), WatchOptions{Path: path})
	n := w.openNotices()
	defer n.close()
	for i := range 200 {
		overwrite(t, filepath.Join(filepath.Dir(path), "noisy.log"), strings.Repeat("x", i))
	}
	select {
	case event := <-n.events:
		t.Fatalf("a neighbour raised %v, want nothing", event)
	case <-time.After(100 * time.Millisecond):
	}
	for i := range 3 {
		replace(t, path, maxWait(i+2))
		select {
		case event := <-n.events:
			if !n.concern(event) {
				t.Errorf("replacement %d: %v concerns nobody", i, event)
			}
		case <-time.After(patience):
			t.Fatalf("replacement %d raised no notice", i)
		}
		n.follow()
		for len(n.events) > 0 {
			<-n.events
		}
	}
}

func TestChangesThatNeedARestartAreReported(t *testing.T) {
	t.Parallel()
	w := watch(t, writeFile(t, t.TempDir(), maxWait(1)))
	replace(t, w.path, "listen: {api: \"127.0.0.1:9999\"}\n"+maxWait(2))
	w.expectApplied(t, 2*time.Second)
	w.expectStatus(t, "a reload", func(s ReloadStatus) bool { return s.Count == 1 })
	for deadline := time.Now().Add(patience); w.logged("need a restart") == 0; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("expected a warning")
		}
	}
	if w.logged(`"paths":["listen.api"]`) != 1 {
		t.Errorf("expected the path of what needs a restart")
	}
	// It is said again as long as it is true.
	replace(t, w.path, "listen: {api: \"127.0.0.1:9999\"}\n"+maxWait(3))
	w.expectApplied(t, 3*time.Second)
	for deadline := time.Now().Add(patience); w.logged("need a restart") < 2; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("expected a second warning")
		}
	}
}
