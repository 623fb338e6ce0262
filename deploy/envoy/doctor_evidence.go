package envoyconf

import (
	"maps"
	"slices"
	"strings"
)

// evidence examines whether what the sources read arrives. before are the filters that stand before the processor.
func (e *examination) evidence(where string, before []object, filter object) {
	attributes, namespaces := evidence(e.config)
	for _, a := range attributes {
		if !slices.Contains(filter.texts("request_attributes"), a) {
			e.missingAttribute(where, a)
		}
	}
	if !slices.Contains(filter.texts("response_attributes"), "response.code_details") {
		e.note(where, "response_attributes lacks response.code_details: what Envoy itself answers is taken for the upstream's answer")
	}
	forwarded := filter.get("metadata_options", "forwarding_namespaces").texts("untyped")
	for _, n := range namespaces {
		if !slices.Contains(forwarded, n) {
			e.fault(where, "metadata_options.forwarding_namespaces.untyped lacks %s, which tenant.sources or principalSources read: nobody is told apart", n)
		}
	}
	if !slices.Contains(filter.get("metadata_options", "receiving_namespaces").texts("untyped"), "headgate") {
		e.note(where, "metadata_options.receiving_namespaces.untyped lacks headgate: access logs and routes to leased connections do not see the decision")
	}
	for _, s := range e.config.Sources() {
		e.claim(where, before, s.Metadata)
	}
}

// missingAttribute: of the attributes that name the route cluster one is enough, but the first with a value wins.
func (e *examination) missingAttribute(where, name string) {
	if i := slices.Index(e.config.RouteCluster.Attributes, name); i < 0 {
		e.fault(where, "request_attributes lacks %s, which a source reads", name)
	} else if i == 0 {
		e.note(where, "request_attributes lacks %s: settings under clusters go by the next of routeCluster.attributes", name)
	}
}

const jwtFilter = "envoy.filters.http.jwt_authn"

// claim examines whether the claims of a JWT that a source reads are put where it looks.
func (e *examination) claim(where string, before []object, source string) {
	path := strings.Split(source, "/")
	if path[0] != jwtFilter || len(path) < 2 {
		return
	}
	var keys []string
	found := false
	for _, f := range before {
		c := f.get("typed_config")
		if !c.is("JwtAuthentication") {
			continue
		}
		found = true
		for _, name := range slices.Sorted(maps.Keys(c.get("providers"))) {
			p := c.get("providers", name)
			if key := p.text("payload_in_metadata", ""); key != "" {
				keys = append(keys, key)
			}
		}
	}
	switch {
	case !found:
		e.fault(where, "%s is read, but no jwt_authn filter stands before the processor: the claim never arrives", source)
	case !slices.Contains(keys, path[1]):
		e.fault(where, "%s is read, but no provider of jwt_authn has payload_in_metadata: %s (they have %q): the claim never arrives", source, path[1], keys)
	}
}
