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
	for _, sources := range c.sourceLists() {
		for i := range sources {
			sources[i].Header = strings.ToLower(sources[i].Header)
		}
	}
}

// sourceLists are the lists of sources, by their paths.
func (c *Config) sourceLists() map[string][]Source {
	return map[string][]Source{
		"tenant.sources": c.Tenant.Sources, "principalSources": c.PrincipalSources, "priority.sources": c.Priority.Sources,
	}
}

// Sources are all places that something about the caller comes from.
func (c *Config) Sources() []Source {
	return slices.Concat(c.Tenant.Sources, c.PrincipalSources, c.Priority.Sources)
}

func (c *Config) checkSources(r *report) {
	lists := c.sourceLists()
	for _, path := range slices.Sorted(maps.Keys(lists)) {
		for i, s := range lists[path] {
			s.check(r, fmt.Sprintf("%s[%d]", path, i))
		}
	}
}

func (s Source) check(r *report, path string) {
	if r.touched(path) {
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

// checkPrincipals lets the lease package judge, and says what it accepts but hardly anybody wants.
func (c *Config) checkPrincipals(r *report) {
	for _, fault := range split(lease.ValidatePrincipals(c.Principals, c.Leases.Pools)) {
		if key, _, _ := strings.Cut(fault.Error(), ": "); strings.Contains(key, ".connections[") && r.touched("leases.pools") {
			continue // which connections there are is not known
		}
		r.addAll("principals", fault)
	}
	for i, p := range c.Principals {
		for j, scope := range p.Scopes {
			if scope != scopeExclusive {
				r.note("principals[%d].scopes[%d]: %q means nothing here; the one scope that does is %s", i, j, clip(scope), scopeExclusive)
			}
		}
		if slices.Contains(p.Scopes, scopeExclusive) && len(p.Connections) == 0 {
			r.note("principals[%d] has scope %s and no connections: every request of it is refused", i, scopeExclusive)
		}
	}
}

// Key returns the secret of parent tokens, read from the file when it is there, without surrounding white space; nil
// means that each process makes its own.
func (f Fanout) Key() ([]byte, error) {
	secret := f.Secret
	if f.SecretFile != "" {
		var err error
		if secret, err = readSecret("fanout.secretFile", f.SecretFile); err != nil {
			return nil, err
		}
	}
	if secret == "" {
		return nil, nil
	}
	return []byte(secret), nil
}

// AdminToken reads the token that changes over the admin port need, without surrounding white space; it is empty where no
// file is named.
func (l Listen) AdminToken() (string, error) {
	if l.AdminTokenFile == "" {
		return "", nil
	}
	return readSecret("listen.adminTokenFile", l.AdminTokenFile)
}

// readSecret reads a secret of at least leastSecret bytes from a file that a setting names.
func readSecret(setting, path string) (string, error) {
	data, err := readFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", setting, err)
	}
	secret := strings.TrimSpace(string(data))
	if len(secret) < leastSecret {
		return "", fmt.Errorf("%s: %s: the secret must have at least %d bytes, has %d", setting, path, leastSecret, len(secret))
	}
	return secret, nil
}
