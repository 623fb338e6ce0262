package envoyconf_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	caresv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/network/dns_resolver/cares/v3"
	"google.golang.org/protobuf/types/known/anypb"

	envoyconf "github.com/headgate/headgate/deploy/envoy"
	"github.com/headgate/headgate/internal/stack"
	"github.com/headgate/headgate/pkg/config"
)

// start runs a real Envoy with the printed configuration, changed by edit, in front of an upstream. Nobody answers for the
// processor, so requests pass unchecked.
func start(t *testing.T, upstream string, edit func(*stack.Bootstrap)) (*stack.Envoy, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	binary, err := stack.FindEnvoy(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	c.Listen.GRPC = "unix://" + filepath.Join(t.TempDir(), "nobody.sock")
	b, err := stack.NewBootstrap(c, envoyconf.Options{FailOpen: true, Upstream: upstream})
	if err != nil {
		t.Fatal(err)
	}
	b.FreePorts()
	if edit != nil {
		edit(b)
	}
	text, err := b.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	envoy, err := stack.StartEnvoy(ctx, stack.EnvoyOptions{Binary: binary, Bootstrap: text})
	if err == nil {
		t.Cleanup(envoy.Stop)
	}
	return envoy, err
}

// TestHTTP2ClientsReachHTTP1Servers: most inference servers speak HTTP/1.1 only.
func TestHTTP2ClientsReachHTTP1Servers(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	upstream := http.Server{
		Handler:           http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }),
		Protocols:         new(http.Protocols),
		ReadHeaderTimeout: time.Minute,
	}
	upstream.Protocols.SetHTTP1(true)
	go func() { _ = upstream.Serve(l) }()
	t.Cleanup(func() { _ = upstream.Close() })
	envoy, err := start(t, l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Transport: &http.Transport{Protocols: new(http.Protocols)}, Timeout: 20 * time.Second}
	client.Transport.(*http.Transport).Protocols.SetUnencryptedHTTP2(true)
	r, err := client.Get(envoy.URL() + "/v1/chat/completions")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK || string(body) != "HTTP/1.1" || r.ProtoMajor != 2 {
		t.Errorf("over %s: %d %q (%v), want 200 and HTTP/1.1 at the upstream", r.Proto, r.StatusCode, body, err)
	}
}

// TestStartsWithoutNameServer: a name server that does not answer keeps Envoy from nothing but the upstreams with names.
func TestStartsWithoutNameServer(t *testing.T) {
	silent, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)}) // takes questions, answers none
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	resolver, err := anypb.New(&caresv3.CaresDnsResolverConfig{Resolvers: []*corev3.Address{{Address: &corev3.Address_SocketAddress{
		SocketAddress: &corev3.SocketAddress{
			Protocol: corev3.SocketAddress_UDP, Address: "127.0.0.1",
			PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(silent.LocalAddr().(*net.UDPAddr).Port)},
		},
	}}}})
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	envoy, err := start(t, "llm-gateway:8080", func(b *stack.Bootstrap) {
		for _, c := range b.GetStaticResources().GetClusters() {
			c.TypedDnsResolverConfig = &corev3.TypedExtensionConfig{Name: "envoy.network.dns_resolver.cares", TypedConfig: resolver}
		}
	})
	if err != nil {
		t.Fatalf("not ready after %v without a name server: %v", time.Since(began), err)
	}
	r, err := http.Get(envoy.URL() + "/v1/session-leases") // to the sidecar's API, which has an address
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Body.Close()
	if r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the route to an address: %d, want 503, since nobody listens there", r.StatusCode)
	}
}
