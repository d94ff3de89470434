package edge

import (
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// misdirected is told to who came under a name that is not this edge's, with 421: a page whose name was rebound to our address, or everybody, where
// a name of our own was not set.
const misdirected = "this edge is not served under this Host, but under localhost, loopback addresses and the names in its -allowed-hosts"

// originAllowed says whether a request may come from the page that its Origin header names: of the same host, or an allowed one. Without
// the header it does not come from a browser's page (RFC 6455, section 10.2).
func originAllowed(r *http.Request, allowed []string) bool {
	lines := r.Header["Origin"]
	if len(lines) == 0 {
		return true
	}
	origin, err := parseOrigin(lines[0])
	if err != nil || len(lines) > 1 {
		return false
	}
	if strings.EqualFold(origin.Host, r.Host) {
		return true
	}
	return slices.ContainsFunc(allowed, func(a string) bool {
		u, err := parseOrigin(a)
		return err == nil && u.Scheme == origin.Scheme && u.Host == origin.Host
	})
}

// CheckOrigin says what is wrong with an origin of Config.AllowedOrigins.
func CheckOrigin(s string) error {
	if _, err := parseOrigin(s); err != nil {
		return errors.New("want scheme://host[:port], such as https://app.example.org")
	}
	return nil
}

// parseOrigin reads scheme://host[:port], in lower case and without the scheme's own port.
func parseOrigin(s string) (*url.URL, error) {
	u, err := url.Parse(strings.ToLower(s))
	if err != nil {
		return nil, err
	}
	if u.Scheme == "" || u.Host == "" || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, errors.New("want scheme://host[:port]")
	}
	if port := u.Port(); u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		u.Host = strings.TrimSuffix(u.Host, ":"+port)
	}
	return u, nil
}
