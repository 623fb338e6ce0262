package lease

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
)

// principals finds callers by key or identifier.
//
// A key is looked up by an HMAC of its SHA-256 under a random key of this process, and the SHA-256 itself is then compared
// in constant time. How long a look-up takes depends on the HMAC only, which nobody outside can compute, so it tells
// nothing about configured keys, and a thousand principals cost no more than one.
type principals struct {
	secret [32]byte
	byKey  map[[32]byte]knownPrincipal
	byID   map[string]knownPrincipal
}

type knownPrincipal struct {
	keySHA256 []byte
	identity  Identity
}

func newPrincipals(list []Principal) (*principals, error) {
	p := &principals{byKey: map[[32]byte]knownPrincipal{}, byID: map[string]knownPrincipal{}}
	if _, err := rand.Read(p.secret[:]); err != nil {
		return nil, fmt.Errorf("principals: %w", err)
	}
	for i, one := range list {
		known := knownPrincipal{identity: Identity{Principal: one.ID, Managed: one.managed(), Connections: one.Connections}}
		if one.KeySHA256 != "" {
			sum, err := hex.DecodeString(one.KeySHA256)
			if err != nil {
				return nil, fmt.Errorf("principals[%d].keySHA256: is not hex", i)
			}
			known.keySHA256 = sum
			p.byKey[p.blind(sum)] = known
		}
		p.byID[one.ID] = known
	}
	return p, nil
}

func (p *principals) blind(sum []byte) (index [32]byte) {
	mac := hmac.New(sha256.New, p.secret[:])
	mac.Write(sum)
	mac.Sum(index[:0])
	return index
}

// key finds the principal of a key. No key is nobody's.
func (p *principals) key(key string) (Identity, bool) {
	if strings.TrimSpace(key) == "" {
		return Identity{}, false
	}
	sum := sha256.Sum256([]byte(key))
	known := p.byKey[p.blind(sum[:])]
	if subtle.ConstantTimeCompare(known.keySHA256, sum[:]) != 1 {
		return Identity{}, false
	}
	return known.identity, true
}

// IdentifyKey returns the principal of an API key.
func (s *Service) IdentifyKey(key string) (Identity, bool) { return s.view().principals.key(key) }

// Identify returns the principal of an identifier from a verified source: metadata or a header that Envoy itself set. One
// that is not configured is an unmanaged principal of that name.
func (s *Service) Identify(id string) Identity {
	if known, ok := s.view().principals.byID[id]; ok {
		return known.identity
	}
	return Identity{Principal: id}
}

// IdentifyRequest is the identity function of an API that clients reach without Envoy: the API key in "Authorization:
// Bearer" or "X-API-Key".
func (s *Service) IdentifyRequest(r *http.Request) (Identity, *Refusal) {
	key := APIKey(r.Header.Get("Authorization"), r.Header.Get("X-Api-Key"))
	if key == "" {
		return Identity{}, refuse(AuthenticationRequired)
	}
	identity, ok := s.IdentifyKey(key)
	if !ok {
		return Identity{}, refuse(APIKeyInvalid)
	}
	return identity, nil
}

// APIKey takes the key out of the values of the headers authorization ("Bearer key", any case) and x-api-key; the first
// wins. Empty when there is none.
func APIKey(authorization, apiKey string) string {
	scheme, key, found := strings.Cut(strings.TrimSpace(authorization), " ")
	if found && strings.EqualFold(scheme, "Bearer") {
		if key = strings.TrimSpace(key); key != "" {
			return key
		}
	}
	return strings.TrimSpace(apiKey)
}

// HashKey returns what Principal.KeySHA256 holds for an API key.
func HashKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}
