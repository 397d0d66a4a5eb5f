package devices

import "strings"

// nvidiaWords explains why nvidia-smi failed, or said no GPU; empty when
// neither is so.
func nvidiaWords(text []byte, failed error) string {
	all := outside(text)
	if failed != nil {
		all += " " + failed.Error()
	}
	low := strings.ToLower(all)
	for _, w := range []struct{ sign, words string }{
		{"did not answer within", ""},
		{"still hangs", ""},
		{"version mismatch", "the NVIDIA driver in the kernel and its library are of different versions, as after an update: restart the machine, or stop all that uses the GPUs and run `sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia`"},
		{"couldn't communicate with the nvidia driver", "the NVIDIA driver is installed but not loaded: `sudo modprobe nvidia`; if that fails, install the driver for the running kernel (`uname -r`), and sign its modules or turn off Secure Boot"},
		{"driver not loaded", "the NVIDIA driver is installed but not loaded: `sudo modprobe nvidia`; if that fails, install the driver for the running kernel (`uname -r`), and sign its modules or turn off Secure Boot"},
		{"couldn't find libnvidia-ml", "nvidia-smi finds no libnvidia-ml.so: install the driver's library package of the same version; in a container, start it with `--gpus all`"},
		{"nvml: gpu access blocked by the operating system", "the operating system blocks the GPU: in WSL, update Windows' NVIDIA driver and run `wsl --update`"},
		{"insufficient permissions", "this user may not open the NVIDIA devices: add it to the group of /dev/nvidia* (often video), then log in again"},
		{"failed to initialize nvml: unknown error", "the NVIDIA devices cannot be opened any more: in a container, restart it (systemd took them away; `--device` for each /dev/nvidia* avoids that); else restart the machine"},
		{"unable to determine the device handle", "a GPU is lost or does not answer: see `sudo dmesg | grep -i xid`, and restart the machine; if it comes back, check its seat, power and temperature"},
		{"gpu is lost", "a GPU is lost or does not answer: see `sudo dmesg | grep -i xid`, and restart the machine; if it comes back, check its seat, power and temperature"},
		{"requires reset", "a GPU asks for a reset: stop what uses it and run `sudo nvidia-smi --gpu-reset`, or restart the machine"},
		{"inforom is corrupted", "the infoROM of a GPU is corrupted: it computes, but the driver cannot read all of its settings; see `nvidia-smi -q`, and have it exchanged"},
		{"no devices were found", "the NVIDIA driver runs and finds no GPU that it can use: see `sudo dmesg | grep -i nvrm`; a newer GPU may need a newer driver or its open kernel modules"},
	} {
		if strings.Contains(low, w.sign) {
			if w.words == "" {
				return failed.Error()
			}
			return w.words
		}
	}
	if failed == nil {
		return ""
	}
	return "nvidia-smi failed: " + firstLines([]byte(strings.TrimSpace(all))) + "; run `nvidia-smi -q` and look for messages"
}

// outside gives the lines that are no part of the XML document.
func outside(text []byte) string {
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '<' && line != "None" && b.Len() < 4000 {
			b.WriteString(line + " ")
		}
	}
	return b.String()
}

// amdWords explains why amd-smi failed.
func amdWords(text []byte, failed error) string {
	all := string(text[:min(len(text), 4000)])
	if failed != nil {
		all += " " + failed.Error()
	}
	low := strings.ToLower(all)
	switch {
	case failed != nil && (strings.Contains(low, "did not answer within") || strings.Contains(low, "still hangs")):
		return failed.Error()
	case strings.Contains(low, "required group") || strings.Contains(low, "permission"):
		return "this user may not open the AMD devices: `sudo usermod -aG render,video $USER`, then log in again"
	case strings.Contains(low, "driver") && (strings.Contains(low, "not") || strings.Contains(low, "fail")):
		return "the amdgpu driver is not loaded: `sudo modprobe amdgpu`; if that fails, install amdgpu-dkms for the running kernel (`uname -r`)"
	}
	return "amd-smi failed: " + firstLines([]byte(strings.TrimSpace(all))) + "; run `amd-smi list` and look for messages"
}
