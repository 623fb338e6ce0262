package cross

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/headgate/headgate/internal/stack"
)

// Sizes of bodies: one that passes, one above the sidecar's hard maximum, and that maximum.
const (
	smallBody = 30
	hardMax   = 64 << 10
	largeBody = 4 * hardMax
)

var modes = []stack.Mode{stack.ModeEarly, stack.ModeStreamed, stack.ModeFullDuplex, stack.ModeBuffered, stack.ModeBufferedPartial, stack.ModeNone}

// ends are what can become of a request.
var ends = []struct {
	letter  string
	what    string
	applies func(k kind, m stack.Mode) bool
	reach   func(x *cross) error
}{
	{"a", "admitted", always, (*cross).admitted},
	{"h", "refused by what its headers say", func(k kind, _ stack.Mode) bool { return k.body == sized }, (*cross).refusedAtHeaders},
	{"m", "refused in mid-body", func(k kind, m stack.Mode) bool {
		return k.body != noBody && k.body != sized && m != stack.ModeNone // nobody sees a body there
	}, (*cross).refusedInMidBody},
	{"r", "refused for there is no room", always, (*cross).refusedForRoom},
	{"q", "admitted after a wait", always, (*cross).admittedAfterWait},
	{"w", "refused after a wait", always, (*cross).refusedAfterWait},
	{"g", "its client gone while it waits", always, (*cross).goneWhileWaiting},
	{"G", "its client gone while it is served", func(k kind, _ stack.Mode) bool { return k.name != "gRPC unary" && !k.anyAnswer }, // the echo cannot be slowed down
		(*cross).goneWhileServed},
}

func always(kind, stack.Mode) bool { return true }

// buffers reports a mode in which Envoy hands a body over only when all of it is there.
func buffers(m stack.Mode) bool { return m == stack.ModeBuffered || m == stack.ModeBufferedPartial }

// cross is one kind of request through one Envoy.
type cross struct {
	kind
	mode stack.Mode
	s    *stack.Stack
	t    *testing.T
}

// site is a group of route clusters of one kind: each end has its own, so that all kinds can be tried at once.
func (k kind) site(end string) string {
	return strings.NewReplacer(" ", "-", "+", "-").Replace(k.name) + "-" + end
}

// Route clusters of a kind: with room, full, full for a moment and full for as long as anybody waits. A limit of 7 lets one
// request in at a time: with a body it costs 6 or 7, without one at least 3.
var sites = map[string]string{
	"free": "minLimit: 1000, initialLimit: 1000, maxLimit: 1000",
	"full": "minLimit: 7, initialLimit: 7, maxLimit: 7, maxShare: 1, maxWait: 1ms",
	"soon": "minLimit: 7, initialLimit: 7, maxLimit: 7, maxShare: 1, maxWait: 25s",
	"late": "minLimit: 7, initialLimit: 7, maxLimit: 7, maxShare: 1, maxWait: 600ms",
}

// settings are those of the sidecar.
func settings() string {
	text := fmt.Sprintf("bytes: {hardMaxBody: %d, uploadTimeout: 3s}\ndecision: {maxWait: 30s}\nclusters:\n", hardMax)
	for _, k := range kinds {
		protocol := "client"
		if k.http1Only {
			protocol = "http1"
		}
		for end, lanes := range sites {
			text += fmt.Sprintf("  %s: {protocol: %s, lanes: {mode: enforce, %s}}\n", k.site(end), protocol, lanes)
		}
	}
	return text
}

// routeByHeader sends each request, CONNECT too, to the cluster that its header names.
func routeByHeader(b *stack.Bootstrap) error {
	return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
		m.UpgradeConfigs = append(m.UpgradeConfigs, &hcmv3.HttpConnectionManager_UpgradeConfig{UpgradeType: "CONNECT"})
		host := m.GetRouteConfig().VirtualHosts[0]
		var first []*routev3.Route
		for _, r := range host.Routes {
			name := r.GetRoute().GetCluster()
			if !strings.Contains(name, "-") || r.GetRoute() == nil {
				continue
			}
			byHeader := proto.CloneOf(r)
			byHeader.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}, Headers: []*routev3.HeaderMatcher{{Name: clusterHeader,
				HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: name}}}}}}
			tunnel := proto.CloneOf(byHeader)
			tunnel.Match.PathSpecifier = &routev3.RouteMatch_ConnectMatcher_{ConnectMatcher: &routev3.RouteMatch_ConnectMatcher{}}
			tunnel.GetRoute().UpgradeConfigs = []*routev3.RouteAction_UpgradeConfig{{UpgradeType: "CONNECT", ConnectConfig: &routev3.RouteAction_UpgradeConfig_ConnectConfig{}}}
			if strings.Contains(name, "CONNECT") {
				first = append(first, tunnel)
			}
			first = append(first, byHeader)
		}
		host.Routes = append(first, host.Routes...)
		return nil
	})
}

