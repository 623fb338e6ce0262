package admin

import (
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// guard refuses what a web page elsewhere could send through an operator's browser: requests under a host name that is not
// one of ours (DNS rebinding turns a page's own name into our address), and fetches that come from another site.
func guard(next http.Handler, hosts func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := hostOf(r.Host)
		switch {
		case !isOurs(host) && !slices.ContainsFunc(hosts(), func(known string) bool { return strings.EqualFold(known, host) }):
			http.Error(w, "this host name is not served here; listen.adminHosts names those that are", http.StatusForbidden)
		case isCrossSite(r):
			http.Error(w, "requests from other sites are not served", http.StatusForbidden)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// hostOf is a Host header without its port.
func hostOf(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		return host
	}
	return strings.Trim(header, "[]")
}

// isOurs reports a host that no page elsewhere can have: an address, a loopback name, or none at all.
func isOurs(host string) bool {
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	return name == "" || name == "localhost" || strings.HasSuffix(name, ".localhost") || net.ParseIP(strings.Split(name, "%")[0]) != nil
}

// isCrossSite reports what a browser says came from a page of another site (Fetch Metadata; Origin in older ones). A link
// that somebody follows to the status page is none; any other address could be opened in a frame or window again and again,
// and a profile costs processor time.
func isCrossSite(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	if site == "cross-site" || site == "same-site" {
		link := r.Method == http.MethodGet && r.URL.Path == "/" && r.Header.Get("Sec-Fetch-Mode") == "navigate" &&
			r.Header.Get("Sec-Fetch-Dest") == "document"
		return !link
	}
	origin := r.Header.Get("Origin")
	if site != "" || origin == "" {
		return false
	}
	from, err := url.Parse(origin)
	return err != nil || !strings.EqualFold(from.Host, r.Host)
}
