package config

import (
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/budget/memory"
	"github.com/headgate/headgate/pkg/budget/size"
	"github.com/headgate/headgate/pkg/lease"
)

// AnyCluster is the entry of Clusters that every cluster without an entry of its own uses, and that the others inherit from.
const AnyCluster = "*"

// Config is a complete, validated configuration. It must not be modified once it is shared.
type Config struct {
	Listen           Listen                  `yaml:"listen" restart:"true" doc:"Addresses the sidecar listens on."`
	RouteCluster     RouteCluster            `yaml:"routeCluster" doc:"How the route cluster of a request is found."`
	Tenant           Tenant                  `yaml:"tenant" doc:"Who a request is counted for."`
	Priority         Priority                `yaml:"priority" doc:"Priority levels of requests: what each is guaranteed of a cluster, and who is at which."`
	PrincipalSources []Source                `yaml:"principalSources" doc:"Where the principal of a lease comes from; the first source that yields one wins. List only what clients cannot forge."`
	Decision         Decision                `yaml:"decision" doc:"How long evidence is gathered, and how long one decision may take."`
	Bytes            budget.Settings         `yaml:"bytes" doc:"Byte admission."`
	Pressure         memory.PressureSettings `yaml:"pressure" doc:"Thresholds of the pressure monitor."`
	Clusters         map[string]Cluster      `yaml:"clusters" inherit:"*" doc:"Settings by route cluster; \"*\" is used by every cluster without an entry and inherited, field by field, by those with one."`
	Leases           lease.Settings          `yaml:"leases" doc:"Exclusive session leases."`
	Principals       []lease.Principal       `yaml:"principals" doc:"Callers known by an API key or by the name another verified source gives."`
	Fanout           Fanout                  `yaml:"fanout" restart:"true" doc:"Parent tokens of requests that fan out."`
	Shutdown         Shutdown                `yaml:"shutdown" doc:"What happens between the signal and the exit."`
	Telemetry        Telemetry               `yaml:"telemetry" doc:"What is shown of tenants."`
	Log              Log                     `yaml:"log" restart:"true" doc:"Logging."`

	// Notes are remarks of the load that are no faults, one log line each.
	Notes []string `yaml:"-"`

	source digest // of the file it was loaded from
}

// Listen holds the addresses: "unix:///absolute/path" or "host:port"; ParseAddr splits them.
type Listen struct {
	GRPC             string   `yaml:"grpc" doc:"Address of the ext_proc gRPC service: unix:///absolute/path or host:port."`
	Admin            string   `yaml:"admin" doc:"Address of the admin HTTP server (status page, probes, metrics, pprof); empty turns it off."`
	AdminHosts       []string `yaml:"adminHosts" doc:"Host names under which the admin port may be reached, besides loopback names and addresses. Others are refused, so that no web page can reach it through a name of its own."`
	AdminTokenFile   string   `yaml:"adminTokenFile" doc:"File with the token of at least 32 bytes that changes over the admin port need (extproc leases); read again for each. Empty: nothing can be changed."`
	AdminAllowRemote bool     `yaml:"adminAllowRemote" doc:"Allows an admin address that is not loopback. Nothing there is authenticated."`
	Metrics          string   `yaml:"metrics" doc:"Address of a second HTTP server with /metrics and nothing else, for scrapers that must not reach the admin port; empty turns it off."`
	API              string   `yaml:"api" doc:"Address of the HTTP API (session leases, admission probe); empty turns it off."`

	GRPCTLS ServerTLS `yaml:"grpcTLS" doc:"Mutual TLS 1.3 on listen.grpc; without certFile it speaks none."`
	APITLS  ServerTLS `yaml:"apiTLS" doc:"TLS 1.3 on listen.api; without certFile it speaks none."`
}

// ServerTLS says how a listener proves who it is, and whose clients it takes. New contents of its files are in effect within a
// second, for connections that begin then.
type ServerTLS struct {
	CertFile     string   `yaml:"certFile" doc:"PEM file with the certificate, followed by intermediate ones. The files are read again when a connection begins."`
	KeyFile      string   `yaml:"keyFile" doc:"PEM file with its key."`
	ClientCAFile string   `yaml:"clientCAFile" doc:"PEM file with the CAs of which clients must have a certificate. Empty asks clients for none; listen.grpcTLS needs it."`
	ClientNames  []string `yaml:"clientNames" doc:"DNS names or URIs (SPIFFE) of which the client's certificate must have one; empty takes every certificate of the CAs."`
}

// Enabled reports whether the listener speaks TLS.
func (s ServerTLS) Enabled() bool { return s.CertFile != "" }

// RouteCluster says which request attributes name the route cluster.
type RouteCluster struct {
	Attributes []string `yaml:"attributes" doc:"Request attributes tried in order; the first with a value names the route cluster."`
}

// Tenant says who a request is counted for.
type Tenant struct {
	Sources  []Source           `yaml:"sources" doc:"Where the tenant comes from; the first source with a value wins, none means anonymous. List only what clients cannot forge."`
	MaxLanes int                `yaml:"maxLanes" restart:"true" min:"1" max:"100000" doc:"Lanes per cluster at most; further tenants share an overflow lane while all are busy."`
	Weights  map[string]float64 `yaml:"weights" min:"0.001" max:"1000" doc:"Weight by tenant in the fair share of a cluster; a tenant without an entry weighs 1."`

	MaxConcurrent map[string]int `yaml:"maxConcurrent" min:"1" max:"104249991" doc:"Requests that run at once at most by tenant, in each cluster, in place of the cluster's tenantMaxConcurrent."`
}

