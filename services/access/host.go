package access

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// HostAllowed says whether a Host header names this machine, localhost or a loopback address, or one of the allowed names. A page whose name
// was rebound to our address (DNS rebinding) keeps its own Host, and is told apart by it.
func HostAllowed(host string, allowed []string) bool {
	name := hostname(host)
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	if ip, err := netip.ParseAddr(name); err == nil && ip.Unmap().IsLoopback() {
		return true
	}
	return slices.ContainsFunc(allowed, func(a string) bool { return name != "" && name == hostname(a) })
}

// RefusePages answers 421 to requests of a browser's page, which are those with an Origin header, unless they name this machine as Host. Browsers
// belong to the edge; here a page can only be one whose name was rebound to a loopback address. Other callers don't send the header.
func RefusePages(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Origin") != "" && !HostAllowed(r.Host, nil) {
			http.Error(w, "pages of this host are not served here: browsers connect through the edge", http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// hostname is the name in host[:port], in lower case, without brackets and the root's dot.
func hostname(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return strings.ToLower(strings.TrimSuffix(host, "."))
}
