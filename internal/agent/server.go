package agent

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/wire"
)

// handler answers what package wire says.
func (a *Agent) handler() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("GET "+wire.PathHello, func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, a.hello()) })
	m.HandleFunc("POST "+wire.PathSync, a.sync)
	m.HandleFunc("HEAD "+wire.PathBlob+"{name}", a.blob)
	m.HandleFunc("PUT "+wire.PathBlob+"{name}", a.putBlob)
	m.HandleFunc("GET "+wire.PathLog+"{task}", a.log)
	m.HandleFunc("GET "+wire.PathOutputs+"{task}", a.outputs)
	m.HandleFunc("GET "+wire.PathKeep+"{task}", a.keep)
	m.HandleFunc("GET "+wire.PathSamples, a.sampled)
	m.HandleFunc("GET "+wire.PathShell+"{task}", a.shell)
	m.HandleFunc("GET "+wire.PathForward+"{task}", a.forward)
	m.HandleFunc("POST "+wire.PathShutdown, a.shut)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(wire.VersionHeader) != strconv.Itoa(wire.Version) {
			answer(w, http.StatusUpgradeRequired, a.hello())
			return
		}
		m.ServeHTTP(w, r)
	})
}

func (a *Agent) hello() wire.Hello {
	return wire.Hello{Wire: wire.Version, Agent: a.c.Version, Machine: a.c.Tag, Host: a.host, Now: time.Now()}
}

// sync takes orders and answers with what is, at once or when it is news.
func (a *Agent) sync(w http.ResponseWriter, r *http.Request) {
	var s wire.Sync
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 256<<20)).Decode(&s); err != nil {
		refuse(w, fault.Wrap(fault.Invalid, err, "the words of the control plane"))
		return
	}
	a.mu.Lock()
	if err := a.heard(s.Plane, s.Token, s.DeadMan); err != nil {
		a.mu.Unlock()
		refuse(w, err)
		return
	}
	before := a.version
	var failed error
	for i := range s.Stop {
		x := &s.Stop[i]
		t := a.tasks[x.ID]
		if t == nil { // a late start must not run it
			if !a.gone[x.ID] {
				if err := a.start(&wire.Task{ID: x.ID}); err != nil {
					failed = err
				} else if t := a.tasks[x.ID]; t != nil {
					t.end(x.Cause, x.Reason)
				}
			}
			continue
		}
		t.stop(x.Cause, x.Reason, x.Grace)
	}
	for i := range s.Start {
		if err := a.start(&s.Start[i]); err != nil {
			failed = err
		}
	}
	if len(s.Start) > 0 {
		a.admit()
		a.bump()
	}
	for _, id := range s.Go {
		if t := a.tasks[id]; t != nil {
			t.proceed()
		}
	}
	for _, id := range s.Forget {
		a.forget(id)
	}
	if len(s.Forget) > 0 && a.version == before {
		a.bump()
	}
	if failed != nil {
		a.mu.Unlock()
		refuse(w, failed)
		return
	}
	if s.Seen == a.version && s.Wait > 0 {
		a.waiting++
		deadline := time.NewTimer(min(s.Wait, time.Minute))
		for s.Seen == a.version {
			changed := a.changed
			a.mu.Unlock()
			over := false
			select {
			case <-changed:
			case <-deadline.C:
				over = true
			case <-r.Context().Done():
				over = true
			}
			a.mu.Lock()
			if over {
				break
			}
		}
		deadline.Stop()
		a.waiting--
	}
	if s.Wait > 0 && len(a.order) > few { // a long report for every single change would keep both sides busy
		a.mu.Unlock()
		time.Sleep(min(time.Duration(len(a.order))*perTask, 50*time.Millisecond))
		a.mu.Lock()
	}
	report := a.report()
	a.mu.Unlock()
	answer(w, http.StatusOK, report)
}

// A report of more than a few tasks waits for more changes: about as long as both
// sides need to write and read it.
const (
	few     = 16
	perTask = 50 * time.Microsecond
)

func (a *Agent) shut(w http.ResponseWriter, r *http.Request) {
	var s wire.Shutdown
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&s); err != nil {
		refuse(w, fault.Wrap(fault.Invalid, err, "the words of the control plane"))
		return
	}
	a.mu.Lock()
	err := a.heard(s.Plane, s.Token, 0)
	a.mu.Unlock()
	if err != nil {
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, struct{}{})
	a.shutdown(s.Reason, s.Grace)
}

