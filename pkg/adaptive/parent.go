package adaptive

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Parent is what a parent token vouches for: a request of this lane and cluster holds capacity until it expires, and its
// children are Depth levels below one that came from outside.
type Parent struct {
	Lane    string
	Cluster string
	Depth   int // 1 for a token on a request that came without one
	Expires time.Time
}

// ParentTokens issues and verifies parent tokens: base64url, without padding, of
//
//	version (1 byte) | depth (1) | expiry, Unix milliseconds (8) | length of lane (1) | lane | cluster | HMAC-SHA256 (32)
//
// The code covers everything before it. Tokens prove who asked for them, they do not hide what is in them: lane names are
// opaque already.
type ParentTokens struct {
	secret   []byte
	ttl      time.Duration
	maxDepth int
}

const (
	tokenVersion = 1
	tokenHeader  = 1 + 1 + 8 + 1
	maxTokenName = 255  // lane and cluster, each
	maxToken     = 1024 // text; nothing longer is looked at
)

// Why a token does not verify.
var (
	errTokenMalformed = errors.New("parent token is malformed")
	errTokenForged    = errors.New("parent token was not issued under this secret")
	errTokenExpired   = errors.New("parent token has expired")
	errTokenDepth     = errors.New("parent token is nested too deeply")
)

// NewParentTokens makes an issuer. A nil secret is a random one, good for this process; replicas share a configured one.
func NewParentTokens(secret []byte, ttl time.Duration, maxDepth int) *ParentTokens {
	if len(secret) == 0 {
		secret = make([]byte, sha256.Size)
		rand.Read(secret) // never fails
	}
	return &ParentTokens{secret: append([]byte(nil), secret...), ttl: ttl, maxDepth: min(maxDepth, 255)}
}

// Issue signs a token for p; without an expiry it is valid for the issuer's time to live. It returns "" for what no token
// can say: names over 255 bytes, or a depth outside 1..maxDepth.
func (t *ParentTokens) Issue(p Parent) string {
	if len(p.Lane) > maxTokenName || len(p.Cluster) > maxTokenName || p.Depth < 1 || p.Depth > t.maxDepth {
		return ""
	}
	if p.Expires.IsZero() {
		p.Expires = time.Now().Add(t.ttl)
	}
	b := make([]byte, 0, tokenHeader+len(p.Lane)+len(p.Cluster)+sha256.Size)
	b = append(b, tokenVersion, byte(p.Depth))
	b = binary.BigEndian.AppendUint64(b, uint64(p.Expires.UnixMilli()))
	b = append(b, byte(len(p.Lane)))
	b = append(b, p.Lane...)
	b = append(b, p.Cluster...)
	b = append(b, t.sign(b)...)
	return base64.RawURLEncoding.EncodeToString(b)
}

// Verify checks a token in time that does not depend on how much of its code is right. Errors wrap one of the ErrToken
// values and never contain the token.
func (t *ParentTokens) Verify(token string) (Parent, error) {
	if len(token) > maxToken {
		return Parent{}, fmt.Errorf("%w: longer than %d bytes", errTokenMalformed, maxToken)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(token) != base64.RawURLEncoding.EncodedLen(len(b)) { // the decoder skips line breaks
		return Parent{}, fmt.Errorf("%w: not base64url", errTokenMalformed)
	}
	if len(b) < tokenHeader+sha256.Size {
		return Parent{}, fmt.Errorf("%w: too short", errTokenMalformed)
	}
	signed, code := b[:len(b)-sha256.Size], b[len(b)-sha256.Size:]
	if !hmac.Equal(code, t.sign(signed)) {
		return Parent{}, errTokenForged
	}
	lane := int(signed[tokenHeader-1])
	if signed[0] != tokenVersion || len(signed) < tokenHeader+lane {
		return Parent{}, fmt.Errorf("%w: unknown layout", errTokenMalformed)
	}
	p := Parent{
		Lane:    string(signed[tokenHeader : tokenHeader+lane]),
		Cluster: string(signed[tokenHeader+lane:]),
		Depth:   int(signed[1]),
		Expires: time.UnixMilli(int64(binary.BigEndian.Uint64(signed[2:]))),
	}
	switch {
	case !time.Now().Before(p.Expires):
		return Parent{}, errTokenExpired
	case p.Depth < 1 || p.Depth > t.maxDepth:
		return Parent{}, fmt.Errorf("%w: %d, at most %d", errTokenDepth, p.Depth, t.maxDepth)
	}
	return p, nil
}

func (t *ParentTokens) sign(b []byte) []byte {
	mac := hmac.New(sha256.New, t.secret)
	mac.Write(b)
	return mac.Sum(nil)
}
