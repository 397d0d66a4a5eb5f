package devices

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/destajo/destajo/machine"
)

// Host gives what this machine is: all but Agent and Address, which its caller
// knows. Disk is free where dir is. CPUs and memory are what this process may
// use, by affinity and cgroup. What is unknown is 0 or empty. The only error is
// ctx's.
func (f Finder) Host(ctx context.Context, dir string) (machine.Host, error) {
	found, there, err := f.list(ctx)
	if err != nil {
		return machine.Host{}, err
	}
	h := machine.Host{
		OS: runtime.GOOS + "/" + runtime.GOARCH, Devices: found.Devices, Driver: found.Driver,
		CPUs: runtime.NumCPU(), Problems: found.Problems,
	}
	if h.Devices == nil {
		h.Devices = []machine.Device{}
	}
	h.Problems = append(h.Problems, f.pci(there)...)
	h.Name, _ = os.Hostname()

	groups := f.cgroups()
	if quota := groups.cpus(); quota > 0 && quota < float64(h.CPUs) {
		h.CPUs = max(1, int(quota)) // part of a CPU is none to give away
	}
	h.MemoryBytes = f.memory(ctx)
	if limit := groups.memory(); limit > 0 && (limit < h.MemoryBytes || h.MemoryBytes == 0) {
		h.MemoryBytes = limit
	}
	if h.MemoryBytes == 0 {
		h.Problems = append(h.Problems, "the machine's memory is unknown, so jobs that ask for memory cannot be placed on it: no /proc/meminfo; mount /proc")
	}
	if h.DiskFree, err = free(dir); err != nil {
		h.Problems = append(h.Problems, "the free disk of "+dir+" is unknown: "+err.Error()+"; make the directory or name another")
	} else if h.DiskFree < 1<<30 {
		h.Problems = append(h.Problems, "the disk of "+dir+" has less than 1 GiB free: jobs' files and logs will not fit; make room or name another directory")
	}
	var problem string
	if h.Limits, problem = groups.limits(); problem != "" {
		h.Problems = append(h.Problems, problem)
	}
	engine, problem := f.Engine(ctx)
	h.Containers = engine.Name
	if problem != "" {
		h.Problems = append(h.Problems, problem)
	}
	if engine.Name != "" && hasNvidia(h.Devices) && !f.toolkit() {
		h.Problems = append(h.Problems, "containers cannot use the NVIDIA GPUs: install nvidia-container-toolkit, then `sudo nvidia-ctk runtime configure --runtime="+engine.Name+"` and restart "+engine.Name)
	}
	return h, nil
}

func hasNvidia(all []machine.Device) bool {
	for _, d := range all {
		if d.Vendor == "nvidia" {
			return true
		}
	}
	return false
}

// path is a file of the machine.
func (f Finder) path(p string) string { return filepath.Join("/", f.Root, p) }

// memory is what the machine has, in bytes; 0 unknown.
func (f Finder) memory(ctx context.Context) int64 {
	text, err := os.ReadFile(f.path("/proc/meminfo"))
	if err == nil {
		for line := range strings.Lines(string(text)) {
			if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
				kb, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
				return max(kb, 0) << 10
			}
		}
		return 0
	}
	if runtime.GOOS == "darwin" && f.Root == "" {
		text, _ := f.run(ctx, "sysctl", "-n", "hw.memsize")
		n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return n
	}
	return 0
}

// pci finds GPUs that the machine has and no driver's tool named, and says
// what they lack, for the vendors whose tool is not there. Inside a container
// the bus shows all GPUs of the host, so counts are not compared.
func (f Finder) pci(there []string) []string {
	seen := map[string]bool{}
	for _, vendor := range there {
		seen[vendor] = true
	}
	var out []string
	dirs, _ := filepath.Glob(f.path("/sys/bus/pci/devices/*"))
	for _, dir := range dirs {
		class := word(dir, "class")
		// Displays, 3D controllers and processing accelerators.
		if !strings.HasPrefix(class, "0x03") && !strings.HasPrefix(class, "0x12") {
			continue
		}
		driver, _ := os.Readlink(filepath.Join(dir, "driver"))
		driver = filepath.Base(driver)
		address := filepath.Base(dir)
		switch vendor := word(dir, "vendor"); {
		case driver == "vfio-pci":
			continue // lent to a virtual machine
		case vendor == "0x10de" && !seen["nvidia"]:
			seen["nvidia"] = true
			switch {
			case driver == "nvidia" || f.exists("/proc/driver/nvidia/version"):
				out = append(out, "the NVIDIA driver runs ("+address+"), but nvidia-smi is not there: install the package of the same version that holds it (nvidia-utils or nvidia-driver-cuda), or put it into PATH")
			case driver == "nouveau":
				out = append(out, "the NVIDIA GPU at "+address+" runs with nouveau, which cannot compute: install NVIDIA's driver, which turns nouveau off, and restart the machine")
			default:
				out = append(out, "there is an NVIDIA GPU at "+address+" and no driver: install it (on Ubuntu `sudo ubuntu-drivers install --gpgpu`, else NVIDIA's package nvidia-open), and restart the machine; in a container, start it with `--gpus all`")
			}
		case vendor == "0x1002" && !seen["amd"]:
			seen["amd"] = true
			what := "install the package amd-smi-lib of ROCm"
			if driver != "amdgpu" {
				what = "install amdgpu-dkms and amd-smi-lib of ROCm, and restart the machine"
			}
			out = append(out, "there is an AMD GPU at "+address+" that jobs cannot use, as amd-smi is not there: "+what)
		}
	}
	if !seen["nvidia"] && f.exists("/etc/nv_tegra_release") {
		out = append(out, "this Jetson's GPU is not listed, as nvidia-smi is not there: it comes with JetPack 6 and later (package nvidia-l4t-nvml)")
	}
	return out
}

// toolkit says whether containers can be given NVIDIA GPUs.
func (f Finder) toolkit() bool {
	for _, p := range []string{"/usr/bin/nvidia-container-runtime", "/usr/local/bin/nvidia-container-runtime", "/usr/bin/nvidia-container-cli", "/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-container-runtime"} {
		if f.exists(p) {
			return true
		}
	}
	for _, p := range []string{"/etc/cdi/*nvidia*", "/var/run/cdi/*nvidia*"} {
		if all, _ := filepath.Glob(f.path(p)); len(all) > 0 {
			return true
		}
	}
	return false
}

func (f Finder) exists(p string) bool {
	_, err := os.Stat(f.path(p))
	return err == nil
}

// word reads a file of one word; empty when it cannot be read.
func word(dir, name string) string {
	text, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(text))
}