var blobName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{64}$`) })

func (a *Agent) blob(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if i, err := os.Stat(a.path("blobs", name)); blobName().MatchString(name) && err == nil {
		_ = os.Chtimes(a.path("blobs", name), time.Now(), time.Now()) // it is needed
		w.Header().Set("Destajo-Size", strconv.FormatInt(i.Size(), 10))
		return
	}
	w.WriteHeader(http.StatusNotFound)
}

func (a *Agent) putBlob(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if !blobName().MatchString(name) {
		refuse(w, fault.New(fault.Invalid, "%q is no name of a blob", name))
		return
	}
	f, err := os.CreateTemp(a.path("blobs"), ".new-*")
	if err != nil {
		refuse(w, diskFault(err))
		return
	}
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(f, h), r.Body)
	err = errors.Join(err, f.Close())
	switch {
	case err != nil:
		err = diskFault(err)
	case hex.EncodeToString(h.Sum(nil)) != name:
		err = fault.New(fault.Unreachable, "the file was cut off on its way")
	default:
		if err = os.Rename(f.Name(), a.path("blobs", name)); err != nil {
			err = diskFault(err)
		}
	}
	if err != nil {
		_ = os.Remove(f.Name())
		refuse(w, err)
		return
	}
	answer(w, http.StatusOK, struct{}{})
}

// named finds the task of a request.
func (a *Agent) named(w http.ResponseWriter, r *http.Request) *task {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.tasks[r.PathValue("task")]
	if t == nil {
		refuse(w, fault.New(fault.NotFound, "this node has no task %q", r.PathValue("task")))
	}
	return t
}

func (a *Agent) log(w http.ResponseWriter, r *http.Request) {
	t := a.named(w, r)
	if t == nil {
		return
	}
	offset, _ := strconv.ParseInt(r.FormValue("offset"), 10, 64)
	most, _ := strconv.ParseInt(r.FormValue("max"), 10, 64)
	if most <= 0 || most > 16<<20 {
		most = 4 << 20
	}
	f, err := os.Open(filepath.Join(t.dir, "log"))
	if errors.Is(err, os.ErrNotExist) {
		w.Header().Set("Destajo-Log-Size", "0")
		return
	}
	if err != nil {
		refuse(w, fault.Wrap(fault.Internal, err, "the log"))
		return
	}
	defer f.Close()
	if i, err := f.Stat(); err == nil {
		w.Header().Set("Destajo-Log-Size", strconv.FormatInt(i.Size(), 10))
		most = max(0, min(most, i.Size()-offset))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("Content-Length", strconv.FormatInt(most, 10))
	_, _ = io.Copy(w, io.NewSectionReader(f, offset, most))
}

func (a *Agent) sampled(w http.ResponseWriter, r *http.Request) {
	after, _ := strconv.ParseInt(r.FormValue("after"), 10, 64)
	answer(w, http.StatusOK, a.samples.since(after))
}

// forward joins the request's stream with a port of the task.
func (a *Agent) forward(w http.ResponseWriter, r *http.Request) {
	t := a.named(w, r)
	if t == nil {
		return
	}
	port, _ := strconv.Atoi(r.FormValue("port"))
	var d net.Dialer
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	far, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	cancel()
	if err != nil {
		refuse(w, fault.Wrap(fault.Unreachable, err, "nothing answers at port %d of the job", port).Hint("does it listen yet, on 127.0.0.1 or on all addresses?"))
		return
	}
	defer far.Close()
	near, rest, err := hijack(w, "tcp")
	if err != nil {
		return
	}
	defer near.Close()
	defer t.use()()
	join(near, rest, far)
}

// use counts an open shell or forward of the task.
func (t *task) use() func() {
	t.agent.mu.Lock()
	t.shells++
	t.entered = true
	t.agent.mu.Unlock()
	return func() {
		t.agent.mu.Lock()
		t.shells--
		t.active = time.Now()
		t.agent.mu.Unlock()
	}
}

// hijack takes the stream from the server.
func hijack(w http.ResponseWriter, protocol string) (net.Conn, io.Reader, error) {
	conn, buffer, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	_, err = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n\r\n")
	return conn, buffer, err
}

// join copies both ways until both have ended.
func join(near net.Conn, rest io.Reader, far net.Conn) {
	done := make(chan struct{})
	go func() {
		_, _ = io.Copy(far, rest)
		if c, ok := far.(interface{ CloseWrite() error }); ok {
			_ = c.CloseWrite()
		}
		close(done)
	}()
	_, _ = io.Copy(near, far)
	if c, ok := near.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite()
	}
	<-done
}

func answer(w http.ResponseWriter, code int, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		code, data = http.StatusInternalServerError, []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(code)
	_, _ = w.Write(data)
}

// refuse answers with a fault.
func refuse(w http.ResponseWriter, err error) {
	code := map[fault.Kind]int{fault.Invalid: 400, fault.Denied: 403, fault.NotFound: 404, fault.Conflict: 409, fault.Unreachable: 502}[fault.KindOf(err)]
	if code == 0 {
		code = http.StatusInternalServerError
	}
	answer(w, code, wire.Refusal{Kind: string(fault.KindOf(err)), Message: err.Error(), Hint: fault.HintOf(err)})
}
