package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/headgate/headgate/pkg/lease"
)

// scopeExclusive makes a principal managed.
const scopeExclusive = "lease:exclusive"

// MetadataPath splits a metadata source into the namespace of the filter and the keys below it.
func (s Source) MetadataPath() (namespace string, keys []string) {
	parts := strings.Split(s.Metadata, "/")
	return parts[0], parts[1:]
}

// normalize brings header names into the lower case in which Envoy sends them.
func (c *Config) normalize() {
	for _, sources := range [][]Source{c.Tenant.Sources, c.PrincipalSources} {
		for i := range sources {
			sources[i].Header = strings.ToLower(sources[i].Header)
		}
	}
}

func (c *Config) checkSources(r *report) {
	for i, s := range c.Tenant.Sources {
		s.check(r, fmt.Sprintf("tenant.sources[%d]", i))
	}
	for i, s := range c.PrincipalSources {
		s.check(r, fmt.Sprintf("principalSources[%d]", i))
	}
}

func (s Source) check(r *report, path string) {
	if r.has(path) {
		return
	}
	kinds := 0
	for _, set := range []bool{s.Metadata != "", s.Header != "", s.Attribute != "", s.APIKey} {
		kinds += boolRank(set)
	}
	if kinds != 1 {
		r.add(path, "must have exactly one of metadata, header, attribute and apiKey: true, has %d", kinds)
		return
	}
	switch {
	case s.Metadata != "":
		if namespace, keys := s.MetadataPath(); namespace == "" || len(keys) == 0 || slices.Contains(keys, "") {
			r.add(join(path, "metadata"), "must be a namespace and at least one key, separated by slashes, not %q", clip(s.Metadata))
		}
	case s.Header != "" && !validHeader(s.Header):
		r.add(join(path, "header"), "%q is no header name", clip(s.Header))
	case s.Attribute != "" && strings.ContainsAny(s.Attribute, " \t\n"):
		r.add(join(path, "attribute"), "%q is no attribute name", clip(s.Attribute))
	}
}

// validHeader accepts a token of RFC 9110, and pseudo-headers.
func validHeader(name string) bool {
	name = strings.TrimPrefix(name, ":")
	for _, b := range []byte(name) {
		alnum := b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9'
		if !alnum && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(b)) {
			return false
		}
	}
	return name != ""
}

// checkPools validates connections. An id in two pools would have two owners, as exclusiveness ends at the pool.
func (c *Config) checkPools(r *report) {
	takenBy := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Leases.Pools)) {
		path := join("leases.pools", name)
		if name == "" || strings.ContainsAny(name, "{} \t\n") {
			r.add(path, "pool names must not be empty or contain braces or spaces")
		}
		for i, connection := range c.Leases.Pools[name].Connections {
			at := fmt.Sprintf("%s.connections[%d].id", path, i)
			if connection.ID == "" {
				continue // reported as required
			}
			if strings.ContainsFunc(connection.ID, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
				r.add(at, "%q does not fit into a header; use printable ASCII without spaces", clip(connection.ID))
			}
			if other, ok := takenBy[connection.ID]; ok {
				r.add(at, "%q is already listed at %s", clip(connection.ID), other)
				continue
			}
			takenBy[connection.ID] = at
		}
	}
}

func (c *Config) checkPrincipals(r *report) {
	ids, hashes := map[string]int{}, map[string]int{}
	for i, p := range c.Principals {
		path := fmt.Sprintf("principals[%d]", i)
		if first, ok := ids[p.ID]; ok && p.ID != "" {
			r.add(join(path, "id"), "%q is already the id of principals[%d]", clip(p.ID), first)
		} else {
			ids[p.ID] = i
		}
		if p.KeySHA256 != "" {
			if strings.Trim(p.KeySHA256, "0123456789abcdef") != "" || len(p.KeySHA256) != 64 {
				r.add(join(path, "keySHA256"), "must be 64 lower-case hex digits, the SHA-256 of the API key")
			} else if first, ok := hashes[p.KeySHA256]; ok {
				r.add(join(path, "keySHA256"), "is the key of principals[%d] too", first)
			} else {
				hashes[p.KeySHA256] = i
			}
		}
		c.checkManaged(r, path, p)
	}
}

func (c *Config) checkManaged(r *report, path string, p lease.Principal) {
	for i, scope := range p.Scopes {
		if scope != scopeExclusive {
			r.note("%s.scopes[%d]: %q means nothing here; the one scope that does is %s", path, i, clip(scope), scopeExclusive)
		}
	}
	managed := slices.Contains(p.Scopes, scopeExclusive)
	at := join(path, "connections")
	if managed && len(p.Connections) == 0 && !r.has(at) {
		r.add(at, "must not be empty with scope %s", scopeExclusive)
	}
	if r.has("leases.pools") {
		return
	}
	for i, id := range p.Connections {
		if !c.hasConnection(id) {
			r.add(fmt.Sprintf("%s[%d]", at, i), "no pool of leases.pools has a connection %q", clip(id))
		}
	}
}

func (c *Config) hasConnection(id string) bool {
	for _, pool := range c.Leases.Pools {
		if slices.ContainsFunc(pool.Connections, func(s lease.ConnectionSettings) bool { return s.ID == id }) {
			return true
		}
	}
	return false
}

// Key returns the secret of parent tokens, read from the file when it is there, without surrounding white space; nil
// means that each process makes its own.
func (f Fanout) Key() ([]byte, error) {
	secret := f.Secret
	if f.SecretFile != "" {
		data, err := readFile(f.SecretFile)
		if err != nil {
			return nil, fmt.Errorf("fanout.secretFile: %w", err)
		}
		secret = strings.TrimSpace(string(data))
		if len(secret) < leastSecret {
			return nil, fmt.Errorf("fanout.secretFile: %s: the secret must have at least %d bytes, has %d", f.SecretFile, leastSecret, len(secret))
		}
	}
	if secret == "" {
		return nil, nil
	}
	return []byte(secret), nil
}
