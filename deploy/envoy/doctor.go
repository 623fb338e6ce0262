package envoyconf

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/headgate/headgate/pkg/config"
)

// Finding is something in a running Envoy that does not fit the sidecar's configuration.
type Finding struct {
	Fault   bool   // requests fail or pass unchecked; otherwise something is worse than it has to be
	Where   string // in Envoy's configuration
	Message string // what is wrong, and what would be right
}

// String is the finding on one line.
func (f Finding) String() string {
	kind := "note"
	if f.Fault {
		kind = "FAULT"
	}
	return kind + " " + f.Where + ": " + f.Message
}

// Examine compares a config_dump of a running Envoy with c and returns what does not fit, faults first. It fails for a text that
// is no dump.
func Examine(c *config.Config, configDump []byte) ([]Finding, error) {
	d, err := readDump(configDump)
	if err != nil {
		return nil, err
	}
	e := &examination{config: c, dump: d}
	governed := 0
	for _, m := range d.connectionManagers() {
		if e.connectionManager(m) {
			governed++
		}
	}
	if governed == 0 {
		e.fault("listeners", "no HTTP connection manager has an ext_proc filter that goes to the sidecar (%s): nothing is governed", c.Listen.GRPC)
		return e.found, nil
	}
	e.clusterNames()
	slices.SortStableFunc(e.found, func(a, b Finding) int { return rank(a) - rank(b) })
	return e.found, nil
}

func rank(f Finding) int {
	if f.Fault {
		return 0
	}
	return 1
}

// examination collects findings.
type examination struct {
	config *config.Config
	dump   dump
	found  []Finding
	routed map[string]bool // clusters that governed routes lead to
}

func (e *examination) fault(where, format string, args ...any) {
	e.found = append(e.found, Finding{true, where, fmt.Sprintf(format, args...)})
}

func (e *examination) note(where, format string, args ...any) {
	e.found = append(e.found, Finding{false, where, fmt.Sprintf(format, args...)})
}

// connectionManager examines one, and reports whether it has the processor's filter.
func (e *examination) connectionManager(m connectionManager) bool {
	at := e.processor(m.filters)
	if at < 0 {
		return false
	}
	where := "listener " + m.listener.text("name", "?")
	filter := m.filters[at].get("typed_config")
	e.order(where, m.filters, at)
	where += ", filter " + m.filters[at].text("name", "?")
	e.modes(where, filter)
	e.timeouts(where, m.manager, filter)
	e.buffers(m)
	e.breakers(filter)
	e.transport(filter)
	e.evidence(where, m.filters[:at], filter)
	e.routes(m, m.filters[at].text("name", ""))
	return true
}

// processor returns the index of the filter that goes to the sidecar: the one whose cluster has its address, else the only one
// that sees request headers. -1 is none.
func (e *examination) processor(filters []object) int {
	_, address, err := config.ParseAddr(e.config.Listen.GRPC)
	if err != nil {
		return -1
	}
	var candidates []int
	for i, f := range filters {
		c := f.get("typed_config")
		if !c.is("ExternalProcessor") || c.get("processing_mode").text("request_header_mode", "DEFAULT") == "SKIP" {
			continue
		}
		candidates = append(candidates, i)
		if e.reaches(e.dump.cluster(processorCluster(c)), address) {
			return i
		}
	}
	if len(candidates) == 1 {
		return candidates[0]
	}
	return -1
}

func processorCluster(filter object) string {
	return filter.get("grpc_service", "envoy_grpc").text("cluster_name", "")
}

// reaches reports whether a cluster has an endpoint at the sidecar's address: its socket, or its port.
func (e *examination) reaches(cluster object, address string) bool {
	_, port, _ := strings.Cut(address, ":")
	if i := strings.LastIndex(address, ":"); i >= 0 {
		port = address[i+1:]
	}
	for _, l := range cluster.get("load_assignment").list("endpoints") {
		for _, endpoint := range l.list("lb_endpoints") {
			a := endpoint.get("endpoint", "address")
			if a.get("pipe").text("path", "") == address || port != "" && fmt.Sprint(a.get("socket_address").number("port_value", 0)) == port {
				return true
			}
		}
	}
	return false
}

// authenticates are filters whose result the sidecar reads, so that they come before it.
var authenticates = []string{"JwtAuthentication", "ExtAuthz", "BasicAuth", "ApiKeyAuth", "OAuth2"}

// order examines what stands before and after the processor.
func (e *examination) order(where string, filters []object, at int) {
	for i, f := range filters {
		c, name := f.get("typed_config"), f.text("name", "?")
		if i > at {
			for _, a := range authenticates {
				if c.is(a) {
					e.fault(where, "%s comes after the processor, which then sees no identity: put it before", name)
				}
			}
		}
		skipsHeaders := c.is("ExternalProcessor") && c.get("processing_mode").text("request_header_mode", "DEFAULT") == "SKIP"
		switch {
		case skipsHeaders && i > at && processorCluster(c) == processorCluster(filters[at].get("typed_config")):
			e.note(where, "the witness %s comes after the processor, so responses reach it first: put it before", name)
		case c.is("ExternalProcessor") && !skipsHeaders && i < at:
			e.note(where, "the external processor %s comes before the sidecar: an endpoint picker then picks for requests that are refused or wait; put the sidecar before it", name)
		case c.is("Buffer") && i < at:
			e.note(where, "%s collects whole bodies before the sidecar can refuse them: put it after, or remove it", name)
		}
	}
}

