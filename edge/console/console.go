// Package console is the page that the edge serves at "/": a live tail of a topic and a form to publish, for people who try Tailrace or
// look after it. It is a client of the public protocol like any other and has no door of its own into the edge; besides the WebSocket
// it asks only GET /api/topics, for the list of topics and for the partitions of one, and GET /api/groups, for the groups that read it.
//
// The page is one HTML file, one style sheet and a few JavaScript modules, embedded, without a build step and without anything from another host. What
// records hold is untrusted: the script puts it into the page as text only, and the Content-Security-Policy holds it to that. Each of its files is about one thing: link (the connection), tail (the subscription),
// rows, partitions, groups, rate, publish, inspect, and what they need; console.js wires them.
package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"net/http"
	"path"
	"time"
)

//go:embed assets
var assets embed.FS

// policy lets the page load its own files and speak to its own host. Trusted Types make the browser refuse every string that would
// become markup.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Handler serves the page at / and its files below /console/, and answers 404 to all else and 405 to any method but GET and HEAD. It may be called concurrently. Responses carry an ETag and must be revalidated, so that a new edge brings its new page.
func Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", file("index.html", "text/html; charset=utf-8"))
	mux.Handle("GET /console/console.css", file("console.css", "text/css; charset=utf-8"))
	scripts, err := fs.Glob(assets, "assets/*.js")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	for _, script := range scripts {
		name := path.Base(script)
		mux.Handle("GET /console/"+name, file(name, "text/javascript; charset=utf-8"))
	}
	return mux
}

func file(name, contentType string) http.Handler {
	body, err := assets.ReadFile(path.Join("assets", name))
	if err != nil {
		panic(err) // an embedded file is missing: the build is broken
	}
	sum := sha256.Sum256(body)
	tag := `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", contentType)
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		h.Set("Etag", tag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(body))
	})
}
