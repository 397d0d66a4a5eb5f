// Package devices finds what of a machine an attempt can hold: its GPUs, by
// reading what nvidia-smi and amd-smi print, and its CPUs, memory, disk, limits
// and container engine. What the driver does not say stays unknown, and what
// the machine cannot do is said in words, with how to mend it.
package devices

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/machine"
)

// Finder looks at one machine. The zero value looks at this one; New gives one
// that also remembers a tool that hangs.
type Finder struct {
	// Run runs a tool and gives what it printed on standard output, also when
	// it failed. Its error wraps exec.ErrNotFound when there is no such tool,
	// and holds what was printed on standard error. Nil runs it here.
	Run func(ctx context.Context, name string, args ...string) ([]byte, error)
	// Timeout is for one run of a tool; 0 is 10 seconds.
	Timeout time.Duration
	// Root is what stands before /proc, /sys and the sockets; empty: nothing.
	Root string
}

// New gives a Finder for this machine. A tool that hangs in the kernel cannot
// even be killed: this Finder does not start it again before it ended.
func New() Finder { return Finder{Run: Exec()} }

// Found is what the drivers' tools said.
type Found struct {
	Driver   string // versions, such as 550.54.15 or amdgpu 6.10.5; empty: none
	CUDA     string // newest version that the NVIDIA driver can run
	Devices  []machine.Device
	Problems []string // each with how to mend it
}

// List finds all GPUs of the machine. That a tool is missing or fails is no
// error but a problem; the only error is ctx's.
func (f Finder) List(ctx context.Context) (Found, error) {
	out, _, err := f.list(ctx)
	return out, err
}

// list also gives the vendors whose tool is there, whatever it said.
func (f Finder) list(ctx context.Context) (Found, []string, error) {
	var out Found
	var there []string
	if n, ok := f.nvidia(ctx, &out.Problems); ok {
		there = append(there, "nvidia")
		out.Driver, out.CUDA, out.Devices = n.Driver, n.CUDA, n.Devices
		out.Problems = append(out.Problems, n.Problems...)
	}
	if a, ok := f.amd(ctx, &out.Problems); ok {
		there = append(there, "amd")
		if a.Driver != "" {
			out.Driver = strings.TrimPrefix(out.Driver+", "+a.Driver, ", ")
		}
		out.Devices = append(out.Devices, a.Devices...)
		out.Problems = append(out.Problems, a.Problems...)
	}
	if err := ctx.Err(); err != nil {
		return Found{}, nil, fault.Wrap(fault.Internal, err, "looking for GPUs")
	}
	return out, there, nil
}

// nvidia reads nvidia-smi, and asks it a second time for the UUIDs of MIG
// instances, which most drivers leave out of the long document. False: there
// is no nvidia-smi.
func (f Finder) nvidia(ctx context.Context, problems *[]string) (Nvidia, bool) {
	text, failed := f.run(ctx, "nvidia-smi", "-q", "-x")
	if errors.Is(failed, exec.ErrNotFound) {
		return Nvidia{}, false
	}
	n, err := ParseNvidia(text, nil)
	switch words := nvidiaWords(text, failed); {
	case words != "":
		*problems = append(*problems, words)
	case err != nil:
		*problems = append(*problems, "what nvidia-smi printed could not be read: "+err.Error()+"; run `nvidia-smi -q -x` and look for messages, or `sudo dmesg | grep -i nvrm`")
	}
	if !nameless(n.Devices) {
		return n, true
	}
	if list, err := f.run(ctx, "nvidia-smi", "-L"); err == nil {
		n, _ = ParseNvidia(text, list) // as before, with names
	}
	if nameless(n.Devices) {
		n.Problems = append(n.Problems, "MIG instances without UUID cannot be given to jobs: `nvidia-smi -L` did not name them; see that it runs and lists them")
	}
	return n, true
}

// nameless says whether a MIG instance lacks what only the short list has.
func nameless(all []machine.Device) bool {
	for _, d := range all {
		for _, m := range d.MIG {
			if m.UUID == "" || m.Profile == "" {
				return true
			}
		}
	}
	return false
}

