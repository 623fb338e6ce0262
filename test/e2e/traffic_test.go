package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/internal/stack"
)

// What an inference server's traffic does to the lanes: streams whose headers come at once, answers in one piece, a
// provider's refusals, a restart, a large prompt.

// TestWholeAnswersBesideStreams: below capacity, answers in one piece, whose headers come when all of it is there, make nobody
// be refused and the limit stay.
func TestWholeAnswersBesideStreams(t *testing.T) {
	t.Parallel()
	for _, whole := range []int{5, 2} { // one in so many
		t.Run(fmt.Sprintf("one in %d", whole), func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: learning})
			mix := &source{tenant: "mixed", rate: 14, request: func(i int) request { return chat(i%whole != 0, 20, 50) }}
			drive(t, s, 20*time.Second, mix)
			wantAllServed(t, s, "chat", mix)
			wantLimitKept(t, s, "chat", 64)
		})
	}
}

// TestOneTenantsRefusalsAreItsOwn: a tenant that the provider answers with 429, or whose requests make the upstream fail,
// takes nothing from the others.
func TestOneTenantsRefusalsAreItsOwn(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		path  string
		rate  float64
		quiet float64
	}{
		{"429, one a second", "/status/429?retry-after=1", 1, 20},
		{"429, three a second", "/status/429", 3, 20},
		{"500, five a second", "/status/500", 5, 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: learning})
			others := []*source{
				{tenant: "other-1", rate: c.quiet / 2, request: get("/drip?n=10&ms=50")},
				{tenant: "other-2", rate: c.quiet / 2, request: get("/drip?n=10&ms=50")},
			}
			exhausted := &source{tenant: "exhausted", rate: c.rate, request: get(c.path)}
			drive(t, s, 15*time.Second, append(others, exhausted)...)
			for _, other := range others {
				wantAllServed(t, s, "default", other)
			}
			wantLimitKept(t, s, "default", 64)
			if exhausted.failed != exhausted.asked {
				t.Errorf("the exhausted tenant got %d of %d answers from the upstream, want all: we refuse it nothing", exhausted.failed, exhausted.asked)
			}
		})
	}
}