var sidecarBinary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "headgate-cross-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	root, err := stack.Root()
	if err == nil {
		sidecarBinary = filepath.Join(dir, "extproc")
		err = stack.BuildSidecar(ctx, root, sidecarBinary)
	}
	if err == nil {
		err = findEnvoys(ctx, root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// TestCross: whatever a request is, however Envoy hands it over and whatever becomes of it, its client gets the one right
// answer, and nothing is left.
func TestCross(t *testing.T) {
	results := newTable(t)
	for _, e := range envoys {
		for _, mode := range modes {
			t.Run(e.String()+"/"+string(mode), func(t *testing.T) {
				t.Parallel()
				s := e.start(t, stack.Options{Overlay: settings(), Envoy: []func(*stack.Bootstrap) error{
					func(b *stack.Bootstrap) error { return b.UseMode(mode) }, routeByHeader,
				}})
				var all sync.WaitGroup
				turn := make(chan struct{}, 6) // as many kinds at once
				for _, k := range kinds {
					all.Go(func() {
						turn <- struct{}{}
						defer func() { <-turn }()
						x := &cross{k, mode, s, t}
						for _, end := range ends {
							if !end.applies(k, mode) {
								continue
							}
							if impossible(k, mode, end.letter) {
								results.add(e, k, mode, "-")
								continue
							}
							if e.hangs(k, mode) && strings.Contains("aq", end.letter) {
								if x.passesSoon() {
									t.Errorf("%s, %s: %s passes, want it to hang: take it out of the list", e, mode, k.name)
								}
								results.add(e, k, mode, "-")
								continue
							}
							err := end.reach(x)
							if err != nil {
								t.Errorf("%s, %s: %s, %s: %v", e, mode, k.name, end.what, err)
								results.add(e, k, mode, "!"+end.letter)
								continue
							}
							results.add(e, k, mode, end.letter)
						}
					})
				}
				all.Wait()
				nothingLeft(t, s)
			})
		}
	}
}

const patience = 30 * time.Second

// send sends the kind's request to one of its sites.
func (x *cross) send(ctx context.Context, c call) (answer, error) {
	c.cluster = x.site(c.cluster)
	if c.size == 0 {
		c.size = smallBody
	}
	if c.path == "" {
		c.path = "/" + c.cluster
	}
	return x.call(ctx, x.s, c)
}

// want compares an answer with that of an end.
func (x *cross) want(got answer, err error, status int, reason string) error {
	if x.anyAnswer && got.status != 0 && got.status != http.StatusGatewayTimeout {
		return nil
	}
	if err != nil || got.status != status || got.reason != reason {
		return fmt.Errorf("%d %q (%w), want %d %q", got.status, got.reason, err, status, reason)
	}
	return nil
}

func (x *cross) admitted() error {
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	got, err := x.send(ctx, call{cluster: "free"})
	return x.want(got, err, http.StatusOK, "")
}

// passesSoon reports whether the kind's request is served within a few seconds.
func (x *cross) passesSoon() bool {
	ctx, cancel := context.WithTimeout(x.t.Context(), 3*time.Second)
	defer cancel()
	got, err := x.send(ctx, call{cluster: "free"})
	return x.want(got, err, http.StatusOK, "") == nil
}

func (x *cross) refusedAtHeaders() error {
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	path := "/declared/" + x.site("free")
	got, err := x.send(ctx, call{cluster: "free", path: path, size: largeBody})
	if n := x.s.Upstream.CountsOf(path).Seen; n != 0 {
		err = errors.Join(err, fmt.Errorf("the upstream saw it %d times, want 0", n))
	}
	return x.want(got, err, http.StatusRequestEntityTooLarge, "payload_too_large")
}

func (x *cross) refusedInMidBody() error {
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	path := "/large/" + x.site("free")
	got, err := x.send(ctx, call{cluster: "free", path: path, size: largeBody})
	if n := x.s.Upstream.CountsOf(path).Completed; n != 0 {
		err = errors.Join(err, fmt.Errorf("the upstream had it whole %d times, want 0", n))
	} else if x.name == "gRPC stream" && reset(err) {
		return nil // the echo had answered the first messages: after its headers Envoy resets what is refused
	}
	return x.want(got, err, http.StatusRequestEntityTooLarge, "payload_too_large")
}

// reset reports the error of a gRPC client whose stream was reset.
func reset(err error) bool {
	s, ok := status.FromError(err)
	return ok && s.Code() == codes.Internal && strings.Contains(s.Message(), "RST_STREAM")
}

func (x *cross) refusedForRoom() error   { return x.refused("full") }
func (x *cross) refusedAfterWait() error { return x.refused("late") }

// refused sends to a site without room.
func (x *cross) refused(site string) error {
	release, err := x.hold(site)
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	path := "/" + x.site(site)
	got, err := x.send(ctx, call{cluster: site, path: path})
	if seen := x.s.Upstream.CountsOf(path); seen.Seen != 0 && contactsLast(x.mode) || seen.Completed != 0 && x.body != noBody {
		err = errors.Join(err, fmt.Errorf("the upstream saw %+v of it, want nothing", seen))
	}
	return x.want(got, err, http.StatusServiceUnavailable, "admission_deadline")
}

// contactsLast reports that no upstream is contacted before the decision.
func contactsLast(m stack.Mode) bool {
	return m == stack.ModeEarly || m == stack.ModeBuffered || m == stack.ModeNone
}

func (x *cross) admittedAfterWait() error {
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	release, err := x.hold("soon")
	if err != nil {
		return err
	}
	done := x.begin(ctx, call{cluster: "soon"})
	waits := x.until("it to wait", func(h lanes) bool { return h.waiting(x.site("soon")) == 1 || len(done) > 0 })
	early := len(done) > 0
	release()
	got := <-done
	if err := x.want(got.answer, errors.Join(got.error, waits), http.StatusOK, ""); err != nil {
		return err
	}
	if early && !x.anyAnswer {
		return errors.New("answered while there was no room")
	}
	return nil
}

func (x *cross) goneWhileWaiting() error {
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	release, err := x.hold("soon")
	if err != nil {
		return err
	}
	defer release()
	path := "/gone/" + x.site("soon")
	done := x.begin(ctx, call{cluster: "soon", path: path})
	waits := x.until("it to wait", func(h lanes) bool { return h.waiting(x.site("soon")) == 1 || len(done) > 0 })
	cancel()
	got := <-done
	if got.error == nil && !x.anyAnswer {
		return fmt.Errorf("%d %q, want it to wait until its client is gone", got.status, got.reason)
	}
	left := x.until("it to leave the queue", func(h lanes) bool { return h.waiting(x.site("soon")) == 0 })
	if seen := x.s.Upstream.CountsOf(path); seen.Seen != 0 && contactsLast(x.mode) || seen.Completed != 0 && x.body != noBody {
		left = errors.Join(left, fmt.Errorf("the upstream saw %+v of it, want nothing", seen))
	}
	return errors.Join(waits, left)
}

func (x *cross) goneWhileServed() error {
	ctx, cancel := context.WithTimeout(x.t.Context(), patience)
	defer cancel()
	done := x.begin(ctx, call{cluster: "free", hangs: true})
	served := x.until("it to be served", func(h lanes) bool { return h.active(x.site("free")) == 1 || len(done) > 0 })
	cancel()
	if got := <-done; got.error == nil {
		return fmt.Errorf("%d %q, want no answer before its client is gone", got.status, got.reason)
	}
	return errors.Join(served, x.until("its place to be free", func(h lanes) bool { return h.active(x.site("free")) == 0 }))
}

// outcome is what came of a request.
type outcome struct {
	answer
	error
}

// begin sends a request in the background.
func (x *cross) begin(ctx context.Context, c call) <-chan outcome {
	done := make(chan outcome, 1)
	go func() {
		got, err := x.send(ctx, c)
		done <- outcome{got, err}
	}()
	return done
}

// hold takes the room that a site has, until the returned function is called.
func (x *cross) hold(site string) (release func(), err error) {
	name := x.site(site)
	if err := x.until("the last one to be gone", func(h lanes) bool { return h.active(name) == 0 && h.waiting(name) == 0 }); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(x.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		// A stream keeps the price of its prompt until its first token is seen, and this one has none. It ends with cancel.
		_, _ = h1("POST", sized)(ctx, x.s, call{cluster: name, path: "/hold:streamGenerateContent", size: smallBody, hangs: true})
	}()
	release = func() {
		cancel()
		<-done
	}
	if err := x.until("the place to be taken", func(h lanes) bool { return h.active(name) == 1 && h.waiting(name) == 0 }); err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// until waits for the lanes to be as they should.
func (x *cross) until(what string, ok func(lanes) bool) error {
	for end := time.Now().Add(patience); ; time.Sleep(40 * time.Millisecond) {
		h, err := readLanes(x.t.Context(), x.s)
		if err == nil && ok(h) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("waited %v for %s (%w)", patience, what, err)
		}
	}
}
