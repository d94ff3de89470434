package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestReadmeExamples runs the commands that README.md and edge/README.md show, as they stand, but for the addresses. An example is a line of a fenced sh
// block that begins with curl, printf or buf; a fenced go block is a whole program; a fenced js block of README.md is what somebody types into the console
// of the page, and logs something with records.
func TestReadmeExamples(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	ofEdge, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	p := startPair(t, pairOptions{kafka: "embedded", service: []string{"-demo"}})
	shell, programs := examples(string(text) + string(ofEdge))
	if len(shell) < 3 || len(programs) < 1 {
		t.Fatalf("README.md shows %d commands and %d programs, want at least buf curl, curl, another curl and a grpc-go program", len(shell), len(programs))
	}
	seen := map[string]bool{}
	for _, command := range shell {
		seen[strings.Fields(command)[0]] = true
		out, err := runExample(t, exec.Command("bash", "-c", p.localise(command)), 5*time.Second)
		checkExample(t, command, out, err)
	}
	for _, tool := range []string{"buf", "curl"} {
		if !seen[tool] {
			t.Errorf("README.md shows no command that begins with %s", tool)
		}
	}
	for _, program := range programs {
		dir, err := os.MkdirTemp("../../.tmp/e2e", "readme")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(p.localise(program)), 0o644); err != nil {
			t.Fatal(err)
		}
		binary := filepath.Join(dir, "example")
		if out, err := exec.Command("go", "build", "-o", binary, filepath.Join(dir, "main.go")).CombinedOutput(); err != nil {
			t.Errorf("the program of README.md does not compile: %v\n%s\n%s", err, out, program)
			continue
		}
		out, err := runExample(t, exec.Command(binary), 5*time.Second)
		checkExample(t, program, out, err)
	}
	scripts := jsFence.FindAllStringSubmatch(string(text), -1)
	if len(scripts) < 2 {
		t.Errorf("README.md shows %d scripts, want a socket that subscribes and one that consumes", len(scripts))
	}
	b := openTab(t, "http://"+strings.Replace(p.ws, "localhost", "127.0.0.1", 1)+"/")
	for _, script := range scripts {
		evaluate[bool](b, `window.logged = []; console.log = (...all) => window.logged.push(all.join(' ')); true`)
		evaluate[bool](b, script[1]+"\n;true")
		b.await("what the script of README.md logs: "+script[1], `window.logged.some((line) => line.includes('alder'))`)
	}
	proof(t, "%d commands, %d programs and %d scripts of README.md did what they say", len(shell), len(programs), len(scripts))
}

// TestReadmeNamesTests: each test that README.md names as the proof of a guarantee is there.
func TestReadmeNamesTests(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	there := map[string]bool{}
	for _, pattern := range []string{"../../services/*/*_test.go", "../../services/cmd/*/*_test.go", "../*/*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(source, -1) {
				there[string(name[1])] = true
			}
		}
	}
	names := regexp.MustCompile(`\bTest[A-Z]\w+`).FindAllString(string(text), -1)
	if len(names) < 10 {
		t.Errorf("README.md names %d tests", len(names))
	}
	for _, name := range names {
		if !there[name] {
			t.Errorf("README.md names %s, which is nowhere", name)
		}
	}
}

// localise puts the addresses of this pair in the place of the defaults.
func (p *pair) localise(text string) string {
	return strings.NewReplacer("localhost:7070", p.rpc, "127.0.0.1:7070", p.rpc, "localhost:7071", p.rpcOps, "127.0.0.1:7071", p.rpcOps,
		"localhost:8080", p.ws, "127.0.0.1:8080", p.ws, "localhost:8081", p.wsOps, "127.0.0.1:8081", p.wsOps).Replace(text)
}

var fence = regexp.MustCompile("(?ms)^```(sh|bash|shell|console|go)\n(.*?)^```$")

var jsFence = regexp.MustCompile("(?ms)^```js\n(.*?)^```$")

// examples returns the commands, continued lines joined, and the programs.
func examples(readme string) (shell, programs []string) {
	for _, block := range fence.FindAllStringSubmatch(readme, -1) {
		if block[1] == "go" {
			if strings.HasPrefix(block[2], "package main") {
				programs = append(programs, block[2])
			}
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(block[2], "\\\n", "")) {
			line = strings.TrimPrefix(strings.TrimSpace(line), "$ ")
			for _, tool := range []string{"curl ", "printf ", "buf "} {
				if strings.HasPrefix(line, tool) {
					shell = append(shell, line)
				}
			}
		}
	}
	return shell, programs
}

var errCut = errors.New("cut: it would go on")

// runExample runs a command for a while; one that streams is ended then.
func runExample(t *testing.T, cmd *exec.Cmd, while time.Duration) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	bin, err := filepath.Abs("../../.tmp/bin")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := onForkThread(cmd.Start); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ctx, cancel := context.WithTimeout(t.Context(), while)
	defer cancel()
	select {
	case err := <-ended:
		return out.String(), err
	case <-ctx.Done():
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if err := <-ended; err == nil {
			return out.String(), nil // it had just ended by itself
		}
		return out.String(), errCut
	}
}

// checkExample wants success, or a stream that has shown something; and no error in what was printed.
func checkExample(t *testing.T, command, out string, err error) {
	t.Helper()
	if (err != nil && !errors.Is(err, errCut)) || len(strings.TrimSpace(out)) == 0 {
		t.Errorf("%s\nended with %v and printed %q", command, err, out)
		return
	}
	for _, sign := range []string{`"code":`, "404 page", "404 Not Found", "unimplemented", "Could not resolve"} {
		if strings.Contains(out, sign) {
			t.Errorf("%s\nprinted %q", command, out)
		}
	}
}
