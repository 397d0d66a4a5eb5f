package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/destajo/destajo/fault"
)

// docker speaks the few words of the Docker Engine API that the agent needs, to
// Docker or to Podman, which speaks the same, over a unix socket. Docker's own
// client would add 20 modules and 1.2 ms to every start of the program, a
// quarter of it. Paths carry no version: the engine then takes its newest.
type docker struct {
	socket string
	podman bool
	http   *http.Client
}

func newDocker(socket string, podman bool) *docker {
	d := &docker{socket: socket, podman: podman}
	d.http = &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}, IdleConnTimeout: 10 * time.Second, MaxIdleConnsPerHost: 2}}
	return d
}

// refusal is an answer of the engine that is not one of success.
type refusal struct {
	status int
	words  string
}

func (r *refusal) Error() string { return r.words }

// refused gives the status of the engine's refusal; 0: it did not even answer.
func refused(err error) int {
	var r *refusal
	if errors.As(err, &r) {
		return r.status
	}
	return 0
}

// call sends a request and reads the answer into a value, if one is given.
func (d *docker) call(ctx context.Context, method, path string, in, out any) error {
	r, err := d.open(ctx, method, path, in, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, r)
		return err
	}
	return json.NewDecoder(r).Decode(out)
}

// open sends a request and gives the answer's stream.
func (d *docker) open(ctx context.Context, method, path string, in any, head http.Header) (io.ReadCloser, error) {
	r, err := d.request(ctx, method, path, in, head)
	if err != nil {
		return nil, err
	}
	resp, err := d.http.Do(r)
	if err != nil {
		return nil, err
	}
	return resp.Body, judge(resp)
}

func (d *docker) request(ctx context.Context, method, path string, in any, head http.Header) (*http.Request, error) {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://engine"+path, body)
	if err != nil {
		return nil, err
	}
	if head != nil {
		r.Header = head
	}
	if in != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	return r, nil
}

// judge makes an error of an answer that is not one of success.
func judge(r *http.Response) error {
	if r.StatusCode < 400 {
		return nil
	}
	defer r.Body.Close()
	data, _ := io.ReadAll(io.LimitReader(r.Body, 1<<16))
	var said struct{ Message string }
	if json.Unmarshal(data, &said) != nil || said.Message == "" {
		said.Message = strings.TrimSpace(r.Status + " " + string(data))
	}
	return &refusal{r.StatusCode, said.Message}
}

// hijack sends a request whose answer is a stream both ways.
func (d *docker) hijack(ctx context.Context, path string, in any) (net.Conn, io.Reader, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", d.socket)
	if err != nil {
		return nil, nil, err
	}
	r, err := d.request(ctx, http.MethodPost, path, in, http.Header{"Connection": {"Upgrade"}, "Upgrade": {"tcp"}})
	if err == nil {
		err = r.Write(conn)
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	buffer := bufio.NewReader(conn)
	resp, err := http.ReadResponse(buffer, r)
	if err == nil {
		err = judge(resp)
	}
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, buffer, nil
}

// imageInfo is what the agent wants to know of an image.
type imageInfo struct {
	Config struct {
		Entrypoint, Cmd, Env []string
	}
}

func (d *docker) image(ctx context.Context, name string) (imageInfo, error) {
	var i imageInfo
	return i, d.call(ctx, http.MethodGet, "/images/"+escape(name)+"/json", nil, &i)
}

// escape keeps the slashes of an image's name: the engine wants them as they are.
func escape(name string) string { return strings.ReplaceAll(url.PathEscape(name), "%2F", "/") }

// layer is how far the pull of one layer is.
type layer struct {
	got, all int64
	done     bool
}

// pull fetches an image and tells how far it is.
func (d *docker) pull(ctx context.Context, name string, say func(words string)) error {
	query := url.Values{"fromImage": {name}}
	if repo, tag, ok := tagged(name); ok {
		query = url.Values{"fromImage": {repo}, "tag": {tag}}
	}
	head := http.Header{}
	if auth := credentials(name); auth != "" {
		head.Set("X-Registry-Auth", auth)
	}
	r, err := d.open(ctx, http.MethodPost, "/images/create?"+query.Encode(), nil, head)
	if err != nil {
		return err
	}
	defer r.Close()
	layers := map[string]*layer{}
	for said := json.NewDecoder(r); ; {
		var line struct {
			Status, ID, Error string
			ProgressDetail    struct{ Current, Total int64 }
		}
		switch err := said.Decode(&line); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case line.Error != "":
			return &refusal{http.StatusInternalServerError, line.Error}
		}
		if progress(layers, line.ID, line.Status, line.ProgressDetail.Current, line.ProgressDetail.Total) {
			say(pulling(layers))
		}
	}
}

// progress takes one line of a pull; false when it says nothing of a layer.
func progress(layers map[string]*layer, id, status string, got, all int64) bool {
	l := layers[id]
	switch status {
	case "Pulling fs layer":
		layers[id] = &layer{}
		return true
	case "Downloading":
		if l != nil {
			l.got, l.all = got, max(all, 0)
		}
	case "Download complete", "Verifying Checksum":
		if l != nil {
			l.got = max(l.got, l.all)
		}
	case "Pull complete":
		if l != nil {
			l.done = true
		}
	case "Already exists":
		layers[id] = &layer{done: true}
		return true
	}
	return l != nil
}

