// Package kafkatest starts Kafka for tests: a real one (Apache Kafka, through .ci/kafka.sh) or the embedded one. A broker that cannot be
// started fails the test; nothing is ever skipped. Brokers listen on loopback, on ports that were free, and die with the test process,
// however that ends: they hang on a pipe that only it holds open.
package kafkatest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"tailrace.dev/tailrace/services/embedded"
)

const (
	startTimeout   = 5 * time.Minute // the first start on a machine downloads Kafka
	commandTimeout = 2 * time.Minute
	attempts       = 5 // a port may be taken between the look and the start
)

// Cluster is a running Kafka. Its methods may be called concurrently.
type Cluster struct {
	// Bootstrap is what clients connect to: host:port, comma-separated.
	Bootstrap string

	script string   // empty: embedded
	dir    string   // of conf, data and logs
	leash  *os.File // the brokers die when it is closed
}

// shared is the broker of this test binary.
var shared struct {
	once    sync.Once
	cluster *Cluster
	err     error
}

// Start returns a real broker that all tests of this binary share: give each its own topics and leave the broker alone. It ends with the process.
func Start(t testing.TB) *Cluster {
	t.Helper()
	shared.once.Do(func() { shared.cluster, shared.err = start(1) })
	if shared.err != nil {
		t.Fatalf("start Kafka: %v", shared.err)
	}
	return shared.cluster
}

// StartOwn starts real brokers for this test alone, 1 or 3, to be stopped, killed and restarted. They end with the test.
func StartOwn(t testing.TB, brokers int, settings ...string) *Cluster {
	t.Helper()
	c, err := start(brokers, settings...)
	if err != nil {
		t.Fatalf("start Kafka: %v", err)
	}
	t.Cleanup(c.close)
	return c
}

// StartEmbedded starts the embedded broker, in memory, for this test alone: milliseconds instead of seconds.
func StartEmbedded(t testing.TB) *Cluster {
	t.Helper()
	b, err := embedded.Start(embedded.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return &Cluster{Bootstrap: b.Addr()}
}

func start(brokers int, settings ...string) (*Cluster, error) {
	script, err := findScript()
	if err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		c, err := launch(script, brokers, settings)
		if err == nil || n == attempts {
			return c, err
		}
	}
}

// launch starts the script, which holds the brokers, in a session of its own: a signal to the test's process group does not reach it, so
// that it is there to clean up.
func launch(script string, brokers int, settings []string) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "tailrace-kafka-")
	if err != nil {
		return nil, err
	}
	port, err := freePorts(brokers)
	if err != nil {
		return nil, err
	}
	args := []string{script, "run", dir, "--brokers", strconv.Itoa(brokers), "--port", strconv.Itoa(port)}
	for _, s := range settings {
		args = append(args, "--set", s)
	}
	in, leash, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	answers, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer answers.Close()
	complaints, err := os.CreateTemp("", "tailrace-kafka-*.log")
	if err != nil {
		return nil, err
	}
	defer func() {
		complaints.Close()
		os.Remove(complaints.Name())
	}()
	cmd := exec.Command("bash", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, out, complaints // files, so that no goroutine copies
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	out.Close()
	if err != nil {
		leash.Close()
		return nil, err
	}
	// Nobody waits for it: it ends after this process, or becomes its zombie for a moment.
	if err := answers.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(answers)
	for lines.Scan() {
		if bootstrap, ok := strings.CutPrefix(lines.Text(), "KAFKA_BOOTSTRAP="); ok {
			return &Cluster{Bootstrap: bootstrap, script: script, dir: dir, leash: leash}, nil
		}
	}
	leash.Close()
	why, _ := os.ReadFile(complaints.Name())
	return nil, fmt.Errorf("%s: no broker (%w): %s", strings.Join(args, " "), errors.Join(lines.Err(), errors.New("it ended")), why)
}

// close lets the brokers die and waits until their directory is gone.
func (c *Cluster) close() {
	c.leash.Close()
	for until := time.Now().Add(commandTimeout); time.Now().Before(until); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(c.dir); errors.Is(err, os.ErrNotExist) {
			return
		}
	}
}

