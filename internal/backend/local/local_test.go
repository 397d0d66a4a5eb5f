package local_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/backend/backendtest"
	"github.com/destajo/destajo/internal/backend/local"
	"github.com/destajo/destajo/machine"
)

func TestMain(m *testing.M) { backendtest.Main(m) }

func open(t testing.TB, home string) *local.Backend {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return local.New(local.Config{Home: home, Exe: exe, Host: backendtest.Host})
}

func TestSuite(t *testing.T) {
	backendtest.Suite(t, func(t *testing.T) backendtest.Harness {
		home := t.TempDir()
		return backendtest.Harness{Proc: "/proc", Open: func(t *testing.T) backend.Backend { return open(t, home) }}
	})
}

// TestLongHome has a home whose sockets no system takes.
func TestLongHome(t *testing.T) {
	backendtest.Suite(t, func(t *testing.T) backendtest.Harness {
		home := filepath.Join(t.TempDir(), strings.Repeat("long", 30))
		return backendtest.Harness{Proc: "/proc", Open: func(t *testing.T) backend.Backend { return open(t, home) }}
	})
}

// TestHungAgent has an agent that takes the word to go and does nothing. It is
// given its time, and is then killed.
func TestHungAgent(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, home)
	offers, err := b.Offers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f, err := b.Launch(t.Context(), backend.Request{Tag: "hung-1", Plane: "hung", Offer: offers[0]})
	if err != nil {
		t.Fatal(err)
	}
	conn, err := b.Dial(t.Context(), &machine.Machine{Handle: f.Handle})
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	pid := backendtest.Agent("/proc", f.Tag)
	if pid == 0 {
		t.Fatal("no agent runs")
	}
	if err := exec.Command("kill", "-STOP", strconv.Itoa(pid)).Run(); err != nil {
		t.Fatal(err)
	}
	if err := b.End(t.Context(), f.Tag, f.Handle); err != nil {
		t.Fatal(err)
	}
	if left, err := b.List(t.Context(), "hung"); err != nil || len(left) != 1 {
		t.Fatalf("it was not given its time: %v, %v", left, err)
	}
	long := time.Now().Add(-time.Minute)
	if err := os.Chtimes(filepath.Join(home, "agents", "local", f.Tag, "machine.ending"), long, long); err != nil {
		t.Fatal(err)
	}
	if err := b.End(t.Context(), f.Tag, f.Handle); err != nil {
		t.Fatal(err)
	}
	if left, err := b.List(t.Context(), "hung"); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// BenchmarkLaunch is from the call of Launch to the agent's first answer.
func BenchmarkLaunch(b *testing.B) {
	be := open(b, b.TempDir())
	ctx := context.Background()
	offers, err := be.Offers(ctx)
	if err != nil {
		b.Fatal(err)
	}
	n := 0
	for b.Loop() {
		n++
		tag := "bench-" + strings.Repeat("x", n)
		f, err := be.Launch(ctx, backend.Request{Tag: tag, Plane: "bench", Offer: offers[0]})
		if err != nil {
			b.Fatal(err)
		}
		conn, err := be.Dial(ctx, &machine.Machine{Handle: f.Handle})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := backendtest.Hello(ctx, conn); err != nil {
			b.Fatal(err)
		}
		conn.Close()
		b.StopTimer()
		for {
			if err := be.End(ctx, tag, f.Handle); err != nil {
				b.Fatal(err)
			}
			if left, _ := be.List(ctx, "bench"); len(left) == 0 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		b.StartTimer()
	}
}
