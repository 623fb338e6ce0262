package extproc

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/extproc/wire"
	"github.com/headgate/headgate/pkg/lease"
)

// Headers of our own. Those with the prefix are ours alone: whatever a client sends in them is removed.
const (
	ownPrefix           = "x-headgate-"
	headerParent        = "x-headgate-parent"
	headerBypass        = "x-omniroute-admission-bypass"
	undeclared          = -1 // facts.declared where no valid content-length says how long the body is
	clusterUnnamed      = "default"
	grpcMediaTypePrefix = "application/grpc"
)

// facts are what a request's headers say. Nothing here is trusted but what the policy's sources name.
type facts struct {
	cluster  string
	tenant   tenant
	caller   lease.Identity // known only where the route cluster looks at leases
	declared int64          // content-length, undeclared where unknown
	conflict bool           // content-length values that contradict each other

	grpc     bool // a gRPC caller: refusals carry a gRPC status
	connect  bool // switches with any 2xx, not with 101
	upgrade  bool // WebSocket or CONNECT: what follows are frames, not a body
	bodyless bool // by its method, the request has no body worth waiting for
	json     bool // the body may be JSON

	parent      *adaptive.Parent // verified parent token: a child request of a fan-out
	leaseOwner  string
	leaseGen    string
	connection  string // pinned by the client
	traceparent string
	remove      []string // headers of ours that the client sent
}

// readFacts makes facts of a headers message. A message of another phase gives those of an empty header map.
func readFacts(m *wire.Message, p *policy) facts {
	f := facts{declared: undeclared, json: true}
	var method, upgrade, encoding string
	var token []byte
	m.EachHeader(func(name, value []byte) {
		switch string(name) {
		case ":method":
			method = string(value)
		case "content-length":
			f.addLength(value)
		case "content-type":
			f.addContentType(string(value))
		case "content-encoding":
			encoding = string(value)
		case "upgrade":
			upgrade = string(value)
		case headerParent:
			token = value
		case headerBypass:
			f.remove = appendOnce(f.remove, headerBypass)
		case lease.OwnerHeader:
			f.leaseOwner = string(bytes.TrimSpace(value))
		case lease.GenerationHeader:
			f.leaseGen = string(bytes.TrimSpace(value))
		case lease.ConnectionHeader:
			f.connection = string(bytes.TrimSpace(value))
		case "traceparent":
			f.traceparent = string(value)
		default:
			if bytes.HasPrefix(name, []byte(ownPrefix)) {
				f.remove = appendOnce(f.remove, string(name))
			}
		}
	})
	f.json = f.json && (encoding == "" || strings.EqualFold(encoding, "identity"))
	f.connect = method == "CONNECT"
	f.upgrade = f.connect || (method == "GET" && upgrade != "" && f.declared <= 0)
	f.bodyless = bodyless(method) || upgrade != ""
	f.cluster = p.clusterOf(m)
	f.tenant = p.tenantOf(m)
	if parent, ok := p.verifyParent(string(token)); ok {
		f.parent = &parent
	} else if token != nil {
		f.remove = append(f.remove, headerParent)
	}
	return f
}

// addLength takes a content-length that is a canonical decimal and fits an int64; anything else is unknown.
func (f *facts) addLength(value []byte) {
	for part := range strings.SplitSeq(string(value), ",") {
		part = strings.TrimSpace(part)
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil || strconv.FormatInt(n, 10) != part || n < 0 {
			continue
		}
		f.conflict = f.conflict || (f.declared != undeclared && f.declared != n)
		f.declared = n
	}
}

func (f *facts) addContentType(value string) {
	media, _, _ := strings.Cut(value, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	f.json = media == "" || strings.HasSuffix(media, "/json") || strings.HasSuffix(media, "+json")
	rest, ok := strings.CutPrefix(media, grpcMediaTypePrefix)
	f.grpc = ok && (rest == "" || rest[0] == '+' || rest[0] == '-')
	f.json = f.json && !f.grpc
}

// bodyless reports the methods whose body, if there is one, has no meaning (RFC 9110, 9.3).
func bodyless(method string) bool {
	switch method {
	case "GET", "HEAD", "OPTIONS", "TRACE", "CONNECT":
		return true
	}
	return false
}

func appendOnce(names []string, name string) []string {
	for _, n := range names {
		if n == name {
			return names
		}
	}
	return append(names, name)
}