// amd reads the three documents of amd-smi. False: there is no amd-smi.
func (f Finder) amd(ctx context.Context, problems *[]string) (AMD, bool) {
	var texts [3][]byte
	for i, verb := range []string{"list", "static", "metric"} {
		text, err := f.run(ctx, "amd-smi", verb, "--json")
		if errors.Is(err, exec.ErrNotFound) {
			return AMD{}, false
		}
		// amd-smi also prints a full document when some reading failed.
		if err != nil && !strings.ContainsAny(string(text), "[{") {
			*problems = append(*problems, amdWords(text, err))
			break
		}
		texts[i] = text
	}
	a, err := ParseAMD(texts[0], texts[1], texts[2])
	if err != nil {
		*problems = append(*problems, "what amd-smi printed could not be read: "+err.Error()+"; run `amd-smi static --json` and look for messages")
	}
	return a, true
}

// sampled are the fields that Use asks for, in the order in which it reads them.
const sampled = "index,uuid,name,memory.total,memory.used,utilization.gpu,power.draw,temperature.gpu,mig.mode.current"

// Use samples utilisation, memory, power and temperature: the devices it gives
// have those, index, UUID and vendor, the rest only by chance. It is cheaper than List. A machine without GPUs has none.
func (f Finder) Use(ctx context.Context) ([]machine.Device, error) {
	var out []machine.Device
	text, failed := f.run(ctx, "nvidia-smi", "--query-gpu="+sampled, "--format=csv,noheader,nounits")
	if !errors.Is(failed, exec.ErrNotFound) {
		all, err := parseSamples(text)
		if err != nil && !errors.Is(failed, context.DeadlineExceeded) {
			// An old driver does not know one of the fields.
			var long []byte
			if long, failed = f.run(ctx, "nvidia-smi", "-q", "-x"); failed == nil {
				var n Nvidia
				n, err = ParseNvidia(long, nil)
				all = n.Devices
			}
		}
		if err != nil && failed != nil {
			return nil, fault.New(fault.Internal, "no sample of the NVIDIA GPUs: %s", nvidiaWords(text, failed))
		}
		if err != nil {
			return nil, err
		}
		out = all
	}
	list, err := f.run(ctx, "amd-smi", "list", "--json")
	if errors.Is(err, exec.ErrNotFound) {
		return out, nil
	}
	metric, err := f.run(ctx, "amd-smi", "metric", "--json")
	if err != nil && !strings.ContainsAny(string(metric), "[{") {
		return out, fault.New(fault.Internal, "no sample of the AMD GPUs: %s", amdWords(metric, err))
	}
	a, err := ParseAMD(list, nil, metric)
	return append(out, a.Devices...), err
}

// parseSamples reads the lines of nvidia-smi's CSV.
func parseSamples(text []byte) ([]machine.Device, error) {
	var out []machine.Device
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.TrimSpace(line), ",")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if len(cells) != strings.Count(sampled, ",")+1 {
			continue
		}
		index, err := strconv.Atoi(cells[0])
		if err != nil || index < 0 {
			continue
		}
		d := machine.Device{
			Index: index, UUID: said(cells[1]), Vendor: "nvidia", Model: said(cells[2]),
			MemoryBytes: mebibytes(cells[3]), MemoryUsed: used(cells[4]),
			Utilization: percent(cells[5]), PowerWatts: watts(cells[6]), Temperature: celsius(cells[7]),
		}
		d.GPU = Identify(d.Vendor, d.Model, d.MemoryBytes)
		d.SharedMemory = shared(d, cells[3], cells[8])
		out = append(out, d)
	}
	if len(out) == 0 {
		return nil, fault.New(fault.Internal, "nvidia-smi printed no samples").Hint("run `nvidia-smi --query-gpu=%s --format=csv`", sampled)
	}
	return out, nil
}

// run runs a tool for no longer than the timeout.
func (f Finder) run(ctx context.Context, name string, args ...string) ([]byte, error) {
	do := f.Run
	if do == nil {
		do = Exec()
	}
	limit := f.Timeout
	if limit <= 0 {
		limit = 10 * time.Second
	}
	inner, cancel := context.WithTimeoutCause(ctx, limit, hung{name, limit})
	defer cancel()
	text, err := do(inner, name, args...)
	if err != nil && inner.Err() != nil && ctx.Err() == nil {
		err = context.Cause(inner)
	}
	return text, err
}

// hung is a tool that did not end in time.
type hung struct {
	name  string
	limit time.Duration
}

// Error says what to do about it.
func (h hung) Error() string {
	return h.name + " did not answer within " + h.limit.String() + ": the driver or a GPU hangs; see `sudo dmesg`, and restart the machine if it stays so"
}

// Unwrap makes it a timeout.
func (hung) Unwrap() error { return context.DeadlineExceeded }
