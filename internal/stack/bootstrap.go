package stack

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"sigs.k8s.io/yaml"

	// Types that the shipped configuration packs into Any messages.
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/pkg/config"
)

// Mode is a way in which Envoy hands bodies to the processor.
type Mode string

// The modes a processor must cope with. All but ModeEarly leave send_body_without_waiting_for_header_response off.
const (
	ModeEarly           Mode = "early"           // as shipped: STREAMED, bodies without waiting for the headers' reply
	ModeStreamed        Mode = "streamed"        // STREAMED
	ModeFullDuplex      Mode = "fullDuplex"      // FULL_DUPLEX_STREAMED
	ModeBuffered        Mode = "buffered"        // BUFFERED
	ModeBufferedPartial Mode = "bufferedPartial" // BUFFERED_PARTIAL
	ModeNone            Mode = "none"            // NONE
)

// Bootstrap is an Envoy configuration that can be edited. The zero value is not usable.
type Bootstrap struct{ *bootstrapv3.Bootstrap }

// NewBootstrap renders the configuration that matches c.
func NewBootstrap(c *config.Config, o envoyconf.Options) (*Bootstrap, error) {
	var text bytes.Buffer
	if err := envoyconf.Render(&text, c, o); err != nil {
		return nil, err
	}
	return ParseBootstrap(text.Bytes())
}

// ParseBootstrap reads a configuration as YAML or JSON; unknown fields are errors.
func ParseBootstrap(text []byte) (*Bootstrap, error) {
	encoded, err := yaml.YAMLToJSON(text)
	if err != nil {
		return nil, fmt.Errorf("parse Envoy configuration: %w", err)
	}
	b := &Bootstrap{&bootstrapv3.Bootstrap{}}
	if err := protojson.Unmarshal(encoded, b.Bootstrap); err != nil {
		return nil, fmt.Errorf("parse Envoy configuration: %w", err)
	}
	return b, nil
}

// Marshal returns the configuration as JSON, which is YAML too.
func (b *Bootstrap) Marshal() ([]byte, error) {
	return protojson.MarshalOptions{UseProtoNames: true}.Marshal(b.Bootstrap)
}

// FreePorts makes Envoy listen on free ports of 127.0.0.1, for the listener and for the admin interface.
func (b *Bootstrap) FreePorts() {
	free := &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: "127.0.0.1", PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0}}}}
	b.listener().Address = free
	b.Admin.Address = proto.CloneOf(free)
}

// BufferLimit sets per_connection_buffer_limit_bytes of the listener.
func (b *Bootstrap) BufferLimit(bytes uint32) {
	b.listener().PerConnectionBufferLimitBytes = wrapperspb.UInt32(bytes)
}

// Processor edits the ext_proc filter.
func (b *Bootstrap) Processor(edit func(*extprocv3.ExternalProcessor)) error {
	return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
		f := m.HttpFilters[processorIndex(m)]
		return editAny(f.GetTypedConfig(), edit)
	})
}

// Witness edits the witness filter, which must be there.
func (b *Bootstrap) Witness(edit func(*extprocv3.ExternalProcessor)) error {
	return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
		at := slices.IndexFunc(m.HttpFilters, func(f *hcmv3.HttpFilter) bool { return f.Name == "envoy.filters.http.ext_proc.witness" })
		if at < 0 {
			return errors.New("the configuration has no witness filter")
		}
		return editAny(m.HttpFilters[at].GetTypedConfig(), edit)
	})
}

// UseMode sets the body mode of the ext_proc filter.
func (b *Bootstrap) UseMode(m Mode) error {
	body, known := map[Mode]extprocv3.ProcessingMode_BodySendMode{
		ModeEarly: extprocv3.ProcessingMode_STREAMED, ModeStreamed: extprocv3.ProcessingMode_STREAMED,
		ModeFullDuplex: extprocv3.ProcessingMode_FULL_DUPLEX_STREAMED, ModeBuffered: extprocv3.ProcessingMode_BUFFERED,
		ModeBufferedPartial: extprocv3.ProcessingMode_BUFFERED_PARTIAL, ModeNone: extprocv3.ProcessingMode_NONE,
	}[m]
	if !known {
		return fmt.Errorf("unknown body mode %q", m)
	}
	return b.Processor(func(p *extprocv3.ExternalProcessor) {
		p.ProcessingMode.RequestBodyMode = body
		p.SendBodyWithoutWaitingForHeaderResponse = m == ModeEarly
	})
}