// Priority says at which priority level a request is.
type Priority struct {
	Levels  []adaptive.Level `yaml:"levels" doc:"The levels, the highest first, 8 at most. None: all requests are alike."`
	Sources []Source         `yaml:"sources" doc:"Where the name of a request's level comes from; the first source that names one wins. List only what clients cannot forge."`
	Default string           `yaml:"default" doc:"Level of requests of which no source names one; empty is the lowest."`
}

// Source is one place an identity can come from; exactly one field is set.
type Source struct {
	Metadata  string `yaml:"metadata" doc:"Dynamic metadata, as filter namespace and keys separated by slashes: envoy.filters.http.jwt_authn/payload/sub."`
	Header    string `yaml:"header" doc:"Request header; safe only where Envoy sets it or removes what clients send."`
	Attribute string `yaml:"attribute" doc:"Request attribute."`
	APIKey    bool   `yaml:"apiKey" doc:"The principal whose API key the request carries."`
}

// Decision bounds the gathering of evidence and the whole of a decision.
type Decision struct {
	Window     size.Bytes    `yaml:"window" min:"1KiB" max:"64MiB" doc:"Bytes of body looked at before the decision is taken."`
	UploadIdle time.Duration `yaml:"uploadIdle" min:"1ms" max:"1m" doc:"An upload that pauses this long is decided on what has arrived."`
	MaxWait    time.Duration `yaml:"maxWait" min:"1ms" max:"24h" doc:"Bound on all waits of one decision together. Envoy's message_timeout must be above it."`
}

// Cluster holds the settings of one route cluster, fully resolved.
type Cluster struct {
	Lanes  adaptive.Settings     `yaml:"lanes" doc:"Adaptive limit and virtual lanes."`
	Lease  lease.ClusterSettings `yaml:"lease" doc:"Session leases."`
	Fanout ClusterFanout         `yaml:"fanout" doc:"Fan-out."`

	Protocol Protocol `yaml:"protocol" enum:"http1,http2,client" doc:"What Envoy speaks to the upstream, as extproc envoy prints it: http1; http2, which gRPC needs; or client, whichever of the two the client speaks, for upstreams that take both on one port. The sidecar itself works with each."`
}

// Protocol is what Envoy speaks to an upstream.
type Protocol string

// The protocols of upstreams.
const (
	HTTP1       Protocol = "http1"
	HTTP2       Protocol = "http2"
	ClientsHTTP Protocol = "client" // HTTP/1.1 or HTTP/2, as the client
)

// ClusterFanout holds the fan-out settings of one route cluster.
type ClusterFanout struct {
	IssueParent bool `yaml:"issueParent" doc:"Puts a parent token on every forwarded request, for gateways that turn one request into several."`
}

// Fanout configures the parent tokens.
type Fanout struct {
	Secret     string        `yaml:"secret" secret:"true" doc:"Secret of at least 32 bytes that replicas share to verify each other's parent tokens; empty means a random one per process."`
	SecretFile string        `yaml:"secretFile" doc:"File that holds the secret instead."`
	TTL        time.Duration `yaml:"ttl" min:"1s" max:"24h" doc:"Life of a parent token."`
	MaxDepth   int           `yaml:"maxDepth" min:"1" max:"16" doc:"Nesting of fan-outs at most."`
}

// Shutdown bounds the end of the process.
type Shutdown struct {
	Drain time.Duration `yaml:"drain" min:"0" max:"1h" doc:"Not ready any more, but still serving, for this long."`
	Grace time.Duration `yaml:"grace" min:"0" max:"24h" doc:"From the signal to the end of the process at most, drain included; stay under the pod's terminationGracePeriodSeconds."`
}

// Telemetry says what may be shown of tenants.
type Telemetry struct {
	TenantNames []string `yaml:"tenantNames" doc:"Tenants that logs, the health document, the status page and access logs may name: their lanes have their names. Those of all others are opaque. A change moves a tenant to a lane of the new name."`
}

// Log configures logging.
type Log struct {
	Level  string `yaml:"level" enum:"debug,info,warn,error" doc:"Least level that is logged."`
	Format string `yaml:"format" enum:"json,text" doc:"Format of a line."`
}

// Default returns the configuration of an empty file and an empty environment.
func Default() *Config {
	return &Config{
		Listen:           Listen{GRPC: "unix:///run/headgate/extproc.sock", Admin: "127.0.0.1:9003", API: "127.0.0.1:9004"},
		RouteCluster:     RouteCluster{Attributes: []string{"xds.cluster_name", "xds.route_name"}},
		Tenant:           Tenant{MaxLanes: 1000},
		PrincipalSources: []Source{{APIKey: true}},
		Decision:         Decision{Window: 256 << 10, UploadIdle: 150 * time.Millisecond, MaxWait: 8 * time.Second},
		Bytes:            budget.DefaultSettings(),
		Pressure:         memory.DefaultPressureSettings(),
		Clusters:         map[string]Cluster{AnyCluster: {Lanes: adaptive.DefaultSettings(), Lease: lease.ClusterSettings{Mode: lease.ModeOff}, Protocol: HTTP1}},
		Leases:           lease.DefaultSettings(),
		Fanout:           Fanout{TTL: 5 * time.Minute, MaxDepth: 3},
		Shutdown:         Shutdown{Drain: 5 * time.Second, Grace: 25 * time.Second},
		Log:              Log{Level: "info", Format: "json"},
	}
}

// Cluster returns the settings of the named route cluster: its own entry, else "*".
func (c *Config) Cluster(name string) Cluster {
	own, ok := c.Clusters[name]
	if !ok {
		own = c.Clusters[AnyCluster]
	}
	own.Lanes.Levels = c.Priority.Levels
	return own
}
