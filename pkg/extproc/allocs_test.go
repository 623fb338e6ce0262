package extproc

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc/wire"
)

// sink is a stream that forgets what is sent.
type sink struct {
	grpc.ServerStream
	sent int
}

func (s *sink) SendMsg(any) error { s.sent++; return nil }

// TestAnswersAllocateNothing: those that change nothing, however many are owed at once.
func TestAnswersAllocateNothing(t *testing.T) {
	to := &sink{}
	x := &exchange{stream: to, decided: true, described: true}
	body, trailers := &wire.Message{Phase: wire.RequestBody}, &wire.Message{Phase: wire.RequestTrailers}
	if n := testing.AllocsPerRun(100, func() {
		x.replies.push(body, false)
		x.replies.push(body, false)
		x.replies.push(trailers, false)
		if err := x.flush(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 || to.sent != 3*101 {
		t.Errorf("%v allocations for three answers, %d sent in 101 runs; want none, 303", n, to.sent)
	}
}

// TestTenantsHaveOneLaneName: a tenant has one name for as long as the process lives, also when more tenants come than are remembered.
func TestTenantsHaveOneLaneName(t *testing.T) {
	r := newRig(t, func(c *config.Config) { c.Telemetry.TenantNames = []string{"acme"} })
	p := r.server.policy.Load()
	first, long := p.laneName("team-a"), strings.Repeat("x", maxTenantLength+1)
	if n := testing.AllocsPerRun(100, func() { p.laneName("team-a") }); n != 0 {
		t.Errorf("%v allocations for a name that is known, want 0", n)
	}
	for i := range maxLaneNames + 10 {
		p.laneName(fmt.Sprint("other-", i))
	}
	if n := len(p.lanes.made); n > maxLaneNames {
		t.Errorf("%d names remembered, want at most %d", n, maxLaneNames)
	}
	if again := p.laneName("team-a"); again != first || !strings.HasPrefix(first, "lane_") || p.laneName("team-b") == first {
		t.Errorf("team-a is %s and then %s, want one opaque name of its own", first, again)
	}
	if name := p.laneName(long); name != p.laneName(long) || p.laneName("acme") != "acme" {
		t.Error("want one name for a long tenant, and its own for one that may be named")
	}
	if _, found := p.lanes.find(long); found {
		t.Error("a tenant whose name is too long is remembered")
	}
}