// MessageTimeout sets message_timeout of the ext_proc filter.
func (b *Bootstrap) MessageTimeout(d time.Duration) error {
	return b.Processor(func(p *extprocv3.ExternalProcessor) { p.MessageTimeout = durationpb.New(d) })
}

// FailOpen makes of the ext_proc filter what `extproc envoy --fail-open` prints: requests pass without a sidecar, and do
// not wait for it.
func (b *Bootstrap) FailOpen() error {
	return b.Processor(func(p *extprocv3.ExternalProcessor) { p.FailureModeAllow, p.GrpcService.RetryPolicy = true, nil })
}

// AddFilter puts an HTTP filter before the ext_proc filter, or behind it.
func (b *Bootstrap) AddFilter(name string, filter proto.Message, behind bool) error {
	packed, err := anypb.New(filter)
	if err != nil {
		return fmt.Errorf("pack filter %s: %w", name, err)
	}
	return b.Connections(func(m *hcmv3.HttpConnectionManager) error {
		at := processorIndex(m)
		if behind {
			at++
		}
		m.HttpFilters = slices.Insert(m.HttpFilters, at, &hcmv3.HttpFilter{Name: name,
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: packed}})
		return nil
	})
}

// Connections edits the HTTP connection manager: filters, routes, protocol options.
func (b *Bootstrap) Connections(edit func(*hcmv3.HttpConnectionManager) error) error {
	var failed error
	err := editAny(b.listener().FilterChains[0].Filters[0].GetTypedConfig(), func(m *hcmv3.HttpConnectionManager) {
		failed = edit(m)
	})
	if failed != nil {
		return failed
	}
	return err
}

// Cluster returns the named cluster to edit, nil when there is none.
func (b *Bootstrap) Cluster(name string) *clusterv3.Cluster {
	for _, c := range b.StaticResources.Clusters {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// HTTP1Only makes Envoy speak HTTP/1.1 to a cluster whatever the client speaks; WebSocket over HTTP/2 needs it, for
// the demo upstream takes it over HTTP/1.1 only.
func (b *Bootstrap) HTTP1Only(cluster string) error {
	c := b.Cluster(cluster)
	if c == nil {
		return fmt.Errorf("no cluster %q", cluster)
	}
	for _, options := range c.TypedExtensionProtocolOptions {
		err := editAny(options, func(o *httpv3.HttpProtocolOptions) {
			o.UpstreamProtocolOptions = &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
					HttpProtocolOptions: &corev3.Http1ProtocolOptions{EnableTrailers: true}}}}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *Bootstrap) listener() *listenerv3.Listener { return b.StaticResources.Listeners[0] }

// processorIndex returns where the ext_proc filter stands; the rendered configuration always has one.
func processorIndex(m *hcmv3.HttpConnectionManager) int {
	return slices.IndexFunc(m.HttpFilters, func(f *hcmv3.HttpFilter) bool { return f.Name == "envoy.filters.http.ext_proc" })
}

// message is a pointer to a generated message type.
type message[T any] interface {
	*T
	proto.Message
}

// editAny unpacks a message, edits and packs it again.
func editAny[T any, M message[T]](packed *anypb.Any, edit func(M)) error {
	m := M(new(T))
	if err := packed.UnmarshalTo(m); err != nil {
		return fmt.Errorf("edit Envoy configuration: %w", err)
	}
	edit(m)
	if err := packed.MarshalFrom(m); err != nil {
		return fmt.Errorf("edit Envoy configuration: %w", err)
	}
	return nil
}