// pulling says in words how far a pull is.
func pulling(layers map[string]*layer) string {
	done, got, all := 0, int64(0), int64(0)
	for _, l := range layers {
		if l.done {
			done++
		}
		got, all = got+l.got, all+l.all
	}
	words := fmt.Sprintf("pulling image: %d of %d layers", done, len(layers))
	if all > 0 {
		words += fmt.Sprintf(", %d of %d MB", got/1e6, (all+1e6-1)/1e6)
	}
	return words
}

// tagged splits an image's name; a name without a tag gets latest, since the
// engine would fetch all tags. False: it names a digest.
func tagged(name string) (repo, tag string, ok bool) {
	if strings.Contains(name, "@") {
		return "", "", false
	}
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i], name[i+1:], true
	}
	return name, "latest", true
}

// credentials are those that `docker login` left for the registry of an image,
// as the engine wants them; empty: none.
func credentials(image string) string {
	dir := os.Getenv("DOCKER_CONFIG")
	if dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		dir = filepath.Join(home, ".docker")
	}
	var config struct {
		Auths map[string]struct{ Auth string }
	}
	if !readJSON(filepath.Join(dir, "config.json"), &config) {
		return ""
	}
	// As Docker tells a registry from a user's name.
	registry, _, found := strings.Cut(image, "/")
	if !found || !strings.ContainsAny(registry, ".:") && registry != "localhost" {
		registry = "https://index.docker.io/v1/"
	}
	plain, err := base64.StdEncoding.DecodeString(config.Auths[registry].Auth)
	user, password, ok := strings.Cut(string(plain), ":")
	if err != nil || !ok {
		return ""
	}
	data, err := json.Marshal(map[string]string{"username": user, "password": password, "serveraddress": registry})
	if err != nil {
		return ""
	}
	return base64.URLEncoding.EncodeToString(data)
}

// containerSpec is what a container is made with.
type containerSpec struct {
	Image      string
	Entrypoint []string `json:",omitempty"`
	Cmd        []string `json:",omitempty"`
	Env        []string
	WorkingDir string
	Labels     map[string]string
	StopSignal string
	HostConfig hostConfig
}

type hostConfig struct {
	Binds          []string
	NetworkMode    string
	ShmSize        int64               `json:",omitempty"`
	Memory         int64               `json:",omitempty"`
	MemorySwap     int64               `json:",omitempty"`
	CPUShares      int64               `json:"CpuShares,omitempty"`
	PidsLimit      int64               `json:",omitempty"`
	Devices        []map[string]string `json:",omitempty"`
	DeviceRequests []deviceRequest     `json:",omitempty"`
	GroupAdd       []string            `json:",omitempty"`
	LogConfig      logConfig
}

type deviceRequest struct {
	Driver       string
	DeviceIDs    []string
	Capabilities [][]string
}

type logConfig struct {
	Type   string
	Config map[string]string
}

// containerState is how a container is.
type containerState struct {
	State struct {
		Running    bool
		OOMKilled  bool
		ExitCode   int
		Error      string
		StartedAt  time.Time
		FinishedAt time.Time
	}
}

func (d *docker) create(ctx context.Context, c *containerSpec) (string, error) {
	var made struct{ ID string }
	return made.ID, d.call(ctx, http.MethodPost, "/containers/create", c, &made)
}

func (d *docker) start(ctx context.Context, id string) error {
	return d.call(ctx, http.MethodPost, "/containers/"+id+"/start", nil, nil)
}

func (d *docker) inspect(ctx context.Context, id string) (containerState, error) {
	var s containerState
	return s, d.call(ctx, http.MethodGet, "/containers/"+id+"/json", nil, &s)
}

// wait returns when the container does not run.
func (d *docker) wait(ctx context.Context, id string) error {
	return d.call(ctx, http.MethodPost, "/containers/"+id+"/wait?condition=not-running", nil, nil)
}

func (d *docker) kill(ctx context.Context, id, signal string) error {
	return d.call(ctx, http.MethodPost, "/containers/"+id+"/kill?signal="+signal, nil, nil)
}

// remove deletes a container, and kills it before that if it runs.
func (d *docker) remove(ctx context.Context, id string) error {
	err := d.call(ctx, http.MethodDelete, "/containers/"+id+"?force=1&v=1", nil, nil)
	if refused(err) == http.StatusNotFound {
		return nil
	}
	return err
}

// labelled lists containers by a label: their ids, with the value of another.
func (d *docker) labelled(ctx context.Context, label, value, want string) (map[string]string, error) {
	filter, err := json.Marshal(map[string][]string{"label": {label + "=" + value}})
	if err != nil {
		return nil, err
	}
	var all []struct {
		ID     string
		Labels map[string]string
	}
	if err := d.call(ctx, http.MethodGet, "/containers/json?all=1&filters="+url.QueryEscape(string(filter)), nil, &all); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, c := range all {
		out[c.ID] = c.Labels[want]
	}
	return out, nil
}

