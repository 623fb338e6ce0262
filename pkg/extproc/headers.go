package extproc

import (
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/headgate/headgate/pkg/lease"
)

// headers are the values of the headers that are read, the first ones, or all where that says so; nil where there is none. They
// lie in the message.
type headers struct {
	method, path, contentType, upgrade []byte
	connection                         []byte
	traceparent, grpcTimeout, expected []byte
	anthropicVersion                   []byte
	leaseOwner, leaseGen               []byte // all values

	parent  []byte
	parents int // how often it occurs
}

// field is where the value of a header belongs that counts with its first value; nil for all others.
func (h *headers) field(name []byte) *[]byte {
	switch string(name) {
	case ":method":
		return &h.method
	case ":path":
		return &h.path
	case "content-type":
		return &h.contentType
	case "upgrade":
		return &h.upgrade
	case lease.ConnectionHeader:
		return &h.connection
	case "anthropic-version":
		return &h.anthropicVersion
	case "traceparent":
		return &h.traceparent
	case "grpc-timeout":
		return &h.grpcTimeout
	case "x-envoy-expected-rq-timeout-ms":
		return &h.expected
	}
	return nil
}

// keepFirst stores the value unless there is one already; a blank one is one too.
func keepFirst(field *[]byte, value []byte) {
	if value == nil {
		value = []byte{}
	}
	if *field == nil {
		*field = value
	}
}

// join stores the value, after a comma where there is one already, as RFC 9110, 5.3 has it: of two owners, or generations,
// none can be meant.
func join(field *[]byte, value []byte) {
	if *field == nil {
		keepFirst(field, value)
		return
	}
	*field = slices.Concat(*field, []byte(","), value)
}

// callerTimeout is how long the caller waits for its answer, the least of what its headers say; 0 where they do not say.
func callerTimeout(grpcTimeout, expectedMS string) time.Duration {
	timeout := parseGRPCTimeout(grpcTimeout)
	if expectedMS == "" {
		return timeout
	}
	ms, err := strconv.ParseInt(expectedMS, 10, 64)
	if err != nil || ms <= 0 || ms > math.MaxInt64/int64(time.Millisecond) { // Envoy's 0 is no time-out
		return timeout
	}
	if expected := time.Duration(ms) * time.Millisecond; timeout == 0 || expected < timeout {
		return expected
	}
	return timeout
}

// parseGRPCTimeout reads a grpc-timeout: at most eight digits and a unit (gRPC over HTTP/2, Requests). One that has passed
// already is the shortest time there is; one that is malformed is none.
func parseGRPCTimeout(s string) time.Duration {
	const most = len("12345678")
	if len(s) < 2 || len(s) > most+1 {
		return 0
	}
	unit := grpcTimeoutUnit(s[len(s)-1])
	n, err := strconv.ParseUint(s[:len(s)-1], 10, 32)
	if err != nil || unit == 0 {
		return 0
	}
	if n > uint64(math.MaxInt64/unit) {
		return math.MaxInt64
	}
	return max(time.Nanosecond, time.Duration(n)*unit)
}

// grpcTimeoutUnit is the unit that a letter stands for, 0 for none.
func grpcTimeoutUnit(letter byte) time.Duration {
	switch letter {
	case 'H':
		return time.Hour
	case 'M':
		return time.Minute
	case 'S':
		return time.Second
	case 'm':
		return time.Millisecond
	case 'u':
		return time.Microsecond
	case 'n':
		return time.Nanosecond
	}
	return 0
}
