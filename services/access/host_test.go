package access_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"tailrace.dev/tailrace/services/access"
)

func TestHostAllowed(t *testing.T) {
	for host, want := range map[string]bool{
		"localhost": true, "localhost:7070": true, "LOCALHOST.": true, "app.localhost:1": true, "127.0.0.1:7070": true, "127.9.9.9": true, "[::1]:7070": true,
		"[::ffff:127.0.0.1]:1": true, "example.org": true, "Example.org:443": true,
		"": false, "evil.example": false, "localhost.evil.example": false, "10.0.0.1:7070": false, "0.0.0.0": false,
	} {
		if got := access.HostAllowed(host, []string{"example.org", ""}); got != want {
			t.Errorf("%q: got %v, want %v", host, got, want)
		}
	}
}

func TestRefusePages(t *testing.T) {
	h := access.RefusePages(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
	for _, c := range []struct {
		host, origin string
		want         int
	}{
		{"rebound.example:7070", "http://rebound.example:7070", http.StatusMisdirectedRequest},
		{"localhost:7070", "http://localhost:7070", http.StatusNoContent},
		{"service.internal:7070", "", http.StatusNoContent},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.Host = c.host
		if c.origin != "" {
			r.Header.Set("Origin", c.origin)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != c.want {
			t.Errorf("%+v: got %d", c, w.Code)
		}
	}
}
