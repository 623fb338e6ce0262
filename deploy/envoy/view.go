package envoyconf

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
)

const (
	// timeoutMargin is what message_timeout leaves for the way between Envoy and sidecar and for scheduling.
	timeoutMargin = time.Second
	// leastBuffer is Envoy's own default; less would slow large uploads for nothing.
	leastBuffer = 1 << 20
	// windowsPerConnection bounds the held uploads of one HTTP/2 connection that may fill their stream windows before
	// they hold up its other streams.
	windowsPerConnection = 64
	// mutableHeaders are all headers the sidecar ever sets or removes. Envoy refuses an expression that compiles to more than
	// 100 instructions, so that it names what headers begin with. Of the rest it names the letters: in the RE2 of Envoy 1.39 and
	// older a dot alone takes more than a dozen instructions.
	mutableHeaders = `(x-(omniroute|headgate|should)-|retry-after|grpc-(status|retry)-)[a-z-]*|content-type|trace(parent|state)`
)

// view is what the templates see.
type view struct {
	ProcessorCluster, APICluster string
	Processor, Listen, Admin     endpoint
	API                          *endpoint
	ProcessorTLS, APITLS         *tlsFiles // nil speaks none
	FailOpen                     bool
	Minor                        int // of the version of Envoy
	MessageTimeout, StreamIdle   string
	BufferLimit                  int64
	RequestTimeout               string // what an upload may take where nobody else looks after it; empty: the sidecar does
	ConnectionWindow             int64
	Attributes                   []string
	MetadataNamespaces           []string
	MutableHeaders               string
	Witness                      bool // whether any route wants it
	WitnessFilter                string
	ResponseBody                 string // response_body_mode of the processor's filter
	APIPaths                     []string
	Routes                       []route
	Upstreams                    []upstream
	Filter, Clusters, RouteList  string
}

// endpoint is an address as Envoy writes it.
type endpoint struct {
	Discovery string // STATIC, or STRICT_DNS for a name
	Address   string // a core.v3.Address in flow style
}

// tlsFiles are Envoy's side of the sidecar's TLS.
type tlsFiles struct{ Dir, Name string }

// tls returns Envoy's side of a listener's settings.
func (o Options) tls(s config.ServerTLS) *tlsFiles {
	if !s.Enabled() {
		return nil
	}
	return &tlsFiles{orElse(o.TLSDir, DefaultTLSDir), orElse(o.TLSName, DefaultTLSName)}
}

// upstream is a cluster that requests are forwarded to.
type upstream struct {
	Name string
	endpoint
	Protocol        protocol
	FirstOfProtocol bool // its protocol is written out; the others refer to it
}

// protocol is what Envoy speaks to an upstream.
type protocol struct {
	Name        config.Protocol
	Explanation string
}

var protocols = map[config.Protocol]protocol{
	config.HTTP1:       {config.HTTP1, "HTTP/1.1, whatever the client speaks. For gRPC: clusters.<name>.protocol: http2."},
	config.HTTP2:       {config.HTTP2, "HTTP/2, which gRPC needs."},
	config.ClientsHTTP: {config.ClientsHTTP, "HTTP/1.1 or HTTP/2, as the client does: gRPC and WebSocket reach the same upstream."},
}

// route is one entry of the route table. With a connection it matches only after the sidecar bound the request to it.
type route struct {
	Name, Match, Cluster, Connection, Explanation string
	Base                                          string // the route cluster that a connection's requests come from
	Witnessed                                     bool   // its first tokens are for the witness to see
	AnyCase                                       bool   // of the path
	Length                                        string // which content-length it is for, as a header matcher; empty is any, and none
	Mode                                          string // processing_mode of those
}