// Kill9 kills a broker (1, 2, 3) without warning.
func (c *Cluster) Kill9(t testing.TB, id int) { t.Helper(); c.command(t, "kill9", id) }

// Stop stops a broker in order.
func (c *Cluster) Stop(t testing.TB, id int) { t.Helper(); c.command(t, "stop", id) }

// Restart starts a broker on its data, after stopping it if it runs, and waits until it is ready.
func (c *Cluster) Restart(t testing.TB, id int) { t.Helper(); c.command(t, "restart", id) }

// Tool runs one of Kafka's own programs, by its main class, against the brokers, and returns what it prints.
func (c *Cluster) Tool(t testing.TB, class string, args ...string) string {
	t.Helper()
	script, err := findScript()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	args = append([]string{script, "tool", class, "--bootstrap-server", c.Bootstrap}, args...)
	text, err := exec.CommandContext(ctx, "bash", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", class, err, text)
	}
	return string(text)
}

func (c *Cluster) command(t testing.TB, what string, id int) {
	t.Helper()
	if c.script == "" {
		t.Fatalf("%s: the embedded broker cannot do that", what)
	}
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	out, err := os.CreateTemp("", "tailrace-kafka-*.log")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		out.Close()
		os.Remove(out.Name())
	}()
	cmd := exec.CommandContext(ctx, "bash", c.script, what, c.dir, strconv.Itoa(id))
	cmd.Stdout, cmd.Stderr = out, out // a file: the broker inherits it and would keep a pipe open
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		t.Fatalf("%s broker %d: %v: %s", what, id, err, text)
	}
}

var topics atomic.Int64

// NewTopic creates a topic with a name of its own and waits until all its partitions have leaders. configs are Kafka's topic settings.
func (c *Cluster) NewTopic(t testing.TB, partitions int32, configs map[string]string) string {
	t.Helper()
	legal := func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}
	name := strings.Map(legal, t.Name())
	name = fmt.Sprintf("%s-%d", name[:min(len(name), 100)], topics.Add(1))
	c.CreateTopic(t, name, partitions, configs)
	return name
}

// CreateTopic is NewTopic with a given name.
func (c *Cluster) CreateTopic(t testing.TB, name string, partitions int32, configs map[string]string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	values := map[string]*string{}
	for k, v := range configs {
		values[k] = &v
	}
	admin := c.Admin(t)
	r, err := admin.CreateTopic(ctx, partitions, -1, values, name)
	if err = errors.Join(err, r.Err); err != nil {
		t.Fatalf("create topic %q: %v", name, err)
	}
	for ; ; time.Sleep(10 * time.Millisecond) {
		ends, err := admin.ListEndOffsets(ctx, name)
		if err == nil && ends.Error() == nil && len(ends[name]) == int(partitions) {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("topic %q does not become ready: %v", name, errors.Join(err, ends.Error()))
		}
	}
}

// Client returns an independent client (franz-go), closed with the test.
func (c *Cluster) Client(t testing.TB, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	k, err := kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(strings.Split(c.Bootstrap, ",")...)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

// Admin returns an independent admin client, closed with the test.
func (c *Cluster) Admin(t testing.TB) *kadm.Client {
	t.Helper()
	return kadm.NewClient(c.Client(t))
}

// freePorts finds a base so that base+i and base+10+i are free. It stays below the range from which the kernel takes the ports of clients: one
// of those could sit on a broker's port while it is down.
func freePorts(brokers int) (int, error) {
	for range 100 {
		base := 15_000 + rand.IntN(17_000)
		free := true
		for i := range brokers {
			for _, p := range []int{base + i, base + 10 + i} {
				l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(p)))
				if err != nil {
					free = false
					continue
				}
				l.Close()
			}
		}
		if free {
			return base, nil
		}
	}
	return 0, errors.New("no free ports")
}

// findScript walks up from the test's directory to the repository's script.
func findScript() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		script := filepath.Join(dir, ".ci", "kafka.sh")
		if _, err := os.Stat(script); err == nil {
			return script, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", errors.New("no .ci/kafka.sh above the test's directory")
		}
		dir = up
	}
}
