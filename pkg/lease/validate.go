package lease

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"
)

const (
	minTTL         = time.Second
	maxTTL         = 30 * time.Minute
	maxNameLength  = 128
	maxConnections = 1000 // of one pool: a script reads them all in one command
	scopeExclusive = "lease:exclusive"
)

// Validate checks what ranges of single fields cannot say. The error joins every fault; each begins with the path of its
// setting.
func (s Settings) Validate() error {
	errs := []error{s.Store.validate()}
	if s.MaxHold <= 0 {
		errs = append(errs, fmt.Errorf("leases.maxHold: %v is not positive", s.MaxHold))
	}
	if s.OnLost != "" && s.OnLost != "keep" && s.OnLost != "cut" {
		errs = append(errs, fmt.Errorf("leases.onLost: %q is neither keep nor cut", s.OnLost))
	}
	if s.OnStoreError != "" && s.OnStoreError != "deny" && s.OnStoreError != "allow" {
		errs = append(errs, fmt.Errorf("leases.onStoreError: %q is neither deny nor allow", s.OnStoreError))
	}
	for field, statuses := range map[string][]int{"statuses": s.Cooldown.Statuses, "authStatuses": s.Cooldown.AuthStatuses} {
		for i, status := range statuses {
			if status < 400 || status > 599 {
				errs = append(errs, fmt.Errorf("leases.cooldown.%s[%d]: %d is not 400 to 599", field, i, status))
			}
		}
	}
	home := map[string]string{} // pool of each connection
	for _, pool := range sortedKeys(s.Pools) {
		path := "leases.pools." + pool
		if !validName(pool) {
			errs = append(errs, fmt.Errorf("%s: a pool's name has 1 to %d characters of A-Z a-z 0-9 . _ -", path, maxNameLength))
		}
		errs = append(errs, s.Pools[pool].validate(path, pool, home))
	}
	return errors.Join(errs...)
}

func (p PoolSettings) validate(path, pool string, home map[string]string) error {
	var errs []error
	if len(p.Connections) == 0 || len(p.Connections) > maxConnections {
		errs = append(errs, fmt.Errorf("%s.connections: has %d, needs 1 to %d", path, len(p.Connections), maxConnections))
	}
	for i, c := range p.Connections {
		at := fmt.Sprintf("%s.connections[%d]", path, i)
		if !validName(c.ID) {
			errs = append(errs, fmt.Errorf("%s.id: %q is not 1 to %d characters of A-Z a-z 0-9 . _ -", at, c.ID, maxNameLength))
		}
		if other, known := home[c.ID]; known {
			// Leases of two pools know nothing of each other, so the connection would not be exclusive.
			errs = append(errs, fmt.Errorf("%s.id: %q is also in pool %s", at, c.ID, other))
		}
		home[c.ID] = pool
		for j, m := range c.Models {
			if m == "" {
				errs = append(errs, fmt.Errorf("%s.models[%d]: is empty", at, j))
			}
		}
	}
	return errors.Join(errs...)
}

