package devices_test

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/destajo/destajo/internal/agent/devices"
)

// tree writes files under a new root. The value of a path that ends in / is
// what a link to there points to.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	// Short, as a socket's path must be.
	root, err := os.MkdirTemp("", "dv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	for path, text := range files {
		full := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(path, "/") {
			err = os.Symlink(text, full)
		} else {
			err = os.WriteFile(full, []byte(text), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const meminfo = "MemTotal:       65536000 kB\nMemFree:        1000 kB\n"

func TestLimits(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no control groups")
	}
	for name, c := range map[string]struct {
		files  map[string]string
		memory int64
		cpus   int // 0: all
		limits string
	}{
		"none":      {map[string]string{"proc/meminfo": meminfo}, 65536000 << 10, 0, "rlimit"},
		"version 2": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "0::/a.slice/b.service\n", "sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids", "sys/fs/cgroup/a.slice/cpu.max": "150000 100000\n", "sys/fs/cgroup/a.slice/memory.max": "max", "sys/fs/cgroup/a.slice/b.service/memory.max": "1073741824\n", "sys/fs/cgroup/a.slice/b.service/cpu.max": "max 100000"}, 1 << 30, 1, "cgroup2"},
		// A container that sees the host's path and its own root.
		"version 1": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/docker/abc\n3:cpu,cpuacct:/docker/abc\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000", "sys/fs/cgroup/memory/memory.limit_in_bytes": "2147483648"}, 2 << 30, 1, "cgroup1"},
		"unlimited": {map[string]string{"proc/meminfo": meminfo, "proc/self/cgroup": "4:memory:/\n3:cpu:/\n0::/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000", "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712", "sys/fs/cgroup/unified/cgroup.controllers": ""}, 65536000 << 10, 0, "cgroup1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := tools(nil)
			f.Root = tree(t, c.files)
			h, err := f.Host(t.Context(), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if c.cpus == 0 {
				c.cpus = runtime.NumCPU()
			}
			if h.MemoryBytes != c.memory || h.CPUs != c.cpus || h.Limits != c.limits {
				t.Errorf("%d bytes, %d CPUs, %s; want %d, %d, %s", h.MemoryBytes, h.CPUs, h.Limits, c.memory, c.cpus, c.limits)
			}
			if h.Devices == nil || h.DiskFree <= 0 || h.OS != runtime.GOOS+"/"+runtime.GOARCH || h.Name == "" {
				t.Errorf("%+v", h)
			}
			if left, _ := filepath.Glob(f.Root + "/sys/fs/cgroup/*/destajo*"); len(left) > 0 {
				t.Errorf("left behind %v", left)
			}
		})
	}
}

func TestPCI(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files map[string]string
		said  map[string]string
		want  string // part of a problem; empty: none of GPUs
	}{
		"no driver":  {map[string]string{"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n"}, nil, "0000:01:00.0 and no driver"},
		"nouveau":    {map[string]string{"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n", "sys/bus/pci/devices/0000:01:00.0/driver/": "/drivers/nouveau"}, nil, "nouveau, which cannot compute"},
		"no tool":    {map[string]string{"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n", "proc/driver/nvidia/version": "x"}, nil, "nvidia-smi is not there"},
		"failing":    {map[string]string{"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n"}, map[string]string{"nvidia-smi": "!No devices were found"}, "finds no GPU"},
		"lent":       {map[string]string{"sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.0/class": "0x030200\n", "sys/bus/pci/devices/0000:01:00.0/driver/": "/drivers/vfio-pci"}, nil, ""},
		"sound card": {map[string]string{"sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n", "sys/bus/pci/devices/0000:01:00.1/class": "0x040300\n"}, nil, ""},
		"amd":        {map[string]string{"sys/bus/pci/devices/0000:05:00.0/vendor": "0x1002\n", "sys/bus/pci/devices/0000:05:00.0/class": "0x120000\n"}, nil, "amdgpu-dkms"},
		"jetson":     {map[string]string{"etc/nv_tegra_release": "# R35"}, nil, "JetPack"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := tools(c.said)
			f.Root = tree(t, c.files)
			h, err := f.Host(t.Context(), f.Root)
			if err != nil {
				t.Fatal(err)
			}
			all := strings.Join(h.Problems, "\n")
			if c.want != "" && strings.Count(all, c.want) != 1 {
				t.Errorf("%q is not in:\n%s", c.want, all)
			}
			if c.want == "" && strings.Contains(all, "GPU") {
				t.Errorf("problems of GPUs:\n%s", all)
			}
		})
	}
}

func TestEngine(t *testing.T) {
	t.Parallel()
	serve := func(root, socket string, handler http.HandlerFunc) {
		full := filepath.Join(root, socket)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", full)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: handler}
		go s.Serve(l)
		t.Cleanup(func() { s.Close() })
	}
	docker := func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("OK")) }
	podman := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Libpod-API-Version", "5.0.0")
		docker(w, r)
	}
	broken := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }

	for name, c := range map[string]struct {
		sockets map[string]http.HandlerFunc
		want    string
		problem string
	}{
		"none":               {nil, "", "install one"},
		"docker":             {map[string]http.HandlerFunc{"var/run/docker.sock": docker}, "docker", ""},
		"podman":             {map[string]http.HandlerFunc{"run/podman/podman.sock": podman}, "podman", ""},
		"podman as docker":   {map[string]http.HandlerFunc{"var/run/docker.sock": podman}, "podman", ""},
		"docker is broken":   {map[string]http.HandlerFunc{"var/run/docker.sock": broken}, "", "restart docker"},
		"broken, the other:": {map[string]http.HandlerFunc{"var/run/docker.sock": broken, "run/podman/podman.sock": podman}, "podman", ""},
	} {
		root := tree(t, nil)
		for socket, handler := range c.sockets {
			serve(root, socket, handler)
		}
		e, problem := devices.Finder{Root: root}.Engine(t.Context())
		if e.Name != c.want || !strings.Contains(problem, c.problem) || (problem == "") != (c.problem == "") {
			t.Errorf("%s: %+v, %q", name, e, problem)
		}
	}
}

// TestContainersWithoutToolkit says what containers need for GPUs.
func TestContainersWithoutToolkit(t *testing.T) {
	t.Parallel()
	root := tree(t, nil)
	if err := os.MkdirAll(filepath.Join(root, "var/run"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(root, "var/run/docker.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("OK")) })}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	f := tools(map[string]string{"nvidia-smi": document(t, "gh200-560.xml")})
	f.Root = root
	for _, has := range []bool{false, true} {
		if has {
			if err := os.MkdirAll(filepath.Join(root, "etc/cdi/nvidia.yaml"), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		h, err := f.Host(t.Context(), root)
		if err != nil || h.Containers != "docker" || h.Driver != "560.35.03" {
			t.Fatalf("%+v, %v", h, err)
		}
		if got := strings.Contains(strings.Join(h.Problems, "\n"), "nvidia-container-toolkit"); got == has {
			t.Errorf("toolkit %v: %q", has, h.Problems)
		}
	}
}
