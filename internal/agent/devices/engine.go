package devices

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Engine is a container engine that answers.
type Engine struct {
	Name   string // docker, podman; empty: none
	Socket string // path of its socket
}

// Engine looks for Docker and Podman by their sockets. Without one the second
// value says why and how to mend it.
func (f Finder) Engine(ctx context.Context) (Engine, string) {
	problem := "jobs with an image cannot run here, as neither Docker nor Podman answers: install one (`sudo apt install docker.io`, or podman and `systemctl --user enable --now podman.socket`)"
	for _, socket := range f.sockets() {
		if _, err := os.Stat(socket); err != nil && !errors.Is(err, fs.ErrPermission) {
			continue
		}
		name, err := ping(ctx, socket)
		if err == nil {
			return Engine{Name: name, Socket: socket}, ""
		}
		guess := "docker"
		if strings.Contains(socket, "podman") {
			guess = "podman"
		}
		switch {
		case errors.Is(err, fs.ErrPermission) && guess == "docker":
			problem = "jobs with an image cannot run here, as this user may not open " + socket + ": `sudo usermod -aG docker $USER` (which is as good as root), then log in again; or use rootless Podman"
		case errors.Is(err, fs.ErrPermission):
			problem = "jobs with an image cannot run here, as this user may not open " + socket + ": `systemctl --user enable --now podman.socket` gives it one of its own"
		default:
			problem = "jobs with an image cannot run here, as " + guess + " does not answer at " + socket + " (" + firstLines([]byte(err.Error())) + "): `sudo systemctl restart " + guess + "`"
		}
	}
	return Engine{}, problem
}

// sockets gives where engines listen, the one that the user chose first.
func (f Finder) sockets() []string {
	var out []string
	if own, ok := strings.CutPrefix(os.Getenv("DOCKER_HOST"), "unix://"); ok && f.Root == "" {
		out = append(out, own)
	}
	out = append(out, f.path("/var/run/docker.sock"))
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" && f.Root == "" {
		out = append(out, filepath.Join(dir, "docker.sock"), filepath.Join(dir, "podman/podman.sock"))
	}
	return append(out, f.path("/run/podman/podman.sock"))
}

// ping asks an engine for its name. Podman also answers at Docker's socket.
func ping(ctx context.Context, socket string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://engine/_ping", nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", errors.New("it answers " + resp.Status)
	}
	if resp.Header.Get("Libpod-API-Version") != "" {
		return "podman", nil
	}
	return "docker", nil
}
