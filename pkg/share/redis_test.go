package share

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/adaptive"
)

func startRedis(t *testing.T) *stack.Redis {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, err := stack.StartRedis(ctx, stack.RedisOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	return r
}

// Both stores answer the same to the same calls, ages and moments aside.
func TestStoresAgree(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	memory, real := Store(NewMemory()), Store(NewRedis(r.Client(), "test"))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	versions := map[Store]int64{}
	nows := map[Store]int64{}
	exchange := func(member string, want, floor, most int) {
		t.Helper()
		c := Claim{Member: member, Record: []byte(member + "\x00\n\xff " + fmt.Sprint(want)), Want: want, Floor: floor, Alone: want, Window: time.Minute, Most: most, Limit: 64, Replicas: 4, Part: 5}
		var views [2]View
		for i, s := range []Store{memory, real} {
			v, err := s.Exchange(ctx, "group", c)
			if err != nil {
				t.Fatal(err)
			}
			versions[s], nows[s] = v.Version, v.Now
			views[i] = v
		}
		for _, o := range views[0].Others {
			found := false
			for _, p := range views[1].Others {
				found = found || o.Member == p.Member && o.Claim == p.Claim && string(o.Record) == string(p.Record)
			}
			if !found {
				t.Errorf("%s sees %+v in the process, but not on Redis: %+v", member, o, views[1].Others)
			}
		}
		if a, b := views[0], views[1]; a.Granted != b.Granted || string(a.State) != string(b.State) || len(a.Others) != len(b.Others) || (a.Version == 0) != (b.Version == 0) {
			t.Errorf("%s wants %d: %+v in the process, %+v on Redis", member, want, a, b)
		}
	}
	commit := func(stale bool, limit int) {
		t.Helper()
		for _, s := range []Store{memory, real} {
			step := Step{Version: versions[s], At: nows[s], Limit: limit, State: []byte("state\x00\n" + fmt.Sprint(limit)), Window: time.Minute}
			if stale {
				step.Version--
			}
			ok, err := s.Commit(ctx, "group", step)
			if err != nil || ok == stale {
				t.Errorf("commit to %T: %v, %v; want %v", s, ok, err, !stale)
			}
		}
	}
	exchange("a", 100, 2, 1000) // as much as there is: 64
	exchange("b", 10, 2, 1000)  // its floor
	commit(false, 80)
	commit(true, 500) // from the version before
	exchange("b", 10, 2, 1000)
	exchange("a", 30, 2, 1000) // gives up some
	exchange("b", 60, 2, 1000) // gets it
	exchange("b", 60, 2, 60)   // two more may take 5 each
	exchange("c", 60, 2, 50)   // no room under the bound of all
	exchange("c", 1, 2, 1000)
	for _, s := range []Store{memory, real} {
		if err := s.Leave(ctx, "group", "a"); err != nil {
			t.Fatal(err)
		}
	}
	commit(true, 500)
	exchange("c", 50, 2, 1000)
}

// A member that stops claims nothing after three windows, and the group is forgotten at last.
func TestRedisForgets(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	s := NewRedis(r.Client(), "test")
	ctx := t.Context()
	window := 400 * time.Millisecond
	exchange := func(member string, want int) View {
		t.Helper()
		v, err := s.Exchange(ctx, "g", Claim{Member: member, Want: want, Floor: 1, Window: window, Most: 1000, Limit: 64})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	exchange("dead", 60)
	if got := exchange("a", 64).Granted; got > 4 {
		t.Errorf("granted %d of 64 while another claims 60", got)
	}
	for began := time.Now(); time.Since(began) < 3*window+window/2; time.Sleep(window / 4) {
		exchange("a", 64)
	}
	if v := exchange("a", 64); v.Granted != 64 || len(v.Others) != 0 {
		t.Errorf("after three windows: granted %d beside %d others, want all 64 and none", v.Granted, len(v.Others))
	}
	ttl, err := r.Do(ctx, "PTTL", s.key("g")[0])
	if n, ok := ttl.(int64); err != nil || !ok || n <= 0 || n > forgetWindows*window.Milliseconds() {
		t.Errorf("the group's time to live is %v ms (%v), want at most %d", ttl, err, forgetWindows*window.Milliseconds())
	}
}

// A window costs a member two commands at most and 4 KiB, with 1000 lanes.
func TestCostOfAWindow(t *testing.T) {
	t.Parallel()
	r := startRedis(t)
	ctx := t.Context()
	s := adaptive.DefaultSettings()
	s.Mode, s.VirtualLanes, s.Window = adaptive.Enforce, true, time.Hour
	s.MaxLimit, s.InitialLimit = 100_000, 100_000
	c, err := adaptive.New(s)
	if err != nil {
		t.Fatal(err)
	}
	permits := make([]adaptive.Permit, 1000)
	for i := range permits {
		if c.Acquire(&permits[i], adaptive.Request{Lane: fmt.Sprint("lane_", i), Cost: 1 + i%40, Forward: true}) != adaptive.Admitted {
			t.Fatal("not admitted")
		}
		defer permits[i].Done(adaptive.OK)
	}
	m := NewMember("g", c, NewRedis(r.Client(), "test"), func() adaptive.Settings { return s })
	s.Window = time.Millisecond // the next state is always due
	before := stats(t, r)
	const windows = 50
	for i := range windows + 1 {
		if i == 1 {
			before = stats(t, r) // the first has sent the scripts
		}
		time.Sleep(2 * time.Millisecond)
		m.exchange(ctx, time.Minute)
	}
	after := stats(t, r)
	if status := m.Status(); status.Failures > 0 {
		t.Fatalf("%d exchanges failed: %s", status.Failures, status.Error)
	}
	commands := float64(after.scripts-before.scripts) / windows
	sent := float64(after.in-before.in) / windows
	t.Logf("%.2f commands and %.0f bytes a window", commands, sent)
	if commands > 2 || sent > 4096 {
		t.Errorf("%.2f commands and %.0f bytes a window with 1000 lanes, want at most 2 and 4096", commands, sent)
	}
	if commands < 1 {
		t.Errorf("%.2f commands a window: this counts nothing", commands)
	}
}

type redisStats struct{ scripts, in int }

var calls = regexp.MustCompile(`cmdstat_(?:evalsha|eval|hdel):calls=(\d+)`)

// stats are the commands that clients sent so far, and the bytes of all.
func stats(t *testing.T, r *stack.Redis) (s redisStats) {
	t.Helper()
	info, err := r.Client().Info(t.Context(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range calls.FindAllStringSubmatch(info, -1) {
		n, _ := strconv.Atoi(m[1])
		if strings.Contains(m[0], "eval") {
			s.scripts += n
		}
	}
	info, err = r.Client().Info(t.Context(), "stats").Result()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(info, "total_net_input_bytes:")
	s.in, _ = strconv.Atoi(strings.TrimSpace(strings.SplitN(rest, "\n", 2)[0]))
	return s
}

// A store that answers something else is an error, not a panic.
func TestRedisAnswersOfOtherShape(t *testing.T) {
	for _, answer := range [][]any{nil, {"1"}, {"1", "2", "3", "4", "5", "6"}, {"x", "0", "0", "1", "", []any{}}, {"1", "0", "0", "1", "", []any{"x"}}, {"1", "0", "0", "1", "", []any{[]any{"a", "b", "c", "d"}}}, {1, 2, 3, 4, 5, 6}} {
		if v, err := readView(answer); err == nil {
			t.Errorf("%v: %+v without an error", answer, v)
		}
	}
}
