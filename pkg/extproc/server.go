package extproc

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/extproc/wire"
	"github.com/headgate/headgate/pkg/lease"
)

// Dependencies are what the gates ask. All must be set, but for what says otherwise.
type Dependencies struct {
	Bytes    *budget.Controller
	Pressure func() memory.Pressure // must not block: it is called for every request
	Shed     func() bool            // whether critical pressure refuses this request; nil: whether the pressure is critical
	Lanes    *adaptive.Registry
	Parents  *adaptive.ParentTokens
	LaneKey  []byte // of the lane names; replicas that share parent tokens share it. nil is a random one
	Leases   *lease.Service
	Observer Observer
	Log      *slog.Logger

	StartSpan StartSpan // nil: no traces
}

// Server is the ext_proc service.
type Server struct {
	policy     atomic.Pointer[policy]
	bytes      *budget.Controller
	pressure   func() memory.Pressure
	shed       func() bool
	lanes      *adaptive.Registry
	parents    *adaptive.ParentTokens
	leases     *lease.Service
	observe    Observer
	startSpan  StartSpan
	notes      sync.Pool // attribute lists of spans that ended
	log        *slog.Logger
	sheds      *shedLog
	laneKey    []byte
	apiIsLocal atomic.Bool // only processes of this machine reach the API
	clusters   clusters
	witnesses  witnesses
	active     atomic.Int64
	anonymous  atomic.Int64
	background sync.WaitGroup
	letGo      chan struct{}

	noCodeDetails sync.Once // warns that Envoy does not say who answered
}

// NewServer returns a server that serves nothing until it is registered.
func NewServer(c *config.Config, d Dependencies) *Server {
	s := &Server{
		bytes: d.Bytes, pressure: d.Pressure, shed: d.Shed, lanes: d.Lanes, parents: d.Parents, leases: d.Leases, observe: d.Observer, startSpan: d.StartSpan,
		log: d.Log, sheds: newShedLog(d.Log), laneKey: orRandom(d.LaneKey),
		clusters: clusters{known: map[string]struct{}{}}, witnesses: newWitnesses(), letGo: make(chan struct{}),
	}
	if s.shed == nil {
		s.shed = func() bool { return s.pressure().Severity >= memory.Critical }
	}
	s.Configure(c)
	return s
}

// orRandom makes a key where there is none. rand.Read never fails.
func orRandom(key []byte) []byte {
	if key != nil {
		return key
	}
	key = make([]byte, 32)
	_, _ = rand.Read(key)
	return key
}

// LaneOf returns the name of a tenant's lane under the configuration in force.
func (s *Server) LaneOf(tenant string) string {
	return s.policy.Load().laneName(strings.TrimSpace(tenant))
}

// Configure puts a validated configuration into force for the exchanges that begin from now on.
func (s *Server) Configure(c *config.Config) { s.policy.Store(newPolicy(c, s)) }

// APIListensOn says on which address the API really listens, whatever the configuration says by now. Where only processes of
// this machine reach it, headers say who calls it.
func (s *Server) APIListensOn(bound net.Addr) {
	s.apiIsLocal.Store(config.IsLocal(bound.Network(), bound.String()))
}

// Active is the number of exchanges in flight.
func (s *Server) Active() int64 { return s.active.Load() }

// WithoutTenant is the number of requests so far in which none of the configured tenant sources had a value.
func (s *Server) WithoutTenant() int64 { return s.anonymous.Load() }

// LetGo ends every decided exchange's stream with OK, now and from now on: Envoy carries on without us and clients
// notice nothing. Undecided ones get their decision first. It must be called once at most.
func (s *Server) LetGo() { close(s.letGo) }

// lettingGo reports that LetGo has been called.
func (s *Server) lettingGo() bool {
	select {
	case <-s.letGo:
		return true
	default:
		return false
	}
}

// Close waits for what goes on in the background.
func (s *Server) Close() { s.background.Wait() }

// Register adds the service to a gRPC server that was made with ServerOptions.
func (s *Server) Register(g grpc.ServiceRegistrar) {
	g.RegisterService(&grpc.ServiceDesc{
		ServiceName: extprocv3.ExternalProcessor_ServiceDesc.ServiceName,
		HandlerType: (*any)(nil),
		Metadata:    extprocv3.ExternalProcessor_ServiceDesc.Metadata,
		Streams: []grpc.StreamDesc{{
			StreamName:    "Process",
			ServerStreams: true,
			ClientStreams: true,
			Handler:       func(_ any, stream grpc.ServerStream) error { return s.process(stream) },
		}},
	}, s)
}

// What the gRPC server may receive and hold.
const (
	maxReceive       = math.MaxInt32   // the largest message that protobuf has: what cannot be received cannot be refused
	streamWorkers    = 64              // goroutines kept for exchanges, whose stacks have grown already; more are begun as needed
	streamWindow     = 256 << 10       // per stream; bounds what a slow exchange keeps in memory
	connectionWindow = 1 << 30         // never the limit: where Envoy's connection runs out of window, it lets some streams starve
	pingInterval     = 5 * time.Second // Envoy's keepalive may be as frequent
)

// ServerOptions are the options of the gRPC server that the service is registered with. One message can be all of Envoy's
// buffer of a connection, which is what bounds it: a limit of ours would break the stream instead of refusing, and where
// requests pass when the sidecar fails, it would let any body pass.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(wire.NewCodec()),
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxConcurrentStreams(math.MaxUint32), // one stream per HTTP exchange: Envoy's circuit breakers bound it
		grpc.NumStreamWorkers(streamWorkers),
		grpc.InitialWindowSize(streamWindow),
		grpc.InitialConnWindowSize(connectionWindow),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingInterval, PermitWithoutStream: true}),
	}
}

// process serves one stream. Verdicts are messages; an error means that the machine broke.
func (s *Server) process(stream grpc.ServerStream) (err error) {
	s.active.Add(1)
	x := &exchange{
		server: s, stream: stream, ctx: stream.Context(), policy: s.policy.Load(), inbox: newInbox(stream),
		outcome: adaptive.Cancelled,
	}
	defer func() {
		if fault := recover(); fault != nil {
			s.log.Error("panic in an exchange", "fault", fmt.Sprint(fault), "stack", string(debug.Stack()))
			err = status.Error(codes.Internal, "internal fault")
		}
		x.release()
		x.tracing.end(err)
		x.inbox.close()
		s.active.Add(-1)
	}()
	return x.run()
}

// policyKey is the gRPC metadata key by which a route names the entry of clusters it wants, through ExtProcPerRoute's
// grpc_initial_metadata. Clients cannot set it: it is not an HTTP header.
const policyKey = "headgate-cluster"

func policyName(ctx context.Context) string {
	if values := metadata.ValueFromIncomingContext(ctx, policyKey); len(values) > 0 {
		return values[0]
	}
	return ""
}