// TestRestartOfTheUpstream: while the upstream is away Envoy answers 503 by itself, which says nothing about how much the
// upstream can do. Once it is back everybody is served.
func TestRestartOfTheUpstream(t *testing.T) {
	t.Parallel()
	s := start(t, stack.Options{Overlay: learning})
	tenant := func() *source { return &source{tenant: "tenant", rate: 20, request: get("/drip?n=10&ms=50")} }
	warm := tenant()
	drive(t, s, 5*time.Second, warm)
	wantAllServed(t, s, "default", warm)
	before := limitOf(t, s, "default")

	s.Upstream.Close()
	during := tenant()
	drive(t, s, 10*time.Second, during)
	if during.failed < during.asked*9/10 || during.refused > 0 {
		t.Errorf("while the upstream was away: of %d asked %d were served, %d refused, %d failed; want failures and no refusals of ours",
			during.asked, during.served, during.refused, during.failed)
	}
	wantLimitKept(t, s, "default", before)

	var err error
	if s.Upstream, err = stack.NewUpstream(s.Upstream.Addr()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the upstream to be back", func() bool { return must(t, s, client(t, false), request{path: "/"}).status == 200 })
	after := tenant()
	drive(t, s, 5*time.Second, after)
	wantAllServed(t, s, "default", after)
	wantLimitKept(t, s, "default", before)
}

// TestLargePromptIsServed: a prompt whose price is far above the limit is served while others run, at the limit of the start
// and at the smallest, and they are served beside it.
func TestLargePromptIsServed(t *testing.T) {
	t.Parallel()
	for _, initial := range []int{64, 8} {
		t.Run(fmt.Sprint("limit ", initial), func(t *testing.T) {
			t.Parallel()
			s := start(t, stack.Options{Overlay: fmt.Sprintf(`
clusters: {default: {lanes: {mode: enforce, virtualLanes: true, window: 250ms, initialLimit: %d}}}`, initial)})
			prompt := []byte(`{"stream":true,"messages":[{"role":"user","content":"` + strings.Repeat("word ", 50_000) + `"}]}`)
			large := &source{tenant: "large", rate: 0.5, request: always(func() request {
				return request{method: "POST", path: "/echo?ms=300", body: bytes.NewReader(prompt), length: int64(len(prompt)), headers: map[string]string{"content-type": "application/json"}}
			})}
			others := &source{tenant: "others", rate: 1.5, request: get("/drip?n=20&ms=50")}
			drive(t, s, 12*time.Second, large, others)
			for _, from := range []*source{large, others} {
				if from.served != from.asked {
					t.Errorf("%s: of %d asked %d were served, %d refused, %d failed; want all served", from.tenant, from.asked, from.served, from.refused, from.failed)
				}
			}
		})
	}
}

// cgroup makes files like those of a process whose cgroup may use a gigabyte and uses half of it. The function writes one of them.
func cgroup(t *testing.T, root string) (write func(name, text string)) {
	t.Helper()
	write = func(name, text string) {
		t.Helper()
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file+".next", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file+".next", file); err != nil {
			t.Fatal(err)
		}
	}
	write("proc/self/cgroup", "0::/\n")
	write("proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	write("sys/fs/cgroup/memory.max", "1000000000\n")
	write("sys/fs/cgroup/memory.stat", "active_file 0\ninactive_file 0\nslab_reclaimable 0\n")
	write("sys/fs/cgroup/memory.current", "500000000\n")
	return write
}

// TestPressureCountsOnce: each sample of high pressure lowers the limit once, however many windows pass until the next, and
// however often somebody looks.
func TestPressureCountsOnce(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := cgroup(t, root)
	s := start(t, stack.Options{Overlay: learning + `
bytes: {budget: {cgroupRoot: ` + root + `}}
pressure: {interval: 2s}
`})
	pressure := func() string {
		health, err := s.Sidecar.Health(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return health["chatAdmission"].(map[string]any)["pressureSeverity"].(string)
	}
	eventually(t, "a first sample", func() bool { return pressure() == "normal" })
	use := &source{tenant: "tenant", rate: 10, request: get("/drip?n=10&ms=50")}
	drive(t, s, time.Second, use)
	if limit := limitOf(t, s, "default"); limit < 64 {
		t.Fatalf("limit %v before, want 64 or more", limit)
	}
	before := limitOf(t, s, "default")
	write("sys/fs/cgroup/memory.current", "880000000\n")
	eventually(t, "high pressure", func() bool { return pressure() == "high" })
	began := time.Now()
	drive(t, s, 3*time.Second, use) // and some twelve windows pass
	for range 200 {
		if _, err := s.Sidecar.Get(t.Context(), "/metrics"); err != nil {
			t.Fatal(err)
		}
		limitOf(t, s, "default")
	}
	samples := 2 + int(time.Since(began)/(2*time.Second)) // the first, those since, and one that may be counted late
	least := before
	for range samples {
		least = float64(int(least * 0.8))
	}
	lanes := lanesOf(t, s, "default")
	if limit := lanes["currentLimit"].(float64); limit < least || limit >= before {
		t.Errorf("limit %v after at most %d samples of high pressure, want less than %v and at least %v: %v", limit, samples, before, least, lanes["stepCounts"])
	}
	write("sys/fs/cgroup/memory.current", "500000000\n")
	eventually(t, "normal pressure", func() bool { return pressure() == "normal" })
}

// TestHeadersAreNotTheFirstToken: an inference server that answers the headers at once, asked for twice what it can do by one
// tenant at ten times the others' rate. The limit does not climb without end, and the quiet tenants have their first token long
// before they would without lanes.
func TestHeadersAreNotTheFirstToken(t *testing.T) {
	t.Parallel()
	const body = `{"model":"demo","stream":true,"max_tokens":32,"messages":[{"role":"user","content":"Is all quiet?"}]}`
	waits := map[string]time.Duration{}
	for _, mode := range []string{"off", "enforce"} {
		s := start(t, stack.Options{Overlay: "clusters: {chat: {lanes: {mode: " + mode + "}}}"})
		ctx, stop := context.WithTimeout(t.Context(), 15*time.Second)
		ask := func(tenant string) (time.Duration, bool) {
			began := time.Now()
			r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Envoy.URL()+"/v1/chat/completions", strings.NewReader(body))
			if err != nil {
				t.Error(err)
				return 0, false
			}
			r.Header.Set("x-tenant-id", tenant)
			answer, err := http.DefaultClient.Do(r)
			if err != nil {
				return 0, false
			}
			defer answer.Body.Close()
			_, err = answer.Body.Read(make([]byte, 1))
			took := time.Since(began)
			_, _ = io.Copy(io.Discard, answer.Body)
			return took, err == nil && answer.StatusCode == 200
		}
		var mu sync.Mutex
		var total time.Duration
		var asked, served int
		var all sync.WaitGroup
		for tenant, rate := range map[string]time.Duration{"noisy": 50 * time.Millisecond, "quiet": 500 * time.Millisecond} {
			all.Go(func() {
				for ctx.Err() == nil {
					began := time.Now()
					all.Go(func() {
						took, ok := ask(tenant)
						mu.Lock()
						defer mu.Unlock()
						if tenant == "quiet" {
							asked++
							if ok {
								served++
								total += took
							} else {
								total += time.Since(began) // what it has waited at least
							}
						}
					})
					select {
					case <-ctx.Done():
					case <-time.After(rate):
					}
				}
			})
		}
		all.Wait()
		stop()
		waits[mode] = total / time.Duration(asked)
		if mode == "enforce" {
			if limit := limitOf(t, s, "chat"); limit > 128 {
				t.Errorf("limit %v after 15 s of overload, want at most 128: twice where it began", limit)
			}
			if served < asked*8/10 {
				t.Errorf("the quiet tenant was served %d of %d, want at least 0.8 in overload that is not its own", served, asked)
			}
		}
	}
	if waits["enforce"] > waits["off"]/2 {
		t.Errorf("the quiet tenant waits %v for a first token with lanes and %v without, want half at the most", waits["enforce"], waits["off"])
	}
	t.Logf("mean wait of the quiet tenant for a first token: %v without lanes, %v with them", waits["off"], waits["enforce"])
}
