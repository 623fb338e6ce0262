//go:build endurance

package endurance

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Capacity of the overloaded upstream: so many at a time, each so long.
const (
	slots   = 16
	service = 200 * time.Millisecond
)

// TestOverload: at ten times what the upstream can do it does nearly all that it can, refusals come soon, cost less than
// admissions and take no memory with them, and soon after all is as before. Then 10 000 streams are held at once.
func TestOverload(t *testing.T) {
	lasts := length(t, "OVERLOAD", time.Minute)
	r := begin(t, rigOptions{slots: slots})
	ctx := t.Context()
	capacity := float64(slots) / service.Seconds()
	before, err := r.vitals(ctx)
	if err != nil {
		t.Fatal(err)
	}
	half := flood(ctx, r, capacity/2, lasts/4)
	ten := flood(ctx, r, 10*capacity, lasts)
	after, err := r.vitals(ctx)
	if err != nil {
		t.Error(err)
	}
	recovery := recovers(ctx, r)
	held, heldErr := hold(ctx, t, r, 10_000)
	ok := func(b bool) string { return map[bool]string{true: "ok", false: "MISSED"}[b] }
	row := func(name, value, goal string, met bool) {
		fmt.Printf("%-44s %14s %14s  %s\n", name, value, goal, ok(met))
		if !met {
			t.Errorf("%s: %s, want %s", name, value, goal)
		}
	}
	fmt.Println()
	good := ten.served / lasts.Seconds() / capacity
	row("goodput at 10 times, of capacity", fmt.Sprintf("%.2f", good), ">= 0.90", good >= 0.9)
	fmt.Printf("%-44s %14s\n", "  by thirds of the time", ten.thirds(lasts.Seconds()*capacity))
	row("offered, of capacity (the client's own limit)", fmt.Sprintf("%.1f", ten.sent/lasts.Seconds()/capacity), ">= 5", ten.sent/lasts.Seconds()/capacity >= 5)
	row("refusal after its decision, median (p99)", fmt.Sprintf("%.0f (%.0f) ms", ten.late(0.5), ten.late(0.99)), "50 ms median", ten.late(0.5) <= 50)
	admitted, refused := half.cpu/half.served, (ten.cpu-ten.served*half.cpu/half.served)/max(ten.refused, 1)
	row("processor time of a refusal / of an admission", fmt.Sprintf("%.0f / %.0f µs", refused*1e6, admitted*1e6), "less", refused < admitted)
	row("memory after 10 times, over idle", fmt.Sprintf("%.0f MiB", after.MemoryMiB-before.MemoryMiB), "<= 128 MiB", after.MemoryMiB-before.MemoryMiB <= 128)
	row("everything served again after", recovery.String(), "<= 2 s", recovery <= 2*time.Second)
	row("streams held at once", fmt.Sprint(held), "10000", held == 10_000 && heldErr == nil)
	if heldErr != nil {
		t.Error(heldErr)
	}
	left, err := r.idle(context.Background())
	row("in flight, waiting, reserved in the end", fmt.Sprint(len(left)), "0", err == nil && len(left) == 0)
	if faults := r.judge.verdict(); len(faults) > 0 {
		t.Errorf("the upstream found %v", faults)
	}
}

// flooded is what came of a flood.
type flooded struct {
	sent, served, refused, failed float64
	third                         [3]float64 // of served, by when they were sent
	cpu                           float64    // seconds, of the sidecar
	lates                         []float64  // ms from a refusal's decision to the client, as far as the client can tell
}

// thirds is the goodput of each third of the time, for the capacity of all of it.
func (f flooded) thirds(capacity float64) string {
	return fmt.Sprintf("%.2f %.2f %.2f", 3*f.third[0]/capacity, 3*f.third[1]/capacity, 3*f.third[2]/capacity)
}

func (f flooded) late(q float64) float64 { return quantile(f.lates, q) }

