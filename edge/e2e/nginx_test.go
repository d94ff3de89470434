package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// startNginx runs nginx with a location, all else as it comes, and returns its address.
func startNginx(t *testing.T, name, outside, location string) (*process, string) {
	t.Helper()
	path, err := exec.LookPath("nginx")
	if err != nil {
		path, err = exec.LookPath("/usr/sbin/nginx") // Debian's, which is not in everybody's PATH
	}
	if err != nil {
		t.Fatal("no nginx: install it (Debian: apt-get install nginx)")
	}
	dir, port := t.TempDir(), freePort(t)
	var temps strings.Builder
	for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		fmt.Fprintf(&temps, "%s_temp_path %s;\n", kind, filepath.Join(dir, kind))
	}
	conf := fmt.Sprintf("daemon off;\nmaster_process off;\nerror_log stderr warn;\npid %s;\nevents {}\nhttp {\naccess_log off;\n%s%s\nserver {\nlisten 127.0.0.1:%d;\n%s\n}\n}\n",
		filepath.Join(dir, "pid"), temps.String(), outside, port, location)
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	p := newProcess(t, name, path, "-p", dir, "-e", "stderr", "-c", file)
	address := fmt.Sprintf("127.0.0.1:%d", port)
	p.start()
	awaitNginx(t, p, address)
	return p, address
}

func awaitNginx(t *testing.T, p *process, address string) {
	t.Helper()
	await(t, 30*time.Second, "nginx answers", func() bool {
		if !p.running() {
			t.Fatal("nginx exited while starting")
		}
		conn, err := net.Dial("tcp", address)
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

var nginxBlock = regexp.MustCompile("(?ms)^```nginx\n(map .*?\n)(location .*?)^```$")

// TestNginx is a client behind nginx: event streams through a bare proxy_pass, which buffers unless it is told not to, and all transports
// through the configuration that edge/README.md shows. Connections are cut on both sides of nginx, and nginx is killed; what each reader got must be the
// log.
func TestNginx(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := nginxBlock.FindStringSubmatch(string(text))
	if shown == nil {
		t.Fatal("edge/README.md shows no nginx block with a map and a location")
	}
	kafka := broker(t)
	j := newJudge(t, kafka)
	const partitions = 2
	topic := j.topic(partitions)
	p := startPair(t, pairOptions{kafka: kafka})
	behind := newRelay(t, p.ws)
	bare, bareAddress := startNginx(t, "nginx-bare", "", "location / { proxy_pass http://"+behind.address+"; }")
	_, address := startNginx(t, "nginx", shown[1], strings.ReplaceAll(shown[2], "127.0.0.1:8080", behind.address))
	front := newRelay(t, address)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()

	// One record, with nothing behind it that would push it out of a buffer.
	s, err := dialEvents(ctx, bareAddress, "/sse/"+topic+"?start=earliest", "", true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if proto := s.resp.Header.Get("Server"); !strings.HasPrefix(proto, "nginx") {
		t.Fatalf("answered by %q", proto)
	}
	_ = s.conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	alone := newReader(topic, false)
	if err := s.run(alone, alone.isCaughtUp); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+bareAddress+"/publish/"+topic+"?key=k", strings.NewReader("alone"))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("publish through nginx: %v, %v", resp, err)
	}
	resp.Body.Close()
	if err := s.run(alone, func() bool { return alone.count() == 1 }); err != nil {
		t.Fatalf("awaiting the record: %v", err)
	}
	s.abort(false)

	l := j.startLoad(topic, partitions, 200, 100)
	want := size(20, 100)
	var overEvents, overSocket atomic.Int64
	var ends atomic.Pointer[map[int32]int64]
	var readers []*reader
	var wg sync.WaitGroup
	start := func(run func(r *reader, done func() bool) error) {
		r := newReader(topic, false)
		readers = append(readers, r)
		done := func() bool {
			e := ends.Load()
			return e != nil && r.reached(*e)
		}
		wg.Go(func() {
			for !done() && ctx.Err() == nil {
				if err := run(r, done); err != nil {
					t.Error(err)
					return
				}
				pause(ctx, 10*time.Millisecond)
			}
		})
	}
	for _, at := range []string{bareAddress, front.address} {
		for range 2 {
			id := ""
			start(func(r *reader, done func() bool) (err error) {
				id, err = eventsLife(ctx, at, "/sse/"+topic+"?start=earliest", id, r, done, want, &overEvents)
				return nginxAway(err)
			})
		}
	}
	for _, protocol := range []string{"tailrace.v1.json", "tailrace.v1.proto"} {
		start(func(r *reader, done func() bool) error {
			return nginxAway(socketLife(ctx, front.address, protocol, r, done, want, &overSocket))
		})
	}
	for cuts := 0; (overEvents.Load() < int64(want) || overSocket.Load() < int64(want)) && !t.Failed() && ctx.Err() == nil; cuts++ {
		pause(ctx, time.Duration(200+rand.IntN(400))*time.Millisecond)
		switch cuts % 4 {
		case 0, 2:
			behind.cut()
		case 1:
			front.cut()
		default:
			bare.kill()
			bare.start()
			awaitNginx(t, bare, bareAddress)
		}
	}
	e := l.stop()
	ends.Store(&e)
	wg.Wait()
	log := j.read(topic, false)
	for i, r := range readers {
		if err := r.verify(log); err != nil {
			t.Errorf("reader %d: %v", i, err)
		}
	}
	proof(t, "behind nginx, a record alone came through a bare proxy_pass; %d disconnects of event streams and %d of sockets, on both sides of nginx: each reader got the %d records of the log, nothing twice",
		overEvents.Load(), overSocket.Load(), log.count())
}

// nginxAway excuses nginx's own answer while the edge cannot be reached. (EventSource would give up at it: a page then makes another.)
func nginxAway(err error) error {
	if err != nil && (strings.Contains(err.Error(), "502 Bad Gateway") || strings.Contains(err.Error(), "504 Gateway")) {
		return nil
	}
	return err
}