func newView(c *config.Config, o Options) (*view, error) {
	v := &view{
		ProcessorCluster: "headgate", APICluster: "headgate-api",
		WitnessFilter: "envoy.filters.http.ext_proc.witness", ResponseBody: "NONE",
		ProcessorTLS:   o.tls(c.Listen.GRPCTLS),
		APITLS:         o.tls(c.Listen.APITLS),
		FailOpen:       o.FailOpen,
		StreamIdle:     seconds(cmp.Or(o.StreamIdle, DefaultStreamIdle)),
		MessageTimeout: messageTimeout(c),
		BufferLimit:    max(leastBuffer, 2*int64(c.Decision.Window)),
		MutableHeaders: mutableHeaders,
		APIPaths:       []string{"/v1/session-leases", "/api/v1/session-leases", "/v1/admission/probe"},
	}
	var err error
	if v.Minor, err = minorOf(o.EnvoyVersion); err != nil {
		return nil, err
	}
	if c.Bytes.Count == budget.CountFramed {
		v.RequestTimeout = seconds(c.Bytes.UploadMaxTime)
	}
	v.ConnectionWindow = min(windowsPerConnection*v.BufferLimit, 1<<31-1)
	v.Attributes, v.MetadataNamespaces = evidence(c)
	upstreamAt, err := v.resolve(c, o)
	if err != nil {
		return nil, err
	}
	v.Routes = routes(c)
	v.watchResponses(c)
	v.Routes = withUnread(v.Routes, c, v.ResponseBody)
	v.Upstreams = upstreams(c, v.Routes, upstreamAt)
	return v, nil
}

