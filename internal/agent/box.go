package agent

import (
	"context"
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/job"
)

// Where a container finds what is ours.
const (
	boxWork = "/work"    // the task's folder
	boxOurs = "/destajo" // notice, log and command
)

// Labels of our containers.
const (
	labelHome = "destajo.home" // folder of the agent
	labelTask = "destajo.task"
)

// pidsMost is how many processes and threads a container may have: a fork bomb
// must not take the node with it.
const pidsMost = 32768

// prepared are images known by a short name: those that their makers tell to
// run in the README of PyTorch, at docs.nvidia.com/jax-toolbox, in vLLM's
// docs/deployment/docker.md and the README of Unsloth (read 2026-12-01).
var prepared = map[string]string{
	"pytorch": "docker.io/pytorch/pytorch:latest",
	"jax":     "ghcr.io/nvidia/jax:jax",
	"vllm":    "docker.io/vllm/vllm-openai:latest",
	"unsloth": "docker.io/unsloth/unsloth:latest",
}

func imageName(name string) string {
	if full, ok := prepared[name]; ok {
		return full
	}
	return name
}

// shelled says that a shell runs around the container's command.
func (t *task) shelled() bool {
	return t.spec.Run != "" || t.spec.Setup != "" || t.spec.Kind == string(job.Notebook)
}

