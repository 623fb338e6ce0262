package stack

import (
	"fmt"
	"strings"

	"github.com/headgate/headgate/pkg/lease"
)

// tour returns what a newcomer gets to see: where things are, and lines worth trying.
func (d *demo) tour() string {
	envoy, l := "http://"+d.o.Listen, d.config.Listen
	tooLarge := int64(d.config.Bytes.HardMaxBody) + 1
	var b strings.Builder
	fmt.Fprintf(&b, `
ready

  Envoy                  %s   (admin http://%s)
  sidecar: status page   http://%s/
  sidecar: API           http://%s
  demo upstream          http://%s
  settings               %s

try, from another terminal:

  # 200: a chat completion passes
  curl -sS -i %s/v1/chat/completions -H 'content-type: application/json' -d '{"model":"demo","messages":[{"role":"user","content":"hello"}]}'

  # a stream: its headers at once, then each token as it is generated
  curl -sS -N -i %s/v1/chat/completions -H 'content-type: application/json' -d '{"model":"demo","stream":true,"messages":[{"role":"user","content":"hello"}]}'

  # 413: the declared length is one byte too many; the upstream sees nothing
  head -c %d /dev/zero | curl -sS -i %s/upload -H 'expect:' --data-binary @-

  # 413: the same without a declared length; refused once that much has arrived
  head -c %d /dev/zero | curl -sS -i %s/upload -H 'expect:' -T -

  # what the sidecar knows
  curl -sS http://%s/api/monitoring/health
`, envoy, d.o.Admin, l.Admin, l.API, d.o.Upstream, d.file, envoy, envoy, tooLarge, envoy, tooLarge, envoy, l.Admin)
	if d.leasesToTry() {
		fmt.Fprintf(&b, leaseTour, envoy, envoy, envoy, envoy)
	}
	b.WriteString("\n  # lanes at work: three tenants, one at ten times the rate, on a stack of their own\n  make demo-load\n")
	b.WriteString("\nCtrl-C stops everything.\n\n")
	return b.String()
}

// leaseTour has four base URLs to fill in. Each line works on its own in a POSIX shell, in this order.
const leaseTour = `
  # a session lease: acquire it, use it, use it with a stale generation (409), release it
  OWNER=vlo_$(head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '=\n'); KEY='authorization: Bearer demo-key-a'
  GEN=$(curl -sS %s/v1/session-leases -H "$KEY" -H "x-omniroute-lease-owner: $OWNER" -H 'content-type: application/json' -d '{"action":"acquire","model":"demo"}' | sed 's/.*"generation":\([0-9]*\).*/\1/'); echo "generation $GEN"
  curl -sS -i %s/leased/echo -H "$KEY" -H "x-omniroute-lease-owner: $OWNER" -H "x-omniroute-lease-generation: $GEN" -d hello
  curl -sS -i %s/leased/echo -H "$KEY" -H "x-omniroute-lease-owner: $OWNER" -H 'x-omniroute-lease-generation: 1' -d hello
  curl -sS -i %s/v1/session-leases -H "$KEY" -H "x-omniroute-lease-owner: $OWNER" -H 'content-type: application/json' -d "{\"action\":\"release\",\"generation\":$GEN}"
`

// leasesToTry reports whether the settings have what the lease lines use: the demo's key and cluster.
func (d *demo) leasesToTry() bool {
	const demoKeyA = "f15424e984f66fb993b9d8e6444ade02adcc714a58b3b50106e98750e4244bfe" // SHA-256 of demo-key-a
	for _, p := range d.config.Principals {
		if p.KeySHA256 == demoKeyA {
			mode := d.config.Cluster("leased").Lease.Mode
			return mode == lease.ModeRequired || mode == lease.ModeManaged
		}
	}
	return false
}

// lookup returns the value of a variable in an environment, "" when it is not set. Of a name given twice the first
// counts, as in os.Getenv.
func lookup(environ []string, key string) string {
	for _, entry := range environ {
		if value, found := strings.CutPrefix(entry, key+"="); found {
			return value
		}
	}
	return ""
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
