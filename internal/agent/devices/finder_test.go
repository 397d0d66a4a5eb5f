package devices_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/destajo/destajo/internal/agent/devices"
	"github.com/destajo/destajo/internal/agent/devices/devicestest"
)

// tools gives a Finder whose tools print what the map says for a command line;
// a value that begins with ! is an error's words. Other tools are not there.
func tools(said map[string]string) devices.Finder {
	return devices.Finder{Run: func(_ context.Context, name string, args ...string) ([]byte, error) {
		text, ok := said[strings.Join(append([]string{name}, args...), " ")]
		if !ok {
			if text, ok = said[name]; !ok {
				return nil, &exec.Error{Name: name, Err: exec.ErrNotFound}
			}
		}
		if words, fails := strings.CutPrefix(text, "!"); fails {
			return []byte(words), errors.New("exit status 9")
		}
		return []byte(text), nil
	}}
}

func document(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestProblems(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		said map[string]string
		gpus int
		want []string // parts of the problems, in order
	}{
		"nothing":     {},
		"mismatch":    {map[string]string{"nvidia-smi": "!Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.54"}, 0, []string{"restart the machine"}},
		"not loaded":  {map[string]string{"nvidia-smi": "!NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."}, 0, []string{"modprobe nvidia"}},
		"none":        {map[string]string{"nvidia-smi": "!No devices were found"}, 0, []string{"finds no GPU"}},
		"none, calm":  {map[string]string{"nvidia-smi": "No devices were found"}, 0, []string{"finds no GPU"}},
		"container":   {map[string]string{"nvidia-smi": "!Failed to initialize NVML: Unknown Error"}, 0, []string{"restart it"}},
		"permissions": {map[string]string{"nvidia-smi": "!Failed to initialize NVML: Insufficient Permissions"}, 0, []string{"group"}},
		"other":       {map[string]string{"nvidia-smi": "!Segmentation fault"}, 0, []string{"nvidia-smi failed: Segmentation fault"}},
		"garbage":     {map[string]string{"nvidia-smi": "\xff\xfe"}, 0, []string{"could not be read"}},
		"lost":        {map[string]string{"nvidia-smi": "!" + document(t, "lost-550.txt")}, 1, []string{"a GPU is lost", "MIG mode without"}},
		"lost, calm":  {map[string]string{"nvidia-smi": document(t, "lost-550.txt")}, 1, []string{"a GPU is lost", "MIG mode without"}},
		"cut off":     {map[string]string{"nvidia-smi": document(t, "gh200-560.xml")[:900]}, 0, []string{"breaks off after 0 GPUs"}},
		"no list": {map[string]string{"nvidia-smi -q -x": document(t, "a100-mig-470.xml"), "nvidia-smi": "!what?"}, 2,
			[]string{"without UUID"}},
		"always the same": {map[string]string{"nvidia-smi": document(t, "a100-mig-470.xml")}, 2, []string{"without UUID"}},
		"amd groups":      {map[string]string{"amd-smi": "!User is missing the following required groups: video, render"}, 0, []string{"usermod"}},
		"amd driver":      {map[string]string{"amd-smi": "!AMDSMI_STATUS_NOT_INIT - Driver not loaded"}, 0, []string{"modprobe amdgpu"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, err := tools(c.said).List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(found.Devices) != c.gpus {
				t.Errorf("%d GPUs, want %d", len(found.Devices), c.gpus)
			}
			if len(found.Problems) != len(c.want) {
				t.Fatalf("problems %q, want %q", found.Problems, c.want)
			}
			for i, part := range c.want {
				if !strings.Contains(found.Problems[i], part) {
					t.Errorf("problem %q does not say %q", found.Problems[i], part)
				}
			}
		})
	}
}

// TestBoth lists GPUs of both makers, and their MIG instances by name.
func TestBoth(t *testing.T) {
	t.Parallel()
	f := tools(map[string]string{
		"nvidia-smi -q -x": document(t, "a100-mig-470.xml"), "nvidia-smi -L": document(t, "a100-mig-470.list"), "nvidia-smi": "!",
		"amd-smi list --json":   "WARNING: User is not in group render\n" + document(t, "mi300x-rocm6.list.json"),
		"amd-smi static --json": document(t, "mi300x-rocm6.static.json"),
		"amd-smi metric --json": "!" + document(t, "mi300x-rocm6.metric.json"),
	})
	found, err := f.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range found.Devices {
		got = append(got, d.GPU)
		for _, m := range d.MIG {
			got = append(got, m.Profile)
		}
	}
	if d := cmp.Diff([]string{"a100-sxm-80", "3g.40gb", "2g.20gb", "1g.10gb", "a100-sxm-80", "mi300x", "mi300x"}, got); d != "" {
		t.Error(d)
	}
	if found.Driver != "470.182.03, amdgpu 6.8.5" || found.CUDA != "11.4" || len(found.Problems) > 0 {
		t.Errorf("%q %q %q", found.Driver, found.CUDA, found.Problems)
	}

	samples, err := f.Use(t.Context())
	if err != nil || len(samples) != 4 || samples[3].UUID != found.Devices[3].UUID || *samples[3].Utilization != 93 {
		t.Errorf("samples %+v, %v", samples, err)
	}
}