// furnish writes what the container finds of ours.
func (e *engine) furnish(t *task, text string) error {
	if err := os.MkdirAll(filepath.Join(t.dir, "box"), 0o755); err != nil {
		return err
	}
	for _, name := range []string{"log", "box/log"} { // the second is where the first is mounted
		f, err := os.OpenFile(filepath.Join(t.dir, name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_ = f.Close()
	}
	// The image's user need not be ours; nobody else gets as far as here.
	for name, mode := range map[string]os.FileMode{"work": 0o777, "keep": 0o777, "log": 0o666} {
		if err := os.Chmod(filepath.Join(t.dir, name), mode); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	switch {
	case text != "":
	case t.spec.Kind == string(job.Notebook): // it is entered, and ends when it is stopped
		text = "while :; do sleep 3600; done"
	default: // the image's own command
		text = `exec "$@"`
	}
	return os.WriteFile(filepath.Join(t.dir, "box", "command"), []byte(text+"\n"), 0o644)
}

// boxed is the first process of a container: a shell that does not get the
// signals for the command, so that it lives on to say how that ended.
const boxed = `exec >>` + boxOurs + `/log 2>&1; /bin/sh ` + boxOurs + `/command "$@"; exit $?`

// spec is what the task's container is made with.
func (e *engine) spec(ctx context.Context, d *docker, t *task) (*containerSpec, error) {
	image, err := d.image(ctx, imageName(t.spec.Image))
	if err != nil {
		return nil, err
	}
	work := filepath.Join(t.dir, "work")
	c := &containerSpec{
		Image: imageName(t.spec.Image), WorkingDir: boxWork, Env: t.boxEnvironment(), StopSignal: "SIGTERM",
		Labels: map[string]string{labelHome: e.agent.c.Home, labelTask: t.spec.ID},
		HostConfig: hostConfig{
			Binds:       []string{work + ":" + boxWork, filepath.Join(t.dir, "box") + ":" + boxOurs + ":ro", filepath.Join(t.dir, "log") + ":" + boxOurs + "/log"},
			NetworkMode: "host", PidsLimit: pidsMost,
			// As on a host, half the memory: the 64 MB that an engine gives are too
			// few for those who load training data in several processes.
			ShmSize: e.agent.host.MemoryBytes / 2,
			Memory:  t.spec.Needs.Memory, MemorySwap: t.spec.Needs.Memory, CPUShares: int64(1024 * t.spec.Needs.CPUs),
		},
	}
	if d.podman {
		c.HostConfig.LogConfig = logConfig{Type: "k8s-file"}
	} else { // keeps bytes as they are, and all of them: never rotated
		c.HostConfig.LogConfig = logConfig{"local", map[string]string{"max-size": "1p", "max-file": "1", "compress": "false"}}
	}
	if t.shelled() {
		c.Entrypoint = []string{"/bin/sh", "-c", boxed, "destajo"}
		c.Cmd = slices.Concat(image.Config.Entrypoint, image.Config.Cmd)
		c.HostConfig.LogConfig = logConfig{Type: "none"}
	}
	if path.IsAbs(t.spec.KeepDir) {
		c.HostConfig.Binds = append(c.HostConfig.Binds, t.keepDir()+":"+t.boxKeep())
	}
	home := "/root"
	for _, v := range image.Config.Env {
		if h, ok := strings.CutPrefix(v, "HOME="); ok {
			home = h
		}
	}
	root, err := os.OpenRoot(work)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	for _, m := range t.spec.Mounts {
		if _, err := root.Stat(filepath.FromSlash(m.Bundle)); err != nil { // it, or a link in it, may lead out of there
			return nil, fault.Wrap(fault.Invalid, err, "the mount %s is not of the files that were sent", m.Bundle)
		}
		to := m.To
		if rest, ok := strings.CutPrefix(to, "~"); ok {
			to = home + rest
		}
		if !path.IsAbs(to) {
			to = path.Join(boxWork, to)
		}
		c.HostConfig.Binds = append(c.HostConfig.Binds, filepath.Join(work, filepath.FromSlash(m.Bundle))+":"+path.Clean(to))
	}
	e.devices(d, t, c)
	return c, nil
}

// devices gives the container the GPUs that the task holds.
func (e *engine) devices(d *docker, t *task, c *containerSpec) {
	e.agent.mu.Lock()
	defer e.agent.mu.Unlock()
	var nvidia []string
	amd := false
	for i := range e.agent.slots.units {
		u := &e.agent.slots.units[i]
		if t.held == nil || !slices.Contains(t.held.devices, u.uuid) {
			continue
		}
		switch {
		case u.vendor == "amd":
			amd = true
		case u.uuid == named("", u.vendor, u.index): // the driver gave it no name
			nvidia = append(nvidia, strconv.Itoa(u.index))
		default:
			nvidia = append(nvidia, u.uuid)
		}
	}
	if len(nvidia) > 0 {
		request := deviceRequest{Driver: "nvidia", DeviceIDs: nvidia, Capabilities: [][]string{{"gpu"}}}
		if d.podman { // which knows GPUs by their CDI names only
			request = deviceRequest{Driver: "cdi"}
			for _, id := range nvidia {
				request.DeviceIDs = append(request.DeviceIDs, "nvidia.com/gpu="+id)
			}
		}
		c.HostConfig.DeviceRequests = []deviceRequest{request}
	}
	if amd { // which of them it may use, the variables say
		for _, dev := range []string{"/dev/kfd", "/dev/dri"} {
			c.HostConfig.Devices = append(c.HostConfig.Devices, map[string]string{"PathOnHost": dev, "PathInContainer": dev, "CgroupPermissions": "rwm"})
		}
		c.HostConfig.GroupAdd = []string{"video"}
	}
}

// boxEnvironment is what a process in the container sees beside what its image sets.
func (t *task) boxEnvironment() []string {
	var env []string
	for name, v := range t.spec.Env {
		env = append(env, name+"="+v)
	}
	t.agent.mu.Lock()
	defer t.agent.mu.Unlock()
	return append(env, t.surroundings(boxOurs+"/notice", boxWork, t.boxKeep())...)
}

// boxKeep is where the container finds the checkpoint folder.
func (t *task) boxKeep() string {
	if path.IsAbs(t.spec.KeepDir) {
		return path.Clean(t.spec.KeepDir)
	}
	return path.Join(boxWork, t.spec.KeepDir)
}
