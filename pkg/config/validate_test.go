package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	hashA = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
	hashB = "e92bcf4919157acf1a3c050ce99f6152b6eaa3002c77a160ad36d0c6652286d2"
)

func TestCrossChecks(t *testing.T) {
	t.Parallel()
	const ok = ""
	pool := "leases: {pools: {p: {connections: [{id: c}]}}}\n"
	for _, test := range []struct{ name, text, want string }{
		{"lease mode off needs no pool", "clusters: {a: {lease: {mode: off, pool: gone}}}", ok},
		{"lease mode with its pool", pool + "clusters: {a: {lease: {mode: required, pool: p}}}", ok},
		{"lease mode without a pool", "clusters: {a: {lease: {mode: managed}}}", `clusters.a.lease.pool: there is no pool ""`},
		{"lease mode with an unknown pool", pool + "clusters: {a: {lease: {mode: required, pool: q}}}", `clusters.a.lease.pool: there is no pool "q"`},
		{"fault of * is not repeated", `clusters: {"*": {lease: {mode: required}}, a: {}, b: {}}`, `clusters["*"].lease.pool`},
		{"cluster without a name", `clusters: {"": {}}`, `clusters[""]: clusters have names`},

		{"connection twice in a pool", "leases: {pools: {p: {connections: [{id: c}, {id: c}]}}}", "leases.pools.p.connections[1].id: \"c\" is also in pool p"},
		{"connection in two pools", "leases: {pools: {p: {connections: [{id: c}]}, q: {connections: [{id: c}]}}}", "leases.pools.q.connections[0].id: \"c\" is also in pool p"},
		{"connection id with a space", "leases: {pools: {p: {connections: [{id: a b}]}}}", "leases.pools.p.connections[0].id: \"a b\" is not"},
		{"connection id with a line break", `leases: {pools: {p: {connections: [{id: "a\r\nb"}]}}}`, "leases.pools.p.connections[0].id"},
		{"pool without connections", "leases: {pools: {p: {}}}", "leases.pools.p.connections: has 0"},
		{"no store", "leases: {store: {embedded: false}}", "leases.store: needs"},
		{"sentinel without a master", "leases: {store: {redis: {kind: sentinel, addrs: [\"a:1\"]}}}", "leases.store.redis.masterName"},
		{"address without a port", "leases: {store: {redis: {addrs: [a]}}}", "leases.store.redis.addrs[0]"},
		{"pool name with a brace", `leases: {pools: {"a}": {connections: [{id: c}]}}}`, "leases.pools.a}: a pool's name"},

		{"principals", pool + "principals: [{id: a, keySHA256: " + hashA + "}, {id: b, keySHA256: " + hashB + ", scopes: [\"lease:exclusive\"], connections: [c]}]", ok},
		{"principal without a key", "principals: [{id: a}]", ok},
		{"principal twice", "principals: [{id: a}, {id: a}]", `principals[1].id: "a" is there twice`},
		{"key twice", "principals: [{id: a, keySHA256: " + hashA + "}, {id: b, keySHA256: " + hashA + "}]", "principals[1].keySHA256: another principal has the same key"},
		{"short hash", "principals: [{id: a, keySHA256: " + hashA[1:] + "}]", "principals[0].keySHA256: is not 64 lower-case hex"},
		{"upper-case hash", "principals: [{id: a, keySHA256: " + strings.ToUpper(hashA) + "}]", "is not 64 lower-case hex"},
		{"hash that is none", "principals: [{id: a, keySHA256: " + strings.Repeat("g", 64) + "}]", "is not 64 lower-case hex"},
		{"hash of the empty key", "principals: [{id: a, keySHA256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855}]", "principals[0].keySHA256: is the hash of the empty key"},
		{"managed without connections", "principals: [{id: a, scopes: [\"lease:exclusive\"]}]", ok},
		{"managed with an unknown connection", pool + "principals: [{id: a, scopes: [\"lease:exclusive\"], connections: [c, d]}]", `principals[0].connections[1]: no pool has a connection "d"`},

		{"sources", "tenant: {sources: [{header: X-Tenant-Id}, {attribute: source.address}, {apiKey: true}, {metadata: a.b/c}]}", ok},
		{"source of no kind", "tenant: {sources: [{}]}", "tenant.sources[0]: must have exactly one of"},
		{"source of two kinds", "principalSources: [{header: a, apiKey: true}]", "principalSources[0]: must have exactly one of metadata, header, attribute and apiKey: true, has 2"},
		{"source apiKey: false", "tenant: {sources: [{apiKey: false}]}", "tenant.sources[0]: must have exactly one of"},
		{"metadata without a key", "tenant: {sources: [{metadata: a.b}]}", "tenant.sources[0].metadata: must be a namespace and at least one key"},
		{"metadata with an empty key", "tenant: {sources: [{metadata: a/b//c}]}", "tenant.sources[0].metadata"},
		{"header with a space", "tenant: {sources: [{header: x tenant}]}", "tenant.sources[0].header"},
		{"attribute with a space", "tenant: {sources: [{attribute: x y}]}", "tenant.sources[0].attribute"},
		{"route attribute with a space", "routeCluster: {attributes: [xds.cluster_name, x y]}", "routeCluster.attributes[1]"},
		{"nameless tenant", `tenant: {weights: {"": 1}}`, `tenant.weights[""]`},

		{"secret", "fanout: {secret: 0123456789abcdef0123456789abcdef}", ok},
		{"short secret", "fanout: {secret: hunter2}", "fanout.secret: must have at least 32 bytes, has 7"},
		{"two secrets", "fanout: {secret: 0123456789abcdef0123456789abcdef, secretFile: /x}", "fanout.secretFile: fanout.secret is set too"},

		{"drain beyond grace", "shutdown: {drain: 30s}", "shutdown.drain: 30s is longer than shutdown.grace, 25s"},
		{"floor over cap", "bytes: {budget: {floor: 4GiB}}", "bytes.budget.floor: 4GiB is more than bytes.budget.cap"},
		{"critical under high", "pressure: {critical: 0.8}", "pressure.critical: 0.8 is less than pressure.high"},
		{"min over max", "clusters: {a: {lanes: {minLimit: 20, maxLimit: 10}}}", "clusters.a.lanes.minLimit: must be at most maxLimit"},
		{"min over max of a faulty max", "clusters: {a: {lanes: {minLimit: 2000, maxLimit: many}}}", "clusters.a.lanes.maxLimit: must be an integer"},
		{"factor of 1", "clusters: {a: {lanes: {decreaseFactor: 1}}}", "clusters.a.lanes.decreaseFactor: must be in (0,1)"},
		{"alphas the wrong way round", "clusters: {\"*\": {lanes: {shortAlpha: 0.1}}, a: {}, b: {}}", `clusters["*"].lanes.shortAlpha: must be above longAlpha`},
		{"recovery over high", "pressure: {psi: {recovery: 40}}", "pressure.psi.high: 30 is not greater than pressure.psi.recovery"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			if test.want == ok {
				mustLoad(t, test.text)
				return
			}
			expectFault(t, faultsOf(t, test.text), "line ", test.want)
		})
	}
}