func TestUse(t *testing.T) {
	t.Parallel()
	const query = "nvidia-smi --query-gpu=index,uuid,name,memory.total,memory.used,utilization.gpu,power.draw,temperature.gpu,mig.mode.current --format=csv,noheader,nounits"
	f := tools(map[string]string{query: "0, GPU-a, NVIDIA H200, 143771, 512, 37, 301.55, 51, Disabled\n1, GPU-b, NVIDIA GB10, [N/A], [N/A], 0, 4.02, 36, [N/A]\n2, GPU-c, NVIDIA A30, [N/A], [N/A], [N/A], [Unknown Error], ERR!, Enabled\n"})
	got, err := f.Use(t.Context())
	if err != nil || len(got) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	if d := got[0]; *d.MemoryBytes != 143771<<20 || *d.MemoryUsed != 512<<20 || *d.Utilization != 37 || *d.PowerWatts != 301.55 || *d.Temperature != 51 || d.GPU != "h200-sxm" || d.SharedMemory {
		t.Errorf("%+v", d)
	}
	if d := got[1]; d.MemoryBytes != nil || d.MemoryUsed != nil || !d.SharedMemory || *d.Utilization != 0 {
		t.Errorf("%+v", d)
	}
	if d := got[2]; d.MemoryBytes != nil || d.SharedMemory || d.Utilization != nil || d.PowerWatts != nil || d.Temperature != nil {
		t.Errorf("%+v", d)
	}

	// An old driver does not know a field.
	f = tools(map[string]string{"nvidia-smi -q -x": document(t, "v100-418.xml"), "nvidia-smi": "!Field \"mig.mode.current\" is not a valid field to query."})
	if got, err := f.Use(t.Context()); err != nil || len(got) != 2 || *got[1].Utilization != 97 {
		t.Errorf("%+v, %v", got, err)
	}
	if got, err := tools(nil).Use(t.Context()); err != nil || len(got) > 0 {
		t.Errorf("no GPUs: %+v, %v", got, err)
	}
	if _, err := tools(map[string]string{"nvidia-smi": "!GPU is lost"}).Use(t.Context()); err == nil || !strings.Contains(err.Error(), "lost") {
		t.Errorf("a lost GPU: %v", err)
	}
}

// TestTools runs real scripts from PATH.
func TestTools(t *testing.T) {
	dir := devicestest.FakeNvidiaSMI(t, t.TempDir(), []byte(document(t, "a100-mig-470.xml")), []byte(document(t, "a100-mig-470.list")))
	path := os.Getenv("PATH")
	t.Setenv("PATH", dir+":"+path)
	f := devices.New()
	found, err := f.List(t.Context())
	if err != nil || len(found.Devices) != 2 || found.Devices[0].MIG[2].Profile != "1g.10gb" {
		t.Fatalf("%+v, %v", found, err)
	}
	if got, err := f.Use(t.Context()); err != nil || len(got) != 2 {
		t.Errorf("%+v, %v", got, err)
	}

	// What it prints on standard error counts too.
	devicestest.FakeTool(t, dir, "nvidia-smi", `echo "Failed to initialize NVML: Driver/library version mismatch" >&2; exit 18`)
	if found, err := f.List(t.Context()); err != nil || len(found.Problems) != 1 || !strings.Contains(found.Problems[0], "different versions") {
		t.Errorf("%+v, %v", found, err)
	}

	// No end of output is no end of memory.
	devicestest.FakeTool(t, dir, "nvidia-smi", `exec yes "<nvidia_smi_log"`)
	f.Timeout = 300 * time.Millisecond
	if found, err := f.List(t.Context()); err != nil || len(found.Problems) != 1 {
		t.Errorf("%+v, %v", found, err)
	}

	devicestest.FakeTool(t, dir, "nvidia-smi", `exec sleep 60`)
	start := time.Now()
	found, err = f.List(t.Context())
	if err != nil || len(found.Problems) != 1 || !strings.Contains(found.Problems[0], "did not answer within 300ms") {
		t.Errorf("a hang: %+v, %v", found, err)
	}
	if took := time.Since(start); took > 2*time.Second {
		t.Errorf("a hang took %v", took)
	}
	if _, err := f.Use(t.Context()); err == nil || !strings.Contains(err.Error(), "did not answer") {
		t.Errorf("a hang: %v", err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.List(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestThreeHosts gives three finders three machines by folders, as three hosts
// behind SSH have them.
func TestThreeHosts(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"rtx4090-535", "a100-mig-450", "gb10-580"} {
		list, _ := os.ReadFile("testdata/" + name + ".list")
		dir := devicestest.FakeNvidiaSMI(t, t.TempDir(), []byte(document(t, name+".xml")), list)
		f := devices.Finder{Run: func(ctx context.Context, name string, args ...string) ([]byte, error) {
			if name != "nvidia-smi" {
				return nil, fmt.Errorf("%s: %w", name, exec.ErrNotFound)
			}
			return exec.CommandContext(ctx, dir+"/"+name, args...).Output()
		}}
		found, err := f.List(t.Context())
		if err != nil || len(found.Devices) != 1 {
			t.Fatalf("%s: %+v, %v", name, found, err)
		}
		if want := []string{"rtx-4090", "a100-sxm-40", "gb10"}[i]; found.Devices[0].GPU != want {
			t.Errorf("%s is %q", name, found.Devices[0].GPU)
		}
	}
}