// modes examines what Envoy sends to the sidecar.
func (e *examination) modes(where string, filter object) {
	mode := filter.get("processing_mode")
	body := mode.text("request_body_mode", "NONE")
	early := filter.bool("send_body_without_waiting_for_header_response")
	switch {
	case body == "NONE":
		e.fault(where, "request_body_mode is NONE, so no body is counted: STREAMED, with send_body_without_waiting_for_header_response")
	case body == "BUFFERED" || body == "BUFFERED_PARTIAL":
		e.note(where, "request_body_mode is %s: Envoy keeps whole bodies in its memory first; STREAMED refuses while they arrive", body)
	case !early:
		e.note(where, "without send_body_without_waiting_for_header_response the upstream is contacted before the decision")
	}
	if mode.text("response_header_mode", "DEFAULT") == "SKIP" {
		e.fault(where, "response_header_mode is SKIP: bytes and lanes are held to the end of each response, and no limit learns; SEND")
	}
	if mode.text("response_trailer_mode", "DEFAULT") != "SEND" && mode.text("response_body_mode", "NONE") == "NONE" {
		e.fault(where, "response_trailer_mode is not SEND: the exchange's stream ends with the response's headers, so what generates still is not counted; SEND")
	}
	if filter.bool("failure_mode_allow") {
		e.note(where, "failure_mode_allow is true: requests pass unchecked while the sidecar is away")
	}
	if filter.bool("observability_mode") {
		e.fault(where, "observability_mode is on: Envoy does not wait for answers, so nothing is ever refused")
	}
}

// timeouts compares Envoy's patience with the sidecar's waits.
func (e *examination) timeouts(where string, manager, filter object) {
	need, _ := time.ParseDuration(messageTimeout(e.config))
	if got := filter.duration("message_timeout", 200*time.Millisecond); got < need {
		e.fault(where, "message_timeout is %v, but the sidecar may be silent for %v (decision.maxWait is %v): Envoy answers 504 for requests about to be admitted; %v",
			got, need-timeoutMargin, e.config.Decision.MaxWait, need)
	}
	if idle := manager.duration("stream_idle_timeout", 5*time.Minute); idle > 0 && idle < 10*time.Minute {
		e.note(where, "stream_idle_timeout is %v: a model that thinks longer before its next byte is cut", idle)
	}
}

// buffers compares what Envoy keeps of a body with the evidence window.
func (e *examination) buffers(m connectionManager) {
	where, need := "listener "+m.listener.text("name", "?"), 2*int64(e.config.Decision.Window)
	if got := m.listener.number("per_connection_buffer_limit_bytes", 1<<20); got < need {
		e.fault(where, "per_connection_buffer_limit_bytes is %d, less than two evidence windows (decision.window is %d): uploads stop before they are decided; %d",
			got, int64(e.config.Decision.Window), max(leastBuffer, need))
	}
	if got := m.manager.get("http2_protocol_options").number("initial_stream_window_size", 16<<20); got < need {
		e.fault(where, "http2_protocol_options.initial_stream_window_size is %d, less than two evidence windows: uploads over HTTP/2 stop before they are decided; %d", got, need)
	}
}

// breakers examines the limits of the sidecar's cluster.
func (e *examination) breakers(filter object) {
	name := processorCluster(filter)
	cluster := e.dump.cluster(name)
	if cluster == nil {
		e.fault("cluster "+name, "the filter's cluster does not exist")
		return
	}
	limits := cluster.get("circuit_breakers").list("thresholds")
	most := int64(1024)
	for _, l := range limits {
		if l.text("priority", "DEFAULT") == "DEFAULT" {
			most = l.number("max_requests", 1024)
		}
	}
	if most <= 1024 {
		e.fault("cluster "+name, "circuit_breakers.max_requests is %d, and every exchange is one request for as long as it lives: the others are refused; 100000", most)
	}
	options := cluster.get("typed_extension_protocol_options", "envoy.extensions.upstreams.http.v3.HttpProtocolOptions")
	if options.get("explicit_http_config", "http2_protocol_options") == nil && cluster.get("http2_protocol_options") == nil {
		e.fault("cluster "+name, "it does not speak HTTP/2, which gRPC needs: explicit_http_config.http2_protocol_options")
	}
}

// transport compares what the sidecar's cluster speaks with what its listener does.
func (e *examination) transport(filter object) {
	name := processorCluster(filter)
	cluster := e.dump.cluster(name)
	if cluster == nil {
		return // reported already
	}
	encrypted := cluster.get("transport_socket", "typed_config").is("UpstreamTlsContext")
	switch wanted := e.config.Listen.GRPCTLS.Enabled(); {
	case wanted && !encrypted:
		e.fault("cluster "+name, "it speaks no TLS, which listen.grpcTLS asks for: every request is refused; a transport_socket as extproc envoy --part cluster prints it")
	case !wanted && encrypted:
		e.fault("cluster "+name, "it speaks TLS, but listen.grpcTLS is not set: every request is refused")
	case encrypted && len(presented(cluster)) == 0:
		e.fault("cluster "+name, "it shows no certificate, which listen.grpcTLS asks for: tls_certificates")
	}
}

// presented are the certificates that a cluster shows, from files or by SDS.
func presented(cluster object) []object {
	common := cluster.get("transport_socket", "typed_config", "common_tls_context")
	return append(common.list("tls_certificates"), common.list("tls_certificate_sds_secret_configs")...)
}