func TestListenAddresses(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ addr, network, address string }{
		{"unix:///run/headgate/extproc.sock", "unix", "/run/headgate/extproc.sock"},
		{"unix:///" + strings.Repeat("x", 106), "unix", "/" + strings.Repeat("x", 106)},
		{"unix:///" + strings.Repeat("x", 107), "", ""},
		{"unix://run/x.sock", "", ""},
		{"unix:/run/x.sock", "unix", "/run/x.sock"},
		{"unix:///run/", "", ""},
		{"unix://", "", ""},
		{"127.0.0.1:9002", "tcp", "127.0.0.1:9002"},
		{"[::1]:9002", "tcp", "[::1]:9002"},
		{"[fe80::1%eth0]:9002", "tcp", "[fe80::1%eth0]:9002"},
		{":9002", "tcp", ":9002"},
		{"localhost:0", "tcp", "localhost:0"},
		{"a_b.example:1", "tcp", "a_b.example:1"},
		{"127.0.0.1", "", ""},
		{"127.0.0.1:", "", ""},
		{"127.0.0.1:http", "", ""},
		{"127.0.0.1:65536", "", ""},
		{"127.0.0.1:-1", "", ""},
		{"127.0.0.1:+1", "", ""},
		{"127.0.0.1:01", "", ""},
		{"::1:9002", "", ""},
		{"tcp://127.0.0.1:9002", "", ""},
		{"host name:1", "", ""},
		{"", "", ""},
	} {
		network, address, err := ParseAddr(test.addr)
		if network != test.network || address != test.address || (err == nil) != (test.network != "") {
			t.Errorf("%q: expected %q %q, got %q %q, %v", test.addr, test.network, test.address, network, address, err)
		}
	}
}

