package endurance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// load is ten tenants that send at a steady rate whatever becomes of the answers.
type load struct {
	base   string
	client *http.Client
	names  atomic.Int64
	run    string // sets the names of one load apart from those of others

	mu     sync.Mutex
	counts map[string]int // by kind and what came of it
}

func newLoad(listen string) *load {
	return &load{base: "http://" + listen, run: fmt.Sprintf("%08x", rand.Uint32()), counts: map[string]int{},
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 1000, DisableCompression: true}, Timeout: time.Minute}}
}

// kindsOfLoad are drawn with these weights.
var kindsOfLoad = []struct {
	name   string
	weight int
	send   func(l *load, ctx context.Context, tenant string) (status int, reason string, err error)
}{
	{"answer", 40, (*load).answer},
	{"stream", 25, (*load).stream},
	{"upload", 10, (*load).upload},
	{"refused", 10, (*load).tooLarge},
	{"cancel", 15, (*load).cancelled},
}

// drive sends about rate requests a second until ctx ends, has sessions lease connections beside, and waits for all answers.
func (l *load) drive(ctx context.Context, rate float64, sessions int) {
	defer l.client.CloseIdleConnections()
	var all sync.WaitGroup
	defer all.Wait()
	for i := range sessions {
		all.Go(func() {
			for ctx.Err() == nil {
				l.session(ctx, i)
			}
		})
	}
	weights := 0
	for _, k := range kindsOfLoad {
		weights += k.weight
	}
	tick := time.NewTicker(time.Duration(float64(time.Second) / rate))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		drawn := rand.IntN(weights)
		for _, k := range kindsOfLoad {
			if drawn -= k.weight; drawn < 0 {
				all.Go(func() {
					status, reason, err := k.send(l, context.WithoutCancel(ctx), fmt.Sprintf("tenant-%d", rand.IntN(10)))
					l.count(k.name, status, reason, err)
				})
				break
			}
		}
	}
}

func (l *load) count(kind string, status int, reason string, err error) {
	what := fmt.Sprint(status)
	switch {
	case err != nil:
		what = "no answer"
	case reason != "":
		what = reason
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[kind+": "+what]++
}

// post sends one request with a name of its own and reads the answer to its end.
func (l *load) post(ctx context.Context, path string, body io.Reader, headers map[string]string) (int, string, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.base+path, body)
	if err != nil {
		return 0, "", nil, err
	}
	r.Header.Set(nameHeader, fmt.Sprintf("%s-%d", l.run, l.names.Add(1)))
	r.Header.Set("Content-Type", "application/json")
	for name, value := range headers {
		r.Header.Set(name, value)
	}
	// A request that Go's client sends again by itself, on another connection, would look like one that was admitted twice.
	r.GetBody = nil
	in, err := l.client.Do(r)
	if err != nil {
		return 0, "", nil, err
	}
	defer in.Body.Close()
	text, err := io.ReadAll(in.Body)
	return in.StatusCode, in.Header.Get("X-Headgate-Reason"), text, err
}

const chat = `{"model":"demo","stream":true,"messages":[{"role":"user","content":"Is all quiet?"}]}`

func (l *load) answer(ctx context.Context, tenant string) (int, string, error) {
	status, reason, _, err := l.post(ctx, "/v1/chat/completions?ms=50", strings.NewReader(chat), map[string]string{"X-Tenant-Id": tenant})
	return status, reason, err
}

func (l *load) stream(ctx context.Context, tenant string) (int, string, error) {
	status, reason, _, err := l.post(ctx, "/v1/chat/completions?ms=100&n=20", strings.NewReader(chat), map[string]string{"X-Tenant-Id": tenant})
	return status, reason, err
}

func (l *load) upload(ctx context.Context, tenant string) (int, string, error) {
	status, reason, _, err := l.post(ctx, "/upload?ms=20", bytes.NewReader(make([]byte, 300<<10)), map[string]string{"X-Tenant-Id": tenant})
	return status, reason, err
}

func (l *load) tooLarge(ctx context.Context, tenant string) (int, string, error) {
	r, err := http.NewRequestWithContext(ctx, "POST", l.base+"/upload", strings.NewReader("x"))
	if err != nil {
		return 0, "", err
	}
	r.ContentLength = 5 << 20 // declared, and never sent
	r.Body = io.NopCloser(io.MultiReader(strings.NewReader("x"), blocked{ctx}))
	r.Header.Set("X-Tenant-Id", tenant)
	in, err := l.client.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer in.Body.Close()
	_, err = io.Copy(io.Discard, in.Body)
	return in.StatusCode, in.Header.Get("X-Headgate-Reason"), err
}

// blocked is the rest of a body that does not come for a while.
type blocked struct{ ctx context.Context }

func (b blocked) Read([]byte) (int, error) {
	sleep(b.ctx, 2*time.Second)
	return 0, errors.New("the client sends no more")
}

// cancelled leaves at a random moment.
func (l *load) cancelled(ctx context.Context, tenant string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(rand.IntN(500))*time.Millisecond)
	defer cancel()
	status, reason, _, err := l.post(ctx, "/v1/chat/completions?ms=100&n=20", strings.NewReader(chat), map[string]string{"X-Tenant-Id": tenant})
	return status, reason, err
}

// session leases a connection, uses it some times and gives it back, or leaves it to expire.
func (l *load) session(ctx context.Context, i int) {
	id := fmt.Sprintf("session-%d-%d", i, rand.Uint32())
	owner := "vlo_" + strings.Repeat("s", 34-len(fmt.Sprint(i))) + fmt.Sprintf("%09x", rand.Uint64()&0xfffffffff) + fmt.Sprint(i)
	headers := map[string]string{"Authorization": "Bearer demo-key-a", "X-Omniroute-Lease-Owner": owner, sessionHeader: id}
	lease := func(action string) (map[string]any, error) {
		status, _, text, err := l.post(ctx, "/v1/session-leases", strings.NewReader(action), headers)
		l.count("lease API", status, "", err)
		var fields map[string]any
		if err == nil && status == http.StatusOK {
			err = json.Unmarshal(text, &fields)
		}
		return fields, err
	}
	got, err := lease(`{"action":"acquire","model":"demo"}`)
	if err != nil || got["generation"] == nil {
		sleep(ctx, 300*time.Millisecond)
		return
	}
	generation := fmt.Sprintf("%.0f", got["generation"])
	headers["X-Omniroute-Lease-Generation"] = generation
	for range 1 + rand.IntN(5) {
		status, reason, _, err := l.post(ctx, "/leased/echo?ms=100", strings.NewReader(chat), headers)
		l.count("leased", status, reason, err)
		if err != nil || status != http.StatusOK || !sleep(ctx, 50*time.Millisecond) {
			break
		}
	}
	if rand.IntN(10) > 0 {
		_, _ = lease(fmt.Sprintf(`{"action":"release","generation":%s}`, generation)) // it expires otherwise
	}
}
