package agent_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// TestOtherVersion asks in the words of another version: the answer says who it
// is, so that it can be replaced.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(n.home, "agent.sock"))
	}}}
	r, err := http.NewRequest(http.MethodPost, "http://agent"+wire.PathSync, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set(wire.VersionHeader, "999")
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var h wire.Hello
	if err := json.NewDecoder(resp.Body).Decode(&h); err != nil || resp.StatusCode != http.StatusUpgradeRequired || h.Wire != wire.Version || h.Machine != "t" {
		t.Errorf("%s %+v %v", resp.Status, h, err)
	}
}

// TestForgottenForEver forgets a task and an unknown one; neither runs later,
// in another life either.
func TestForgottenForEver(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "true")}})
	n.until("1-1.0", machine.TaskEnded)
	n.say(wire.Sync{Forget: []string{"1-1.0", "2-1.0"}})
	n.kill()
	n.start()
	r := n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "true"), run("2-1.0", "true")}})
	if len(r.Tasks) != 0 {
		t.Errorf("they run again: %+v", r.Tasks)
	}
}

// TestShutdown gives running tasks their grace, and then the agent exits.
func TestShutdown(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "trap 'echo bye; sleep 0.3; echo gone; exit 0' TERM; echo ready; while :; do sleep 0.05; done")}})
	n.logged("1-1.0", "ready\n")
	if err := n.Shutdown(context.Background(), &wire.Shutdown{Plane: "p", Token: 1, Reason: "released", Grace: 5 * time.Second}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.cmd.Wait() }()
	for end := time.Now().Add(10 * time.Second); ; {
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
			n.start()
			if s := n.until("1-1.0", machine.TaskEnded); s.Reason != "released" || !strings.HasSuffix(n.log("1-1.0"), "bye\ngone\n") {
				t.Errorf("%+v with the log %q", s, n.log("1-1.0"))
			}
			return
		case <-time.After(100 * time.Millisecond):
			if time.Now().After(end) {
				t.Fatal("the agent does not exit")
			}
		}
	}
}

// TestNewsIsQuick: the end of a task is news at once, with few tasks there.
func TestNewsIsQuick(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.say(wire.Sync{Start: []wire.Task{run("1-1.0", "sleep 0.5")}})
	s := n.until("1-1.0", machine.TaskEnded)
	late := time.Since(s.Ended)
	t.Logf("heard after %s", late)
	if late > 500*time.Millisecond { // a millisecond on a quiet machine
		t.Errorf("heard of it only after %s", late)
	}
}