func TestListeners(t *testing.T) {
	t.Parallel()
	const ok = ""
	for _, test := range []struct{ listen, want string }{
		{`{admin: "", api: ""}`, ok},
		{`{grpc: ""}`, "listen.grpc: must not be empty"},
		{`{grpc: "0.0.0.0:9002"}`, ok},
		{`{grpc: "unix:x"}`, "listen.grpc"},
		{`{admin: "[::1]:9003"}`, ok},
		{`{admin: "[::ffff:127.0.0.1]:9003"}`, ok},
		{`{admin: "localhost:9003"}`, ok},
		{`{admin: "unix:///run/admin.sock"}`, ok},
		{`{admin: ":9003"}`, "listen.admin: :9003 is not a loopback address"},
		{`{admin: "0.0.0.0:9003"}`, "listen.adminAllowRemote: true"},
		{`{admin: "localhost.example:9003"}`, "not a loopback address"},
		{`{admin: "0.0.0.0:9003", adminAllowRemote: true}`, ok},
		{`{grpcTLS: {certFile: a, keyFile: b, clientCAFile: c, clientNames: [envoy.example, "spiffe://x/envoy"]}, apiTLS: {certFile: a, keyFile: b}}`, ""},
		{`{grpcTLS: {certFile: a, keyFile: b}}`, "listen.grpcTLS.clientCAFile: must not be empty"},
		{`{grpcTLS: {certFile: a, clientCAFile: c}}`, "listen.grpcTLS: certFile and keyFile go together"},
		{`{apiTLS: {keyFile: b}}`, "listen.apiTLS: certFile and keyFile go together"},
		{`{apiTLS: {clientCAFile: c}}`, "listen.apiTLS.clientCAFile: needs certFile and keyFile"},
		{`{apiTLS: {certFile: a, keyFile: b, clientNames: [x]}}`, "listen.apiTLS.clientNames: needs clientCAFile"},
		{`{apiTLS: {certFile: a, keyFile: b, clientCAFile: c, clientNames: ["*.x"]}}`, `listen.apiTLS.clientNames[0]: "*.x" is no DNS name`},
		{`{api: "", apiTLS: {certFile: a, keyFile: b}}`, "listen.apiTLS: listen.api is empty"},
		{`{admin: "127.0.0.1:9004"}`, "listen.api: 127.0.0.1:9004 is already used by listen.admin"},
		{`{admin: "127.0.0.1:0", api: "127.0.0.1:0"}`, ok},
	} {
		if test.want == ok {
			mustLoad(t, "listen: "+test.listen)
			continue
		}
		expectFault(t, faultsOf(t, "listen: "+test.listen), test.want)
	}
	expectFault(t, faultsOf(t, "", "HEADGATE_LISTEN_ADMIN=0.0.0.0:9003"), "HEADGATE_LISTEN_ADMIN: listen.admin: ")
}

