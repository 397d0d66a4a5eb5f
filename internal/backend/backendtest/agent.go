package backendtest

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/destajo/destajo/internal/backend/node"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// Main makes the test binary double as destajo: with the arguments of `agent`
// it is an agent, of a simple kind that knows only Hello, Shutdown and one way
// to start a task. Call it from TestMain.
func Main(m *testing.M) {
	if len(os.Args) < 2 || os.Args[1] != "agent" {
		os.Exit(m.Run())
	}
	if err := run(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(args []string) error {
	if len(args) > 0 && args[0] == "node" {
		return node.Command(context.Background(), args[1:], os.Stdin, os.Stdout, Host)
	}
	if len(args) == 0 || args[0] != "run" {
		return fmt.Errorf("this agent knows no %q", args)
	}
	flags := flag.NewFlagSet("agent run", flag.ContinueOnError)
	home, tag, plane := flags.String("home", "", ""), flags.String("tag", "", ""), flags.String("plane", "", "")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	sock := filepath.Join(*home, "agent.sock")
	_ = os.Remove(sock)
	l, err := net.Listen("unix", sock)
	if err != nil {
		return err
	}
	a := newAgent(*tag, *plane, *home)
	go func() { _ = http.Serve(l, a) }()
	<-a.done
	return nil
}

// Host is what the simple agent says of the host.
func Host(context.Context) machine.Host {
	name, _ := os.Hostname()
	return machine.Host{Name: name, OS: runtime.GOOS + "/" + runtime.GOARCH, Agent: "test", CPUs: runtime.NumCPU(), MemoryBytes: 8 << 30, DiskFree: 10 << 30}
}

// agent is the simple agent.
type agent struct {
	tag, plane, home string
	done             chan struct{}
	once             sync.Once
	version          string
}

func newAgent(tag, plane, home string) *agent {
	return &agent{tag: tag, plane: plane, home: home, done: make(chan struct{}), version: "test"}
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	hello := wire.Hello{Wire: wire.Version, Agent: a.version, Machine: a.tag, Host: Host(r.Context()), Now: time.Now()}
	if v := r.Header.Get(wire.VersionHeader); v != strconv.Itoa(wire.Version) || exists(filepath.Join(a.home, "stubborn")) {
		w.WriteHeader(http.StatusUpgradeRequired)
		hello.Wire++
		_ = json.NewEncoder(w).Encode(hello)
		return
	}
	switch r.URL.Path {
	case wire.PathHello:
		_ = json.NewEncoder(w).Encode(hello)
	case wire.PathSync:
		// Each task becomes a process in a session of its own, as real agents
		// start them, with the variable by which they are found.
		var s wire.Sync
		_ = json.NewDecoder(r.Body).Decode(&s)
		for _, t := range s.Start {
			dir := filepath.Join(a.home, "tasks", t.ID)
			_ = os.MkdirAll(dir, 0o700)
			cmd := exec.Command("setsid", "/bin/sh", "-c", t.Run)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "DESTAJO_NOTICE=" + filepath.Join(dir, "notice")}
			if cmd.Start() == nil {
				go func() { _ = cmd.Wait() }()
			}
		}
		_ = json.NewEncoder(w).Encode(wire.Report{Now: time.Now()})
	case wire.PathShutdown:
		_, _ = w.Write([]byte("{}"))
		a.once.Do(func() { time.AfterFunc(2*time.Millisecond, func() { close(a.done) }) })
	default:
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(wire.Refusal{Kind: "not_found", Message: "no such path"})
	}
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }
