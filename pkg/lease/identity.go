package lease

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// Names of the headers, in the lower case Envoy uses.
const (
	OwnerHeader      = "x-omniroute-lease-owner"
	GenerationHeader = "x-omniroute-lease-generation"
	ConnectionHeader = "x-omniroute-connection"
)

// maxGeneration is the largest generation: 2^53-1, the largest integer every JSON reader agrees on.
const maxGeneration = 1<<53 - 1

const (
	ownerPrefix = "vlo_"
	ownerRandom = 43 // characters after the prefix: 256 bits in base64url
)

// Owner names the holder of a lease: the SHA-256 of what the client sent, in lower-case hex. The raw value, which is a
// secret, does not leave ParseOwner.
type Owner string

// ParseOwner reads the owner header. It answers LEASE_CONTEXT_REQUIRED when the header is missing or blank and
// LEASE_CONTEXT_INVALID when it is not "vlo_" and 43 characters of A-Z, a-z, 0-9, "_" and "-".
func ParseOwner(header string) (Owner, *Refusal) {
	raw := strings.TrimSpace(header)
	if raw == "" {
		return "", refuse(ContextRequired)
	}
	random, found := strings.CutPrefix(raw, ownerPrefix)
	if !found || len(random) != ownerRandom {
		return "", refuse(ContextInvalid)
	}
	for i := range len(random) {
		if !isBase64URL(random[i]) {
			return "", refuse(ContextInvalid)
		}
	}
	sum := sha256.Sum256([]byte(raw))
	return Owner(hex.EncodeToString(sum[:])), nil
}

func isBase64URL(c byte) bool {
	return c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || c == '-'
}

// parseGeneration reads the generation header: decimal digits without a leading zero, 1 to maxGeneration. Everything
// else, the missing header included, is LEASE_CONTEXT_INVALID.
func parseGeneration(header string) (int64, *Refusal) {
	raw := strings.TrimSpace(header)
	if raw == "" || raw[0] < '1' || raw[0] > '9' {
		return 0, refuse(ContextInvalid)
	}
	n, err := strconv.ParseUint(raw, 10, 64)
	if err != nil || n > maxGeneration {
		return 0, refuse(ContextInvalid)
	}
	return int64(n), nil
}

// CheckSyntax is both checks in the order the answers are promised: owner first.
func CheckSyntax(owner, generation string) (Owner, int64, *Refusal) {
	o, refusal := ParseOwner(owner)
	if refusal != nil {
		return "", 0, refusal
	}
	g, refusal := parseGeneration(generation)
	return o, g, refusal
}

// Identity is who is calling, from a source the caller has verified.
type Identity struct {
	Principal   string   // identifier; never empty for a managed one
	Managed     bool     // its scopes include lease:exclusive
	Connections []string // what a managed one may bind to
}

// principalID is the principal as the store knows it. Identifiers can be e-mail addresses, which do not belong there.
func principalID(principal string) string {
	sum := sha256.Sum256([]byte(principal))
	return hex.EncodeToString(sum[:16])
}
