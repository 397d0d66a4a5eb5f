package fake

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/internal/agent/devices"
)

// TestGPUs has the cards of a fake machine found by what finds them in agents.
func TestGPUs(t *testing.T) {
	t.Parallel()
	for _, m := range gpu.Models() {
		if m.Vendor != "nvidia" || m.Class == "integrated" {
			continue
		}
		dir := t.TempDir()
		if err := writeGPUs(dir, "plane-m1", &Sale{GPU: m.ID, GPUs: 2}); err != nil {
			t.Fatal(err)
		}
		doc, err := exec.Command(filepath.Join(dir, "nvidia-smi"), "-q", "-x").Output()
		if err != nil {
			t.Fatal(err)
		}
		list, err := exec.Command(filepath.Join(dir, "nvidia-smi"), "-L").Output()
		if err != nil {
			t.Fatal(err)
		}
		got, err := devices.ParseNvidia(doc, list)
		if err != nil || len(got.Devices) != 2 || len(got.Problems) > 0 {
			t.Fatalf("%s: %d cards, %v, %v", m.ID, len(got.Devices), got.Problems, err)
		}
		for _, d := range got.Devices {
			if d.GPU != m.ID || d.UUID == "" || d.UUID == got.Devices[1-d.Index].UUID {
				t.Errorf("%s is found as %q (%s), %s", m.ID, d.GPU, d.Model, d.UUID)
			}
		}
	}
}