// seconds writes a duration as Envoy does.
func seconds(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s" }

// upstreams returns the clusters that the routes name, each once, all at one address. A connection's cluster speaks what the
// cluster whose requests it takes speaks, unless it has settings of its own.
func upstreams(c *config.Config, all []route, at endpoint) []upstream {
	var found []upstream
	written := map[config.Protocol]bool{}
	for _, r := range all {
		if slices.ContainsFunc(found, func(u upstream) bool { return u.Name == r.Cluster }) {
			continue
		}
		spoken := c.Cluster(r.Cluster).Protocol
		if _, own := c.Clusters[r.Cluster]; !own && r.Base != "" {
			spoken = c.Cluster(r.Base).Protocol
		}
		if spoken == "" {
			spoken = config.HTTP1
		}
		found = append(found, upstream{r.Cluster, at, protocols[spoken], !written[spoken]})
		written[spoken] = true
	}
	return found
}

// watchResponses finds out what the configured clusters want to see of responses. Clusters that are not configured may
// be routed to as well, and have the settings of any.
func (v *view) watchResponses(c *config.Config) {
	for _, r := range v.Routes {
		v.Witness = v.Witness || r.Witnessed
	}
	for _, cluster := range c.Clusters {
		v.Witness = v.Witness || cluster.Lanes.Witnessed()
		if cluster.Lanes.FirstToken == adaptive.FirstTokenBody && cluster.Lanes.Mode != adaptive.Off {
			v.ResponseBody = "STREAMED"
		}
	}
	v.Witness = v.Witness && v.ResponseBody == "NONE"
}

// resolve fills the addresses of the sidecar and of Envoy, and returns that of the upstreams.
func (v *view) resolve(c *config.Config, o Options) (endpoint, error) {
	var up endpoint
	for _, a := range []struct {
		to            *endpoint
		what, address string
		parse         func(string) (endpoint, error)
	}{
		{&v.Processor, "listen.grpc", c.Listen.GRPC, parseEndpoint},
		{&v.Listen, "Envoy's listener", orElse(o.Listen, "127.0.0.1:10000"), parseListener},
		{&v.Admin, "Envoy's admin address", orElse(o.Admin, "127.0.0.1:9901"), parseListener},
		{&up, "the upstream", orElse(o.Upstream, "127.0.0.1:9001"), parseEndpoint},
	} {
		e, err := a.parse(a.address)
		if err != nil {
			return up, fmt.Errorf("address of %s: %w", a.what, err)
		}
		*a.to = e
	}
	if c.Listen.API == "" {
		return up, nil
	}
	api, err := parseEndpoint(c.Listen.API)
	if err != nil {
		return up, fmt.Errorf("address of listen.api: %w", err)
	}
	v.API = &api
	return up, nil
}

// messageTimeout returns the time Envoy waits for an answer to one message: longer than the sidecar is ever silent. An
// upload that pauses is decided after uploadIdle, a decision waits at most maxWait, and growth in mid-body at most the
// byte wait.
func messageTimeout(c *config.Config) string {
	silence := max(c.Decision.UploadIdle+c.Decision.MaxWait, c.Bytes.Queue.MaxWait)
	seconds := (silence + timeoutMargin + time.Second - 1) / time.Second
	return strconv.FormatInt(int64(seconds), 10) + "s"
}

// evidence returns the request attributes and the dynamic metadata namespaces that the sidecar's settings read.
func evidence(c *config.Config) (attributes, namespaces []string) {
	attributes = slices.Clone(c.RouteCluster.Attributes)
	for _, s := range c.Sources() {
		if s.Attribute != "" && !slices.Contains(attributes, s.Attribute) {
			attributes = append(attributes, s.Attribute)
		}
		namespace, _, _ := strings.Cut(s.Metadata, "/")
		if namespace != "" && !slices.Contains(namespaces, namespace) {
			namespaces = append(namespaces, namespace)
		}
	}
	slices.Sort(namespaces)
	return attributes, namespaces
}

// routes returns the route table: the chat paths, a prefix for every other configured cluster, and the rest.
func routes(c *config.Config) []route {
	var all []route
	for i, path := range []string{"/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"} {
		r := route{Name: "chat", Cluster: "chat", Match: "path: " + path, AnyCase: true}
		if i == 0 {
			r.Explanation = "Requests to a language model."
		}
		all = append(all, connected(c, r)...)
	}
	for _, name := range slices.Sorted(maps.Keys(c.Clusters)) {
		if name == config.AnyCluster || name == "chat" || name == "default" {
			continue
		}
		all = append(all, connected(c, route{Name: name, Cluster: name, Match: "prefix: " + scalar("/"+name+"/"), AnyCase: true})...)
	}
	rest := route{Name: "default", Cluster: "default", Match: "prefix: /", Explanation: "Everything else."}
	return append(all, connected(c, rest)...)
}

// connected puts before r a route to each connection of its cluster's lease pool. The first look-up, before the sidecar
// was asked, always ends at r: its cluster is what the sidecar sees as the route cluster.
func connected(c *config.Config, r route) []route {
	r.Witnessed = c.Cluster(r.Cluster).Lanes.Witnessed()
	use := c.Cluster(r.Cluster).Lease
	if use.Mode == lease.ModeOff || use.Mode == "" || use.Pool == "" {
		return []route{r}
	}
	var all []route
	for _, connection := range c.Leases.Pools[use.Pool].Connections {
		if connection.Cluster == "" {
			continue
		}
		to := r
		to.Base, to.Cluster, to.Connection, to.Explanation = r.Cluster, connection.Cluster, connection.ID, ""
		all = append(all, to)
	}
	if len(all) > 0 {
		all[0].Explanation = "The connection that the sidecar bound the lease to. A client's own header matches nothing: no metadata yet."
		r.Explanation = ""
	}
	return append(all, r)
}

// parseEndpoint returns where to reach a listener; one on every interface is reached on loopback.
func parseEndpoint(listen string) (endpoint, error) {
	network, address, err := config.ParseAddr(listen)
	if err != nil {
		return endpoint{}, err
	}
	if network == "unix" {
		return endpoint{Discovery: "STATIC", Address: fmt.Sprintf("{pipe: {path: %s}}", scalar(address))}, nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return endpoint{}, err
	}
	e := endpoint{Discovery: "STATIC"}
	switch ip := net.ParseIP(host); {
	case host == "" || ip.IsUnspecified():
		host = "127.0.0.1"
	case ip == nil:
		e.Discovery = "STRICT_DNS"
	}
	e.Address = fmt.Sprintf("{socket_address: {address: %s, port_value: %s}}", scalar(host), port)
	return e, nil
}

// parseListener returns where Envoy is to listen: the address as it is given. Without a host that is every interface of
// IPv4.
func parseListener(listen string) (endpoint, error) {
	e, err := parseEndpoint(listen)
	if err != nil || strings.HasPrefix(listen, "unix:") {
		return e, err
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return endpoint{}, err
	}
	host = orElse(host, "0.0.0.0")
	if net.ParseIP(host) == nil {
		return endpoint{}, fmt.Errorf("%q: Envoy listens on an IP address, not on the name %q", listen, host)
	}
	e.Address = fmt.Sprintf("{socket_address: {address: %s, port_value: %s}}", scalar(host), port)
	return e, nil
}

// plain matches strings that YAML reads back as the same string without quotes.
var plain = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9._/-]*$|^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$`)

// scalar writes s as a YAML string, quoted where it must be.
func scalar(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "yes", "no", "on", "off", "null", "y", "n":
	default:
		if plain.MatchString(s) {
			return s
		}
	}
	quoted, _ := json.Marshal(s) // a string always marshals
	return string(quoted)
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