// flood sends rate requests a second. The time of a refusal is measured from the wait that it is for: none.
func flood(ctx context.Context, r *rig, rate float64, d time.Duration) (f flooded) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	c := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4000}, Timeout: 30 * time.Second}
	defer c.CloseIdleConnections()
	began, start := cpu(r.sidecar.PID()), time.Now()
	var mu sync.Mutex
	var all sync.WaitGroup
	var names atomic.Int64
	const step = 10 * time.Millisecond
	due := 0.0
	tick := time.NewTicker(step)
	defer tick.Stop()
	for last := time.Now(); ; {
		select {
		case <-ctx.Done():
			all.Wait()
			f.cpu = cpu(r.sidecar.PID()) - began
			return f
		case now := <-tick.C:
			due += rate * now.Sub(last).Seconds()
			last = now
		}
		for ; due >= 1; due-- {
			all.Go(func() {
				q, err := http.NewRequest("POST", fmt.Sprintf("http://%s/v1/chat/completions?ms=%d", r.listen, service.Milliseconds()), strings.NewReader(chat))
				if err != nil {
					return
				}
				n := names.Add(1)
				q.Header.Set("Content-Type", "application/json")
				q.Header.Set("X-Tenant-Id", fmt.Sprintf("tenant-%d", n%10))
				sent := time.Now()
				in, err := c.Do(q)
				mu.Lock()
				defer mu.Unlock()
				f.sent++
				switch {
				case err != nil:
					f.failed++
					return
				case in.StatusCode == http.StatusOK:
					f.served++
					f.third[min(int(3*sent.Sub(start)/d), 2)]++
				case in.Header.Get("X-Headgate-Reason") == "admission_queue_full": // decided at once
					f.refused++
					f.lates = append(f.lates, float64(time.Since(sent).Microseconds())/1000)
				case in.Header.Get("X-Headgate-Reason") != "":
					f.refused++
				default:
					f.failed++
				}
				in.Body.Close()
			})
		}
	}
}

// recovers returns how long after the flood ten requests in a row are served.
func recovers(ctx context.Context, r *rig) time.Duration {
	began := time.Now()
	for {
		at, good := time.Now(), 0
		for good < 10 {
			in, err := http.Post(fmt.Sprintf("http://%s/v1/chat/completions?ms=1", r.listen), "application/json", strings.NewReader(chat))
			if err != nil {
				break
			}
			in.Body.Close()
			if in.StatusCode != http.StatusOK {
				break
			}
			good++
		}
		if good == 10 || time.Since(began) > 30*time.Second || ctx.Err() != nil {
			return at.Sub(began).Round(time.Millisecond)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// hold opens n streams over HTTP/2 through routes without lanes and keeps them open at once; it returns how many were.
func hold(ctx context.Context, t *testing.T, r *rig, n int) (int, error) {
	t.Helper()
	var limit = n
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.judge.slots = nil
	var opened atomic.Int64
	var all sync.WaitGroup
	var first error
	var once sync.Once
	clients := make([]*http.Client, 100)
	for i := range clients {
		transport := &http.Transport{Protocols: new(http.Protocols)}
		transport.Protocols.SetUnencryptedHTTP2(true)
		clients[i] = &http.Client{Transport: transport}
	}
	turn := make(chan struct{}, 200)
	for i := range limit {
		turn <- struct{}{}
		all.Go(func() {
			q, err := http.NewRequestWithContext(ctx, "GET", fmt.Sprintf("http://%s/held?ms=1000&n=600", r.listen), nil)
			if err != nil {
				return
			}
			in, err := clients[i%len(clients)].Do(q)
			<-turn
			if err != nil {
				once.Do(func() { first = err })
				return
			}
			defer in.Body.Close()
			if in.StatusCode != http.StatusOK {
				once.Do(func() { first = fmt.Errorf("stream %d: %d %s", i, in.StatusCode, in.Header.Get("X-Headgate-Reason")) })
				return
			}
			opened.Add(1)
			<-ctx.Done()
		})
	}
	for end := time.Now().Add(90 * time.Second); opened.Load() < int64(limit) && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
	}
	busy, err := r.sidecar.Busy(context.WithoutCancel(ctx))
	inFlight := int(busy["/exchanges/inFlight"])
	cancel()
	all.Wait()
	for _, c := range clients {
		c.CloseIdleConnections()
	}
	if err == nil {
		err = first
	}
	return min(inFlight, int(opened.Load())), err
}

// cpu is the processor time of a process in seconds.
func cpu(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var user, system float64
	_, _ = fmt.Sscan(fields[11], &user) // numbers, by the kernel
	_, _ = fmt.Sscan(fields[12], &system)
	return (user + system) / 100
}
