package extproc

import (
	"bytes"
	"strconv"
	"strings"
	"time"

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
	level    string         // priority level; empty where there are none
	caller   lease.Identity // known only where the route cluster looks at leases
	declared int64          // content-length, undeclared where unknown
	conflict bool           // content-length values that contradict each other

	shape    shape
	grpc     bool // a gRPC caller: refusals carry a gRPC status
	connect  bool // switches with any 2xx, not with 101
	upgrade  bool // WebSocket or CONNECT: what follows are frames, not a body
	streams  bool // asks for a stream by its path
	bodyless bool // by its method, the request has no body worth waiting for

	parent      *adaptive.Parent // verified parent token: a child request of a fan-out
	leaseOwner  string
	leaseGen    string
	connection  string // pinned by the client
	model       string // named by the path
	traceparent string
	timeout     time.Duration // how long the caller waits for the answer; 0: it does not say
	remove      []string      // headers of ours that the client sent
	set         []wire.Header // headers of ours that the client repeated, with the value that counts
}

// readFacts makes facts of a headers message. A message of another phase gives those of an empty header map. A header that
// is repeated counts with its first value, content-length, lease owner and generation with all of them.
func readFacts(m *wire.Message, p *policy) facts {
	f := facts{declared: undeclared}
	var h headers
	m.EachHeader(func(name, value []byte) {
		if field := h.field(name); field != nil {
			keepFirst(field, value)
			return
		}
		switch string(name) {
		case "content-length":
			f.addLength(value)
		case lease.OwnerHeader:
			join(&h.leaseOwner, value)
		case lease.GenerationHeader:
			join(&h.leaseGen, value)
		case headerParent:
			h.parents++
			keepFirst(&h.parent, value)
		case headerBypass:
			f.remove = appendOnce(f.remove, headerBypass)
		default:
			if bytes.HasPrefix(name, []byte(ownPrefix)) {
				f.remove = appendOnce(f.remove, string(name))
			}
		}
	})
	path := readPath(h.path)
	f.shape = path.shape(h.anthropicVersion != nil)
	f.addContentType(string(h.contentType))
	f.streams, f.model = path.streams(), path.model()
	f.connect = string(h.method) == "CONNECT"
	f.upgrade = f.connect || (string(h.method) == "GET" && len(h.upgrade) > 0 && f.declared <= 0)
	f.bodyless = bodyless(string(h.method)) || len(h.upgrade) > 0
	f.leaseOwner = string(bytes.TrimSpace(h.leaseOwner))
	f.leaseGen = string(bytes.TrimSpace(h.leaseGen))
	f.connection = string(bytes.TrimSpace(h.connection))
	f.traceparent = string(h.traceparent)
	f.timeout = callerTimeout(string(h.grpcTimeout), string(h.expected))
	f.cluster = p.clusterOf(m)
	f.tenant = p.tenantOf(m)
	f.level = p.levelOf(m)
	f.addParent(p, h.parent, h.parents)
	return f
}

// addParent takes a parent token that verifies. Any other is removed; of a repeated one only the value that counted goes on.
func (f *facts) addParent(p *policy, token []byte, times int) {
	parent, valid := p.verifyParent(string(token))
	switch {
	case valid:
		verified := parent // a copy, so that only a token that verifies allocates
		f.parent = &verified
		if times > 1 {
			f.set = append(f.set, wire.Header{Name: headerParent, Value: string(token)})
		}
	case times > 0:
		f.remove = append(f.remove, headerParent)
	}
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
	f.grpc = isGRPC(media)
	if isGRPCCall(media) {
		f.shape = grpcCall
	}
}

// isGRPC reports application/grpc and its relatives, in lower case.
func isGRPC(media string) bool {
	rest, ok := strings.CutPrefix(media, grpcMediaTypePrefix)
	return ok && (rest == "" || rest[0] == '+' || rest[0] == '-')
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
