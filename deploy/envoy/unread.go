package envoyconf

import (
	"fmt"
	"slices"

	"github.com/headgate/headgate/pkg/adaptive"
	"github.com/headgate/headgate/pkg/budget"
	"github.com/headgate/headgate/pkg/config"
	"github.com/headgate/headgate/pkg/lease"
)

const (
	// canonical is a length that the sidecar reads. Whatever else stands in the header is sent with its body, to be counted.
	canonical = `string_match: {safe_regex: {regex: "0|[1-9][0-9]{0,17}"}}`
	// headersOnly ends the stream with the headers' answer.
	headersOnly = "{request_header_mode: SEND, request_body_mode: NONE, request_trailer_mode: SKIP, response_header_mode: SKIP, response_body_mode: NONE, response_trailer_mode: SKIP}"
	// withoutBody sends all but the body of the request, and holds the stream to the end of the response.
	withoutBody = "{request_header_mode: SEND, request_body_mode: NONE, request_trailer_mode: SKIP, response_header_mode: SEND, response_body_mode: %s, response_trailer_mode: SEND}"
)

// withUnread puts before each route those for the requests whose body the sidecar does not look into.
func withUnread(routes []route, c *config.Config, responseBody string) []route {
	var all []route
	for _, r := range routes {
		if unread := r.unread(c, responseBody); len(unread) > 0 {
			all = append(all, unread...)
			r.Explanation = ""
		}
		all = append(all, r)
	}
	return all
}

// unread are the variants of a route for bodies of certain lengths: with the small ones nothing would be done, and the length of
// the others is counted in their place, where the settings say so and no lease depends on what they hold. Routes to connections
// match only once the decision is taken.
func (r route) unread(c *config.Config, responseBody string) (all []route) {
	cluster := c.Cluster(r.Cluster)
	leased := cluster.Lease.Mode != lease.ModeOff && cluster.Lease.Mode != ""
	if r.Connection != "" {
		return nil
	}
	if cluster.Lanes.Mode == adaptive.Off && !leased && c.Bytes.Structure.HardMaxMessages == 0 {
		small := r
		small.Length, small.Mode = fmt.Sprintf("range_match: {start: 0, end: %d}", c.Bytes.SmallBody()+1), headersOnly
		small.Explanation = "Small bodies, with which nothing would be done: the sidecar sees the headers alone."
		all = append(all, small)
	}
	if c.Bytes.Count == budget.CountFramed && !(leased && readsModels(c.Leases.Pools[cluster.Lease.Pool])) {
		framed := r
		framed.Length, framed.Mode = canonical, fmt.Sprintf(withoutBody, responseBody)
		framed.Explanation = "Bodies whose length is declared (bytes.count: framed): Envoy holds clients to it."
		all = append(all, framed)
	}
	return all
}

// readsModels reports whether a request's model, which its body names, says which connections may serve it.
func readsModels(p lease.PoolSettings) bool {
	return slices.ContainsFunc(p.Connections, func(c lease.ConnectionSettings) bool { return !slices.Contains(c.Models, "*") })
}
