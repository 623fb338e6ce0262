package adaptive

import (
	"strings"
	"sync"
	"testing"
)

func TestRegistryMakesOneControllerPerCluster(t *testing.T) {
	t.Parallel()
	made := 0
	r := NewRegistry(func(string) Settings { made++; return baseSettings() }, 0)
	var wg sync.WaitGroup
	got := make([]*Controller, 16)
	for i := range got {
		wg.Go(func() { got[i] = r.Controller([]string{"a", "b"}[i%2]) })
	}
	wg.Wait()
	for i, c := range got {
		if c != got[i%2] {
			t.Errorf("call %d got another controller than call %d", i, i%2)
		}
	}
	if made != 2 || len(r.Snapshot()) != 2 {
		t.Errorf("made %d controllers, snapshot of %d, want 2", made, len(r.Snapshot()))
	}
}

func TestRegistryLateControllersKnowWhatHappenedBefore(t *testing.T) {
	t.Parallel()
	r := NewRegistry(func(string) Settings { return baseSettings() }, 0)
	r.Observe(Critical)
	r.Shutdown()
	s := r.Controller("late").Snapshot()
	if s.Pressure != "critical" || s.CurrentLimit != 10 || !s.Shutdown {
		t.Errorf("pressure %s, limit %d, shutdown %v", s.Pressure, s.CurrentLimit, s.Shutdown)
	}
}

func TestRegistryConfiguresAllOrNone(t *testing.T) {
	t.Parallel()
	r := NewRegistry(func(string) Settings { return baseSettings() }, 0)
	r.Controller("good")
	r.Controller("bad")
	err := r.Configure(func(cluster string) Settings {
		s := limited(50, 4, 40)
		if cluster == "bad" {
			s.MaxWait = -1
		}
		return s
	})
	if err == nil || !strings.Contains(err.Error(), `cluster "bad": maxWait`) {
		t.Errorf("got %v", err)
	}
	for cluster, s := range r.Snapshot() {
		if s.CurrentLimit != 20 {
			t.Errorf("after a bad reload %s has limit %d", cluster, s.CurrentLimit)
		}
	}
	if err := r.Configure(func(string) Settings { return limited(50, 4, 40) }); err != nil {
		t.Fatal(err)
	}
	if got := r.Controller("good").Snapshot().CurrentLimit + r.Controller("new").Snapshot().CurrentLimit; got != 100 {
		t.Errorf("after a good reload the limits add up to %d, want 100", got)
	}
}

func TestRegistryTurnsOffWhatHasNoValidSettings(t *testing.T) {
	t.Parallel()
	r := NewRegistry(func(string) Settings { return Settings{} }, 0)
	var p Permit
	if got := r.Controller("c").Acquire(&p, Request{Cost: 1000}); got != Admitted {
		t.Errorf("answer %d", got)
	}
}
