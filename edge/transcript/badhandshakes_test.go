package transcript_test

import (
	"bufio"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	goodKey = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n"
	version = "Sec-WebSocket-Version: 13\r\n"
	host    = "Host: localhost\r\n"
)

// badHandshakes are request heads. What is refused is refused with a status, or closed where nothing was said that could be answered.
func badHandshakes() []misdeed {
	var deeds []misdeed
	raw := func(name, want, text string) {
		method, _, _ := strings.Cut(text, " ")
		deeds = append(deeds, misdeed{"handshake: " + name, func(w *world) (string, error) { return exchange(w.web, method, text, false) }, want})
	}
	get := func(name, want, target, headers string) {
		raw(name, want, "GET "+target+" HTTP/1.1\r\n"+headers+"\r\n")
	}
	all := host + upgrade + version + goodKey
	get("a good one", "101 ", "/ws", all)
	get("no Upgrade", "400 ", "/ws", host+"Connection: Upgrade\r\n"+version+goodKey)
	get("no Connection", "400 ", "/ws", host+"Upgrade: websocket\r\n"+version+goodKey)
	get("Upgrade to something else", "400 ", "/ws", host+"Upgrade: h2c\r\nConnection: Upgrade\r\n"+version+goodKey)
	get("no version", "426 ", "/ws", host+upgrade+goodKey)
	get("version 12", "Sec-Websocket-Version: 13", "/ws", host+upgrade+"Sec-WebSocket-Version: 12\r\n"+goodKey)
	get("two versions", "426 ", "/ws", all+"Sec-WebSocket-Version: 8\r\n")
	get("versions in a list", "426 ", "/ws", host+upgrade+goodKey+"Sec-WebSocket-Version: 13, 8\r\n")
	get("no key", "400 ", "/ws", host+upgrade+version)
	get("a short key", "400 ", "/ws", host+upgrade+version+"Sec-WebSocket-Key: YQ==\r\n")
	get("a long key", "400 ", "/ws", host+upgrade+version+"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZSE=\r\n")
	get("a key that is not base64", "400 ", "/ws", host+upgrade+version+"Sec-WebSocket-Key: !!!!!!!!!!!!!!!!!!!!!!!!\r\n")
	get("two keys", "400 ", "/ws", all+goodKey)
	get("no Host", "400 ", "/ws", upgrade+version+goodKey)
	get("an empty Host", "400 ", "/ws", "Host:\r\n"+upgrade+version+goodKey)
	get("two Hosts", "400 ", "/ws", all+"Host: localhost\r\n")
	get("another Host", "421 ", "/ws", "Host: evil.example\r\n"+upgrade+version+goodKey)
	get("a Host that only begins with localhost", "421 ", "/ws", "Host: localhost.evil.example\r\n"+upgrade+version+goodKey)
	get("a Host with a user", "4", "/ws", "Host: localhost@evil.example\r\n"+upgrade+version+goodKey)
	get("another Origin", "403 ", "/ws", all+"Origin: http://evil.example\r\n")
	get("two Origins", "403 ", "/ws", all+"Origin: http://localhost\r\nOrigin: http://localhost\r\n")
	get("Origin null", "403 ", "/ws", all+"Origin: null\r\n")
	get("an Origin with a path", "403 ", "/ws", all+"Origin: http://localhost/path\r\n")
	get("an unknown subprotocol", "400 ", "/ws", all+"Sec-WebSocket-Protocol: mqtt\r\n")
	get("an empty subprotocol", "400 ", "/ws", all+"Sec-WebSocket-Protocol:\r\n")
	get("a thousand subprotocols", "400 ", "/ws", all+"Sec-WebSocket-Protocol: "+strings.Repeat("x, ", 1000)+"x\r\n")
	get("an extension", "101 ", "/ws", all+"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits\r\n")
	get("a body", "400 ", "/ws", all+"Content-Length: 5\r\n")
	get("a chunked body", "400 ", "/ws", all+"Transfer-Encoding: chunked\r\n")
	get("a length and chunks", "400 ", "/ws", all+"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n")
	get("two lengths", "400 ", "/ws", all+"Content-Length: 5\r\nContent-Length: 6\r\n")
	get("a negative length", "400 ", "/ws", all+"Content-Length: -1\r\n")
	get("an unknown transfer encoding", "501 ", "/ws", all+"Transfer-Encoding: xchunked\r\n")
	get("a header without a colon", "400 ", "/ws", all+"Nonsense\r\n")
	get("a space before the colon", "400 ", "/ws", all+"X : y\r\n")
	get("a header name with a NUL", "400 ", "/ws", all+"X\x00Y: z\r\n")
	get("a header value with a NUL", "400 ", "/ws", all+"X: a\x00b\r\n")
	get("a head of 20 KiB", "431 ", "/ws", all+"X: "+strings.Repeat("x", 20<<10)+"\r\n")
	get("a head of thousands of lines", "431 ", "/ws", all+strings.Repeat("X: y\r\n", 5000))
	get("a target of 20 KiB", "431 ", "/ws?"+strings.Repeat("x", 20<<10), all)
	raw("POST", "Allow: GET", "POST /ws HTTP/1.1\r\n"+all+"Content-Length: 0\r\n\r\n")
	raw("PUT", "405 ", "PUT /ws HTTP/1.1\r\n"+all+"\r\n")
	raw("HEAD", "405 ", "HEAD /ws HTTP/1.1\r\n"+all+"\r\n")
	raw("OPTIONS", "405 ", "OPTIONS /ws HTTP/1.1\r\n"+all+"\r\n")
	raw("a method of its own", "405 ", "BREW /ws HTTP/1.1\r\n"+all+"\r\n")
	raw("a method that is no token", "400 ", "G{}T /ws HTTP/1.1\r\n"+all+"\r\n")
	raw("HTTP/1.0", "505 ", "GET /ws HTTP/1.0\r\n"+all+"\r\n")
	raw("HTTP/0.9", "400 ", "GET /ws\r\n\r\n")
	raw("HTTP/3.1", "505 ", "GET /ws HTTP/3.1\r\n"+all+"\r\n")
	raw("HTTP/2 with prior knowledge", "", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	raw("a target in absolute form, of another host", "421 ", "GET http://evil.example/ws HTTP/1.1\r\n"+all+"\r\n")
	raw("a target in absolute form, of this host", "101 ", "GET http://localhost/ws HTTP/1.1\r\n"+all+"\r\n")
	raw("CONNECT", "4", "CONNECT localhost:80 HTTP/1.1\r\n"+host+"\r\n")
	raw("a target without a slash", "400 ", "GET ws HTTP/1.1\r\n"+all+"\r\n")
	raw("a target with a bad escape", "400 ", "GET /ws/%zz HTTP/1.1\r\n"+all+"\r\n")
	raw("a target with a space", "400 ", "GET /ws/a b HTTP/1.1\r\n"+all+"\r\n")
	raw("an asterisk", "200 ", "OPTIONS * HTTP/1.1\r\n"+all+"\r\n")
	raw("TLS", "400 ", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"+strings.Repeat("x", 100)+"\r\n\r\n")
	cut := func(name, want, text string) {
		deeds = append(deeds, misdeed{"handshake: " + name, func(w *world) (string, error) { return exchange(w.web, "GET", text, true) }, want})
	}
	cut("nothing", "closed", "")
	cut("half a head", "closed", "GET /ws HTTP/1.1\r\nHost: loc")
	cut("a smuggled request behind the head", "101 ", "GET /ws HTTP/1.1\r\n"+all+"\r\nGET /api/topics HTTP/1.1\r\n"+host+"\r\n")
	deeds = append(deeds,
		misdeed{"handshake: one byte after the other", func(w *world) (string, error) {
			return drip(w.web, "GET", "GET /ws HTTP/1.1\r\n"+all+"X: "+strings.Repeat("x", 400)+"\r\n\r\n", 10*time.Millisecond)
		}, "closed"},
		misdeed{"handshake: frames right behind the head", func(w *world) (string, error) {
			conn, err := dialTCP(w.web)
			if err != nil {
				return "", err
			}
			defer conn.Close()
			head := "GET /ws HTTP/1.1\r\n" + all + "\r\n"
			frames := append(masked(fin|opText, []byte(`{"op":"ping","id":"x"}`)), lastPing()...)
			if _, err := conn.Write(append([]byte(head), frames...)); err != nil {
				return "", err
			}
			s := &socket{conn: conn, br: bufio.NewReader(conn), opcode: opText}
			resp, err := http.ReadResponse(s.br, nil)
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			return listen(s, "pong lives")
		}, "pong lives"})
	return append(deeds, badURLs()...)
}

// badURLs are upgraded, since browsers hide the status of a refusal, and told then.
func badURLs() []misdeed {
	var deeds []misdeed
	add := func(name, want, path string) {
		deeds = append(deeds, misdeed{"url: " + name, func(w *world) (string, error) {
			return converse(w, path, protocolJSON, want, lastPing())
		}, want})
	}
	add("a topic that climbs", "subscribe: UNKNOWN_TOPIC: unknown topic goodbye close 4504", "/ws/%2e%2e%2f%2e%2e%2fetc%2fpasswd")
	add("a topic that climbs, not escaped", "close 4504", "/ws/../../etc/passwd")
	add("a topic with a slash", "close 4504", "/ws/orders/0")
	add("a topic with NUL", "close 4504", "/ws/a%00b")
	add("a topic that is not UTF-8", "subscribe: INVALID_ARGUMENT: topic", "/ws/%ff")
	add("a topic of 10 KiB", "close 4504", "/ws/"+strings.Repeat("x", 10<<10))
	for name, query := range map[string]string{
		"unknown parameter": "strat=earliest", "a parameter without a name": "=x", "start twice": "start=latest&start=latest", "two starts": "start=latest&last=1",
		"unknown start": "start=newest", "last is 0": "last=0", "last is -1": "last=-1", "last is 1e999": "last=1e999", "last is empty": "last=", "last is huge": "last=99999999999999999999",
		"time is a number": "time=1764518400000", "positions is empty": "positions=", "positions without an offset": "positions=0", "position twice": "positions=0:1,0:2",
		"position is negative": "positions=0:-1", "position of -1": "positions=-1:0", "position is 2^53": "positions=0:9007199254740992", "position with a plus": "positions=0:%2B1",
		"position with a bad epoch": "positions=0:1:x", "partition is x": "partition=x", "partition is 01": "partition=01", "partition is -1": "partition=-1", "partition is 2^31": "partition=2147483648",
		"keyBase64 is bad": "keyBase64=%25", "until is unknown": "until=never", "as is unknown": "as=xml", "slow is unknown": "slow=fast", "onOutOfRange is unknown": "onOutOfRange=x",
		"1,001 keys": "key=a" + strings.Repeat("&key=a", 1000), "a parameter with NUL": "a%00b=1", "a parameter that is not UTF-8": "%ff=1",
	} {
		add(name, "subscribe: INVALID_ARGUMENT", "/ws/orders?"+query)
	}
	add("a partition that is not there", "subscribe: UNKNOWN_PARTITION", "/ws/orders?partition=5")
	return deeds
}

// badRequests are for what is no socket.
func badRequests() []misdeed {
	var deeds []misdeed
	add := func(name, want, request string, body ...string) {
		method, _, _ := strings.Cut(request, " ")
		deeds = append(deeds, misdeed{"http: " + name, func(w *world) (string, error) {
			return exchange(w.web, method, request+" HTTP/1.1\r\n"+host+strings.Join(body, ""), false)
		}, want})
	}
	add("the list of topics", `{"name":"orders","partitions":2}`, "GET /api/topics", "\r\n")
	add("the list of topics by POST", "405 ", "POST /api/topics", "Content-Length: 2\r\n\r\n{}")
	add("the list of topics by DELETE", "405 ", "DELETE /api/topics", "\r\n")
	add("what is not there", "404 ", "GET /api/nothing", "\r\n")
	add("a path that climbs", "404 ", "GET /%2e%2e/%2e%2e/etc/passwd", "\r\n")
	add("a path that climbs, escaped", "404 ", "GET /..%2f..%2f..%2fetc%2fpasswd", "\r\n")
	add("a path that climbs, with backslashes", "404 ", `GET /..\..\etc\passwd`, "\r\n")
	add("a path with NUL", "404 ", "GET /%00", "\r\n")
	add("a request of a rebound name", "421 ", "GET http://evil.example/api/topics", "\r\n")
	add("a chunk of a wrong size", "4", "POST /api/topics", "Transfer-Encoding: chunked\r\n\r\nzz\r\n")
	add("chunks that end nowhere", "405 ", "POST /api/topics", "Transfer-Encoding: chunked\r\n\r\nffffffff\r\nx")
	add("a length of 2^63", "400 ", "POST /api/topics", "Content-Length: 9223372036854775808\r\n\r\n")
	add("a thousand requests in one connection", "200 ", "GET /api/topics", "\r\n"+strings.Repeat("GET /api/topics HTTP/1.1\r\n"+host+"\r\n", 999))
	add("an upgrade behind a request, smuggled", "405 ", "POST /api/topics", fmt.Sprintf("Content-Length: 4\r\n\r\nGET /ws HTTP/1.1\r\n%s\r\n", host))
	deeds = append(deeds, misdeed{"http: one byte after the other", func(w *world) (string, error) {
		return drip(w.web, "GET", "GET /api/topics HTTP/1.1\r\n"+host+"X: "+strings.Repeat("x", 400)+"\r\n\r\n", 10*time.Millisecond)
	}, "closed"})
	return deeds
}