// use gives what a container uses: seconds of CPU since it began, and bytes in
// memory without the page cache.
func (d *docker) use(ctx context.Context, id string) (cpu float64, memory int64, err error) {
	var s struct {
		CPU struct {
			Usage struct {
				Total float64 `json:"total_usage"` // nanoseconds
			} `json:"cpu_usage"`
		} `json:"cpu_stats"`
		Memory struct {
			Usage int64
			Stats map[string]int64
		} `json:"memory_stats"`
	}
	if err := d.call(ctx, http.MethodGet, "/containers/"+id+"/stats?stream=false&one-shot=true", nil, &s); err != nil {
		return 0, 0, err
	}
	cache := s.Memory.Stats["inactive_file"] // of cgroup 2
	if old, ok := s.Memory.Stats["total_inactive_file"]; ok {
		cache = old
	}
	return s.CPU.Usage.Total / 1e9, max(s.Memory.Usage-cache, 0), nil
}

// logs copies what a container has written from its beginning on, but for the
// first bytes, and follows until it ends.
func (d *docker) logs(ctx context.Context, id string, skip int64, w io.Writer) error {
	r, err := d.open(ctx, http.MethodGet, "/containers/"+id+"/logs?follow=1&stdout=1&stderr=1", nil, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		var head [8]byte // kind of stream, and the length of what follows
		if _, err := io.ReadFull(in, head[:]); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		n := int64(binary.BigEndian.Uint32(head[4:]))
		over := min(skip, n)
		if _, err := io.CopyN(io.Discard, in, over); err != nil {
			return err
		}
		skip -= over
		if _, err := io.CopyN(w, in, n-over); err != nil {
			return err
		}
	}
}

// command prepares a command in a running container and gives its id.
func (d *docker) command(ctx context.Context, container string, tty bool, env []string, dir string, command ...string) (string, error) {
	var made struct{ ID string }
	return made.ID, d.call(ctx, http.MethodPost, "/containers/"+container+"/exec", map[string]any{
		"AttachStdin": tty, "AttachStdout": true, "AttachStderr": true, "Tty": tty, "Cmd": command, "Env": env, "WorkingDir": dir}, &made)
}

// execute runs a command in a running container to its end, and gives its exit code.
func (d *docker) execute(ctx context.Context, container string, command ...string) (int, error) {
	id, err := d.command(ctx, container, false, nil, "/", command...)
	if err != nil {
		return 0, err
	}
	conn, out, err := d.hijack(ctx, "/exec/"+id+"/start", map[string]any{"Detach": false, "Tty": false})
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	_, _ = io.Copy(io.Discard, out)
	return d.ended(ctx, id)
}

// ended gives the exit code of a command in a container.
func (d *docker) ended(ctx context.Context, id string) (int, error) {
	var s struct{ ExitCode int }
	return s.ExitCode, d.call(ctx, http.MethodGet, "/exec/"+id+"/json", nil, &s)
}

func (d *docker) resize(ctx context.Context, id string, cols, rows int) error {
	return d.call(ctx, http.MethodPost, "/exec/"+id+"/resize?w="+strconv.Itoa(cols)+"&h="+strconv.Itoa(rows), nil, nil)
}

// engineFault says in words what an engine's refusal means for a task.
func engineFault(err error, image string) error {
	words := err.Error()
	switch lower := strings.ToLower(words); {
	case errors.Is(err, context.Canceled):
		return err
	case strings.Contains(lower, "no space left"):
		return fault.Wrap(fault.Internal, err, "the disk of the node is full").Hint("`docker system prune` makes room on the node")
	case strings.Contains(lower, "could not select device driver"), strings.Contains(lower, "nvidia-container-cli"), strings.Contains(lower, "unresolvable cdi"):
		return fault.Wrap(fault.Internal, err, "the container cannot get its GPUs").Hint("install nvidia-container-toolkit on the node and restart its container engine; `destajo doctor` there says more")
	case strings.Contains(lower, "no matching manifest"), strings.Contains(lower, "exec format error"):
		return fault.Wrap(fault.NotFound, err, "the image %s is not for this node's processor", image).Hint("name an image built for it, or another machine")
	case strings.Contains(lower, "denied"), strings.Contains(lower, "unauthorized"), strings.Contains(lower, "authentication required"), refused(err) == http.StatusUnauthorized, refused(err) == http.StatusForbidden:
		return fault.Wrap(fault.Denied, err, "the registry gives nobody here the image %s", image).Hint("check its name; for a private one run `docker login` on the node, as the user whom the agent runs as")
	case strings.Contains(lower, "not found"), strings.Contains(lower, "manifest unknown"), strings.Contains(lower, "invalid reference"), refused(err) == http.StatusNotFound:
		return fault.Wrap(fault.NotFound, err, "there is no image %s", image).Hint("check its name and tag")
	case refused(err) == 0:
		return fault.Wrap(fault.Unreachable, err, "the container engine does not answer").Hint("see that Docker or Podman runs on the node")
	}
	return fault.Wrap(fault.Unreachable, err, "the image %s", image).Hint("see that the node reaches the registry")
}
