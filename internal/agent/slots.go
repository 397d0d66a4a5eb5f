package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/destajo/destajo/machine"
)

// slots is what the node has for tasks and what of it is taken.
type slots struct {
	cpus   float64
	memory int64
	units  []unit
	usedC  float64
	usedM  int64
}

// unit is a device, or an instance of one, that one task holds at a time.
type unit struct {
	uuid    string
	index   int
	vendor  string
	gpu     string // id of the card
	profile string // of a MIG instance
	taken   bool
}

// slot is what one task holds.
type slot struct {
	cpus    float64
	memory  int64
	devices []string
	locks   []*os.File
}

func newSlots(h *machine.Host) slots {
	s := slots{cpus: float64(h.CPUs), memory: h.MemoryBytes}
	for i := range h.Devices {
		d := &h.Devices[i]
		if len(d.MIG) == 0 {
			s.units = append(s.units, unit{uuid: named(d.UUID, d.Vendor, d.Index), index: d.Index, vendor: d.Vendor, gpu: d.GPU})
		}
		for _, m := range d.MIG {
			s.units = append(s.units, unit{uuid: m.UUID, index: d.Index, vendor: d.Vendor, gpu: d.GPU, profile: m.Profile})
		}
	}
	return s
}

// named is the device's UUID, or its number where the driver gives none.
func named(uuid, vendor string, index int) string {
	if uuid != "" {
		return uuid
	}
	return vendor + "-" + strconv.Itoa(index)
}

// take gives a task what it needs, beside what those ahead of it wait for; nil
// when it must wait, with a reason when waiting is no use.
func (s *slots) take(n, ahead *machine.Needs) (*slot, string) {
	const dust = 1e-9
	if n.CPUs > s.cpus+dust || s.memory > 0 && n.Memory > s.memory {
		return nil, fmt.Sprintf("it needs %v CPUs and %s of memory, the node has %v and %s", n.CPUs, amount(n.Memory), s.cpus, amount(s.memory))
	}
	fit := 0
	for i := range s.units {
		if s.units[i].fits(n) {
			fit++
		}
	}
	if n.GPUs > fit {
		return nil, fmt.Sprintf("it needs %d GPUs, the node has %d that fit", n.GPUs, fit)
	}
	if n.CPUs > 0 && s.usedC+ahead.CPUs+n.CPUs > s.cpus+dust || n.Memory > 0 && s.memory > 0 && s.usedM+ahead.Memory+n.Memory > s.memory {
		return nil, ""
	}
	out := &slot{cpus: n.CPUs, memory: n.Memory}
	spare := 0 // for those ahead
	for i := range s.units {
		u := &s.units[i]
		if n.GPUs == 0 || u.taken || !u.fits(n) {
			continue
		}
		lock := lockDevice(u.uuid)
		if lock == nil {
			continue // an agent of somebody else has it
		}
		if len(out.devices) == n.GPUs {
			_ = lock.Close()
			if spare++; spare == ahead.GPUs {
				break
			}
			continue
		}
		out.devices, out.locks = append(out.devices, u.uuid), append(out.locks, lock)
		if len(out.devices) == n.GPUs && ahead.GPUs == 0 {
			break
		}
	}
	if len(out.devices) < n.GPUs || n.GPUs > 0 && spare < ahead.GPUs {
		for _, f := range out.locks {
			_ = f.Close()
		}
		return nil, ""
	}
	s.hold(out)
	return out, ""
}

// hold marks what a slot holds as taken.
func (s *slots) hold(x *slot) {
	s.usedC, s.usedM = s.usedC+x.cpus, s.usedM+x.memory
	for i := range s.units {
		if slices.Contains(x.devices, s.units[i].uuid) {
			s.units[i].taken = true
		}
	}
}

func (u *unit) fits(n *machine.Needs) bool {
	return (n.GPU == "" || u.gpu == "" || u.gpu == n.GPU) && (n.Partition == "" || n.Partition == u.profile)
}

// retake is take for a task of a former life: the devices that it holds. Their
// locks are held by its processes, or else by us from now on.
func (s *slots) retake(n *machine.Needs, devices []string) *slot {
	out := &slot{cpus: n.CPUs, memory: n.Memory, devices: devices}
	for _, uuid := range devices {
		if lock := lockDevice(uuid); lock != nil {
			out.locks = append(out.locks, lock)
		}
	}
	s.hold(out)
	return out
}

// give takes back what a task held.
func (s *slots) give(x *slot) {
	s.usedC, s.usedM = max(0, s.usedC-x.cpus), max(0, s.usedM-x.memory)
	for i := range s.units {
		if slices.Contains(x.devices, s.units[i].uuid) {
			s.units[i].taken = false
		}
	}
	for _, f := range x.locks {
		_ = f.Close()
	}
}

// visible are the variables that show a task its devices and no others.
func (s *slots) visible(x *slot) []string {
	if len(s.units) == 0 {
		return nil
	}
	var nvidia, amd []string
	vendors := map[string]bool{}
	for i := range s.units {
		u := &s.units[i]
		vendors[u.vendor] = true
		if x == nil || !slices.Contains(x.devices, u.uuid) {
			continue
		}
		if u.vendor == "amd" {
			amd = append(amd, strconv.Itoa(u.index))
		} else {
			nvidia = append(nvidia, u.uuid)
		}
	}
	var out []string
	if vendors["nvidia"] {
		list := strings.Join(nvidia, ",")
		out = append(out, "CUDA_VISIBLE_DEVICES="+list)
		if list == "" {
			list = "void"
		}
		out = append(out, "NVIDIA_VISIBLE_DEVICES="+list)
	}
	if vendors["amd"] {
		list := strings.Join(amd, ",")
		out = append(out, "ROCR_VISIBLE_DEVICES="+list, "HIP_VISIBLE_DEVICES="+numbers(len(amd)))
	}
	return out
}

// numbers are 0,1,... : HIP counts what ROCr lets it see.
func numbers(n int) string {
	out := make([]string, n)
	for i := range out {
		out[i] = strconv.Itoa(i)
	}
	return strings.Join(out, ",")
}

// lockDevice takes a device for this host, so that two agents never hand out
// the same, whoever runs them; nil when another one has it.
func lockDevice(uuid string) *os.File {
	name := strings.Map(func(r rune) rune {
		if r == '/' || r == 0 {
			return '_'
		}
		return r
	}, uuid)
	dir := "/run/lock" // of all users, on every Linux; elsewhere /tmp is
	if i, err := os.Stat(dir); err != nil || i.Mode()&os.ModeSticky == 0 {
		dir = "/tmp"
	}
	path := filepath.Join(dir, "destajo-"+name)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o666); err == nil {
			_ = f.Chmod(0o666)
		}
	}
	if err != nil {
		return nil
	}
	if !lockFile(f) {
		_ = f.Close()
		return nil
	}
	return f
}

// amount is a number of bytes in words.
func amount(n int64) string {
	const gb = 1e9
	if n < gb {
		return strconv.FormatFloat(float64(n)/1e6, 'f', -1, 64) + " MB"
	}
	return strconv.FormatFloat(math.Round(float64(n)/gb*100)/100, 'f', -1, 64) + " GB"
}