func (s StoreSettings) validate() error {
	r := s.Redis
	if s.EmbeddedPath != "" && len(r.Addrs) > 0 {
		return errors.New("leases.store.embeddedPath: is not used with redis.addrs")
	}
	if len(r.Addrs) == 0 {
		if !s.Embedded {
			return errors.New("leases.store: needs embedded: true or redis.addrs")
		}
		return nil
	}
	var errs []error
	fault := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("leases.store.redis."+field+": "+format, args...))
	}
	for i, a := range r.Addrs {
		if strings.Contains(a, "://") { // it may hold a password: not shown
			fault(fmt.Sprintf("addrs[%d]", i), "is a URL; write host:port, and what the URL says besides in tls.enabled (rediss://), username, passwordFile and db")
		} else if _, port, err := net.SplitHostPort(a); err != nil || port == "" {
			fault(fmt.Sprintf("addrs[%d]", i), "%q is not host:port", a)
		}
	}
	switch r.Kind {
	case "single":
		if len(r.Addrs) > 1 {
			fault("addrs", "kind single has one address, not %d", len(r.Addrs))
		}
	case "sentinel":
		if r.MasterName == "" {
			fault("masterName", "kind sentinel needs it")
		}
	case "cluster":
		if r.DB != 0 {
			fault("db", "a Cluster has only database 0")
		}
	default:
		fault("kind", "%q is none of single, sentinel, cluster", r.Kind)
	}
	if r.CallTimeout <= 0 || r.DialTimeout <= 0 {
		fault("callTimeout", "callTimeout and dialTimeout must be positive")
	}
	if r.PoolSize < 1 {
		fault("poolSize", "must be at least 1")
	}
	if r.KeyPrefix == "" || strings.ContainsAny(r.KeyPrefix, "{} \t\r\n") || len(r.KeyPrefix) > maxNameLength {
		fault("keyPrefix", "%q must be 1 to %d characters without braces and blanks", r.KeyPrefix, maxNameLength)
	}
	if (r.TLS.CertFile == "") != (r.TLS.KeyFile == "") {
		fault("tls", "certFile and keyFile go together")
	}
	if r.Username != "" && r.PasswordFile == "" {
		fault("passwordFile", "username %q needs a password", r.Username)
	}
	return errors.Join(errs...)
}

// Validate checks a cluster's lease settings against the pools; path is where they stand, such as "clusters.chat.lease".
func (c ClusterSettings) Validate(path string, pools map[string]PoolSettings) error {
	if c.Mode == ModeOff || c.Mode == "" {
		return nil
	}
	if c.Mode != ModeManaged && c.Mode != ModeRequired {
		return fmt.Errorf("%s.mode: %q is none of off, managed, required", path, c.Mode)
	}
	if _, known := pools[c.Pool]; !known {
		return fmt.Errorf("%s.pool: there is no pool %q in leases.pools", path, c.Pool)
	}
	return nil
}

// ValidatePrincipals checks principals against the pools. A managed principal without connections is valid here: its
// requests are answered LEASE_KEY_CONFIGURATION_INVALID.
func ValidatePrincipals(principals []Principal, pools map[string]PoolSettings) error {
	known := map[string]bool{}
	for _, p := range pools {
		for _, c := range p.Connections {
			known[c.ID] = true
		}
	}
	var errs []error
	ids, hashes := map[string]bool{}, map[string]bool{}
	for i, p := range principals {
		path := fmt.Sprintf("principals[%d]", i)
		if p.ID == "" {
			errs = append(errs, fmt.Errorf("%s.id: is empty", path))
		} else if ids[p.ID] {
			errs = append(errs, fmt.Errorf("%s.id: %q is there twice", path, p.ID))
		}
		ids[p.ID] = true
		if p.KeySHA256 != "" {
			raw, err := hex.DecodeString(p.KeySHA256)
			if err != nil || len(raw) != 32 || strings.ToLower(p.KeySHA256) != p.KeySHA256 {
				errs = append(errs, fmt.Errorf("%s.keySHA256: is not 64 lower-case hex characters", path)) // may be the key itself: not shown
			} else if p.KeySHA256 == HashKey("") {
				errs = append(errs, fmt.Errorf("%s.keySHA256: is the hash of the empty key, which every request without a key has", path))
			} else if hashes[p.KeySHA256] {
				errs = append(errs, fmt.Errorf("%s.keySHA256: another principal has the same key", path))
			}
			hashes[p.KeySHA256] = true
		}
		for j, c := range p.Connections {
			if !known[c] {
				errs = append(errs, fmt.Errorf("%s.connections[%d]: no pool has a connection %q", path, j, c))
			}
		}
	}
	return errors.Join(errs...)
}

// managed says that p's requests need a lease.
func (p Principal) managed() bool { return slices.Contains(p.Scopes, scopeExclusive) }

func validName(s string) bool {
	if s == "" || len(s) > maxNameLength {
		return false
	}
	for i := range len(s) {
		if c := s[i]; !isBase64URL(c) && c != '.' {
			return false
		}
	}
	return true
}
