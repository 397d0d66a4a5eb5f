package wire_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/wire"
)

// serve makes a client of a server that answers by a function.
func serve(t *testing.T, answer http.HandlerFunc) *wire.Client {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	c := wire.NewClient(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", s.Listener.Addr().String())
	})
	t.Cleanup(c.Close)
	return c
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		status int
		body   string
		want   fault.Kind
		words  string
		hint   string
	}{
		{"refusal", 409, `{"kind":"conflict","message":"a newer process commands this agent","hint":"stop it"}`, fault.Conflict, "a newer process", "stop it"},
		{"refusal without hint", 403, `{"kind":"denied","message":"no"}`, fault.Denied, "no", ""},
		{"plain not found", 404, "404 page not found", fault.NotFound, wire.PathHello, ""},
		{"another version", 426, `{"wire":2}`, fault.Conflict, "another version", "launched anew"},
		{"plain", 500, "broken\n", fault.Internal, "500 Internal Server Error: broken", ""},
		{"no JSON", 200, "hello", fault.Unreachable, "cannot be read", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Header.Get(wire.VersionHeader) != "1" {
					t.Errorf("the version is %q", r.Header.Get(wire.VersionHeader))
				}
				w.WriteHeader(c.status)
				_, _ = io.WriteString(w, c.body)
			}).Hello(context.Background())
			if fault.KindOf(err) != c.want || !strings.Contains(err.Error(), c.words) || !strings.Contains(fault.HintOf(err), c.hint) {
				t.Errorf("%v: %v (%s)", fault.KindOf(err), err, fault.HintOf(err))
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	plain := wire.NewClient(func(context.Context) (net.Conn, error) { return nil, errors.New("no route") })
	if _, err := plain.Hello(context.Background()); fault.KindOf(err) != fault.Unreachable || !strings.Contains(err.Error(), "no route") {
		t.Error(err)
	}
	known := wire.NewClient(func(context.Context) (net.Conn, error) {
		return nil, fault.New(fault.Denied, "the host key changed").Hint("look")
	})
	if _, err := known.Hello(context.Background()); fault.KindOf(err) != fault.Denied || fault.HintOf(err) != "look" {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	silent := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	if _, err := silent.Hello(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

func TestCalls(t *testing.T) {
	t.Parallel()
	var heard []string
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		heard = append(heard, r.Method+" "+r.URL.String()+" "+r.Header.Get("If-None-Match")+" "+string(body))
		switch {
		case r.Method == http.MethodHead:
			w.WriteHeader(http.StatusNotFound)
		case strings.HasPrefix(r.URL.Path, wire.PathKeep) && r.Header.Get("If-None-Match") != "":
			w.WriteHeader(http.StatusNotModified)
		case strings.HasPrefix(r.URL.Path, wire.PathKeep):
			w.Header().Set("ETag", `"x"`)
			_, _ = io.WriteString(w, "kept")
		case strings.HasPrefix(r.URL.Path, wire.PathOutputs):
			w.WriteHeader(http.StatusNoContent)
		case strings.HasPrefix(r.URL.Path, wire.PathLog):
			_, _ = io.WriteString(w, "0123456789")
		case r.URL.Path == wire.PathSync:
			var s wire.Sync
			_ = json.Unmarshal(body, &s)
			_ = json.NewEncoder(w).Encode(wire.Report{Version: s.Seen + 1})
		case r.URL.Path == wire.PathSamples:
			_ = json.NewEncoder(w).Encode(wire.Samples{Next: 9})
		}
	})
	ctx := context.Background()
	if there, err := c.HasBlob(ctx, "ab"); there || err != nil {
		t.Error(there, err)
	}
	if err := c.PutBlob(ctx, "ab", strings.NewReader("data"), 4); err != nil {
		t.Error(err)
	}
	if data, err := c.Log(ctx, "1-1.0", 7, 5); string(data) != "01234" || err != nil {
		t.Errorf("%q %v", data, err)
	}
	if r, err := c.Outputs(ctx, "1-1.0"); r != nil || err != nil {
		t.Error(r, err)
	}
	r, tag, err := c.Keep(ctx, "1-1.0", "")
	if err != nil || tag != `"x"` {
		t.Fatal(tag, err)
	}
	if data, _ := io.ReadAll(r); string(data) != "kept" {
		t.Errorf("%q", data)
	}
	_ = r.Close()
	if r, again, err := c.Keep(ctx, "1-1.0", tag); r != nil || again != tag || err != nil {
		t.Error(r, again, err)
	}
	if r, err := c.Sync(ctx, &wire.Sync{Seen: 41}); err != nil || r.Version != 42 {
		t.Error(r, err)
	}
	if s, err := c.Samples(ctx, 3); err != nil || s.Next != 9 {
		t.Error(s, err)
	}
	if err := c.Shutdown(ctx, &wire.Shutdown{Reason: "over"}); err != nil {
		t.Error(err)
	}
	want := []string{
		"HEAD /v1/blobs/ab  ", "PUT /v1/blobs/ab  data", "GET /v1/logs/1-1.0?offset=7&max=5  ", "GET /v1/outputs/1-1.0  ",
		"GET /v1/keep/1-1.0  ", `GET /v1/keep/1-1.0 "x" `,
		`POST /v1/sync  {"plane":"","token":0,"dead_man":0,"seen":41,"wait":0}`, "GET /v1/samples?after=3  ",
		`POST /v1/shutdown  {"plane":"","token":0,"reason":"over","grace":0}`,
	}
	if d := cmp.Diff(want, heard); d != "" {
		t.Error(d)
	}
}

func TestStreams(t *testing.T) {
	t.Parallel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.FormValue("port") == "1" {
			w.WriteHeader(http.StatusBadGateway)
			_ = json.NewEncoder(w).Encode(wire.Refusal{Kind: string(fault.Unreachable), Message: "nothing answers"})
			return
		}
		conn, buffer, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+r.Header.Get("Upgrade")+"\r\n\r\n")
		line, _ := buffer.ReadString('\n')
		_, _ = io.WriteString(conn, strings.ToUpper(line))
	})
	if _, err := c.Forward(context.Background(), "1-1.0", 1); fault.KindOf(err) != fault.Unreachable {
		t.Error(err)
	}
	for name, open := range map[string]func() (net.Conn, error){
		"forward": func() (net.Conn, error) { return c.Forward(context.Background(), "1-1.0", 80) },
		"shell":   func() (net.Conn, error) { return c.Shell(context.Background(), "1-1.0", 80, 25, "echo a&b") },
	} {
		conn, err := open()
		if err != nil {
			t.Fatal(name, err)
		}
		_, _ = io.WriteString(conn, "hello\n")
		if data, err := io.ReadAll(conn); string(data) != "HELLO\n" || err != nil {
			t.Errorf("%s: %q %v", name, data, err)
		}
		_ = conn.Close()
	}
}
