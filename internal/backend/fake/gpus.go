package fake

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
)

// writeGPUs puts an nvidia-smi into dir that knows the cards of a machine, so
// that an agent on this host finds them as it would on the real one. A machine
// without cards gets one that finds none, whatever this host has.
func writeGPUs(dir, tag string, sale *Sale) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.Wrap(fault.Internal, err, "the machine's folder cannot be made")
	}
	m, err := sale.model()
	if err != nil {
		return err
	}
	script := "#!/bin/sh\necho 'No devices were found'\nexit 6\n"
	if m != nil && m.Vendor == "nvidia" {
		var doc, list strings.Builder
		n, name := max(1, sale.GPUs), smiName(m)
		fmt.Fprintf(&doc, "<?xml version=\"1.0\" ?>\n<nvidia_smi_log>\n<driver_version>580.95.05</driver_version>\n<cuda_version>13.0</cuda_version>\n<attached_gpus>%d</attached_gpus>\n", n)
		for i := range n {
			sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", tag, i))
			uuid := fmt.Sprintf("GPU-%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
			fmt.Fprintf(&doc, "<gpu id=\"00000000:%02X:00.0\"><product_name>%s</product_name><uuid>%s</uuid><minor_number>%d</minor_number>"+
				"<mig_mode><current_mig>N/A</current_mig><pending_mig>N/A</pending_mig></mig_mode>"+
				"<fb_memory_usage><total>%.0f MiB</total><used>1 MiB</used></fb_memory_usage><utilization><gpu_util>50 %%</gpu_util></utilization>"+
				"<temperature><gpu_temp>40 C</gpu_temp></temperature><gpu_power_readings><power_draw>%.2f W</power_draw></gpu_power_readings></gpu>\n",
				i+1, name, uuid, i, m.MemoryGB*1000*1000*1000/1024/1024, m.Watts/2)
			fmt.Fprintf(&list, "GPU %d: %s (UUID: %s)\n", i, name, uuid)
		}
		doc.WriteString("</nvidia_smi_log>\n")
		script = "#!/bin/sh\ncase \"$*\" in\n\"-q -x\"|\"-x -q\") cat <<'EOF'\n" + doc.String() + "EOF\n;;\n-L) cat <<'EOF'\n" + list.String() + "EOF\n;;\n*) exit 2;;\nesac\n"
	}
	path := filepath.Join(dir, "nvidia-smi")
	if err := os.WriteFile(path+".new", []byte(script), 0o700); err != nil {
		return fault.Wrap(fault.Internal, err, "the machine's tools cannot be written")
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fault.Wrap(fault.Internal, err, "the machine's tools cannot be written")
	}
	return nil
}

// smiName is what a driver calls a card: its title, or its name where the title
// fits several cards.
func smiName(m *gpu.Model) string {
	title := "NVIDIA " + strings.TrimPrefix(m.Title, "NVIDIA ")
	if found, err := gpu.Resolve(title, m.MemoryGB, title); err == nil && found == m {
		return title
	}
	return "NVIDIA " + m.Name
}