func TestHeadersAreLowerCased(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "tenant: {sources: [{header: X-Tenant-ID}]}")
	if got := c.Tenant.Sources[0].Header; got != "x-tenant-id" {
		t.Errorf("Envoy sends lower case; expected x-tenant-id, got %s", got)
	}
}

func TestNotes(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "bytes: {queue: {maxWait: 15s}}\nprincipals: [{id: a, scopes: [lease:exclusiv]}, {id: b, scopes: [\"lease:exclusive\"]}]")
	notes := strings.Join(c.Notes, "\n")
	for _, part := range []string{"15s is cut to decision.maxWait", `principals[0].scopes[0]: "lease:exclusiv" means nothing`, "principals[1] has scope lease:exclusive and no connections"} {
		if !strings.Contains(notes, part) {
			t.Errorf("expected a note on %q, got %q", part, c.Notes)
		}
	}
}

func TestFaultsOfOtherPackagesGetAPath(t *testing.T) {
	t.Parallel()
	faults := errors.Join(
		errors.New("low: 5 is not under high"), errors.Join(errors.New("x.high: is odd")), errors.New("something else"),
		fmt.Errorf("x.list[1].id: is %q", "a: b"), errors.New("some words: and more"),
	)
	r := newReport()
	r.origins["x.low"] = origin{env: "LOW"}
	r.addAll("x", faults)
	want := []string{
		"LOW: x.low: 5 is not under high", "x.high: is odd", "x: something else", `x.list[1].id: is "a: b"`, "x: some words: and more",
	}
	if len(r.faults) != len(want) {
		t.Fatalf("expected %d faults, got %v", len(want), r.faults)
	}
	for i, f := range r.faults {
		if f.String() != want[i] {
			t.Errorf("expected %q, got %q", want[i], f)
		}
	}

	r = newReport()
	r.addLine(3, "x.high", "is a string")
	r.addLine(4, "x.list", "is a string")
	r.addAll("x", faults)
	if len(r.faults) != 4 || r.faults[2].Message != "something else" {
		t.Errorf("what names a faulty value is a consequence; got %v", r.faults)
	}
}

func TestLaneFaultsOfTheEnvironmentAreReportedOnce(t *testing.T) {
	t.Parallel()
	faults := faultsOf(t, "clusters: {a: , b: {lanes: {mode: enforce}}}", "ADAPTIVE_ADMISSION_MIN_LIMIT=20", "ADAPTIVE_ADMISSION_MAX_LIMIT=10")
	expectFault(t, faults, `ADAPTIVE_ADMISSION_MIN_LIMIT: clusters["*"].lanes.minLimit: must be at most maxLimit`)
}

func TestFanoutKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, short := filepath.Join(dir, "good"), filepath.Join(dir, "short")
	secret := strings.Repeat("s", leastSecret)
	for path, content := range map[string]string{good: secret + "\n", short: "hunter2\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		fanout Fanout
		want   string
		fails  bool
	}{
		{Fanout{}, "", false},
		{Fanout{Secret: secret}, secret, false},
		{Fanout{SecretFile: good}, secret, false},
		{Fanout{SecretFile: short}, "", true},
		{Fanout{SecretFile: dir + "/missing"}, "", true},
	} {
		key, err := test.fanout.Key()
		if string(key) != test.want || (err != nil) != test.fails {
			t.Errorf("%+v: expected %q, failing %t; got %q, %v", test.fanout, test.want, test.fails, key, err)
		}
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}

func TestTenantNames(t *testing.T) {
	t.Parallel()
	for name, valid := range map[string]bool{
		"team-a": true, "a@example.com": true, "''": false, "lane_0123": false, "_default": false, "'two words'": false, "é": false, strings.Repeat("x", 129): false,
	} {
		_, err := parse("test.yaml", []byte("telemetry: {tenantNames: ["+name+"]}"), nil)
		if (err == nil) != valid || err != nil && !strings.Contains(err.Error(), "telemetry.tenantNames[0]") {
			t.Errorf("%s: %v, want valid %t or an error with the path", name, err, valid)
		}
	}
}
