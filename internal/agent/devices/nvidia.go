package devices

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/machine"
)

// Nvidia is what nvidia-smi's documents say.
type Nvidia struct {
	Driver   string
	CUDA     string // newest version that the driver can run
	Devices  []machine.Device
	Problems []string // each with how to mend it
}

// ParseNvidia reads `nvidia-smi -q -x` of any driver since 418, and completes
// MIG instances by what `nvidia-smi -L` printed (nil: it was not asked). Text
// around the document is passed over. A document that breaks off gives the
// GPUs before the break and an error.
func ParseNvidia(document, list []byte) (Nvidia, error) {
	var out Nvidia
	start := bytes.Index(document, []byte("<nvidia_smi_log"))
	if start < 0 {
		return out, fault.New(fault.Invalid, "no <nvidia_smi_log> in what nvidia-smi printed: %q", firstLines(document))
	}
	listed := ParseNvidiaList(list)
	d := xml.NewDecoder(bytes.NewReader(document[start:]))
	d.Strict = false
	d.CharsetReader = func(_ string, r io.Reader) (io.Reader, error) { return r, nil }
	attached := 0
	for depth := 0; ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) && depth > 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return out, fault.Wrap(fault.Invalid, err, "the document breaks off after %d GPUs", len(out.Devices))
		}
		if err != nil {
			break
		}
		switch t := token.(type) {
		case xml.EndElement:
			depth--
		case xml.StartElement:
			if depth == 0 {
				depth++
				continue
			}
			var text string
			switch t.Name.Local {
			case "gpu":
				var g smiGPU
				if err = d.DecodeElement(&g, &t); err == nil {
					out.add(g, listed)
				}
			case "driver_version":
				err = d.DecodeElement(&text, &t)
				out.Driver = said(text)
			case "cuda_version":
				err = d.DecodeElement(&text, &t)
				out.CUDA = said(text)
			case "attached_gpus":
				err = d.DecodeElement(&text, &t)
				attached, _ = strconv.Atoi(said(text))
			default:
				err = d.Skip()
			}
			if err != nil {
				return out, fault.Wrap(fault.Invalid, err, "the document breaks off after %d GPUs", len(out.Devices))
			}
		}
		if depth == 0 {
			break
		}
	}
	if attached > len(out.Devices) && attached < 1000 {
		out.Problems = append(out.Problems, fmt.Sprintf("the driver knows %d GPUs and describes %d: one is lost or hangs; see `sudo dmesg | grep -i xid`, and restart the machine", attached, len(out.Devices)))
	}
	return out, nil
}

// smiGPU is one <gpu>, with the names that elements had over the years.
type smiGPU struct {
	Name        string `xml:"product_name"`
	UUID        string `xml:"uuid"`
	Persistence string `xml:"persistence_mode"`
	ComputeMode string `xml:"compute_mode"`
	MIGMode     struct {
		Current string `xml:"current_mig"`
		Pending string `xml:"pending_mig"`
	} `xml:"mig_mode"`
	MIG    []smiMIG `xml:"mig_devices>mig_device"`
	Memory smiTotal `xml:"fb_memory_usage"`
	Use    struct {
		GPU string `xml:"gpu_util"`
	} `xml:"utilization"`
	Temperature struct {
		GPU string `xml:"gpu_temp"`
	} `xml:"temperature"`
	Power     smiPower `xml:"gpu_power_readings"` // since 530
	OldPower  smiPower `xml:"power_readings"`
	Processes *struct {
		All []struct {
			PID  string `xml:"pid"`
			Type string `xml:"type"`
		} `xml:"process_info"`
	} `xml:"processes"`
	RowFailure string `xml:"remapped_rows>remapped_row_failure"`
	Reset      struct {
		Required string `xml:"reset_required"`
	} `xml:"gpu_reset_status"`
	Recovery string `xml:"gpu_recovery_action"` // since 565
}

type smiTotal struct {
	Total string `xml:"total"`
	Used  string `xml:"used"`
}

type smiPower struct {
	Draw    string `xml:"power_draw"`
	Average string `xml:"average_power_draw"` // since 560
	Instant string `xml:"instant_power_draw"`
}

type smiMIG struct {
	Index    string   `xml:"index"`
	UUID     string   `xml:"uuid"` // few drivers
	Instance string   `xml:"gpu_instance_id"`
	Compute  string   `xml:"compute_instance_id"`
	Memory   smiTotal `xml:"fb_memory_usage"`
}

// add takes one GPU of the document.
func (n *Nvidia) add(g smiGPU, listed []Listed) {
	d := machine.Device{
		Index: len(n.Devices), UUID: said(g.UUID), Vendor: "nvidia", Model: said(g.Name),
		MemoryBytes: mebibytes(g.Memory.Total), MemoryUsed: used(g.Memory.Used),
		Utilization: percent(g.Use.GPU), Temperature: celsius(g.Temperature.GPU), PowerWatts: g.watts(),
		MIG: []machine.MIG{},
	}
	d.GPU = Identify(d.Vendor, d.Model, d.MemoryBytes)
	d.SharedMemory = shared(d, g.Memory.Total, g.MIGMode.Current)
	if g.Processes != nil {
		d.Processes = []int{}
		for _, p := range g.Processes.All {
			// A display's processes (type G) do not compute.
			if pid, err := strconv.Atoi(said(p.PID)); err == nil && pid > 0 && strings.TrimSpace(p.Type) != "G" {
				d.Processes = append(d.Processes, pid)
			}
		}
	}
	l, known := of(listed, d.UUID)
	if known {
		d.Index = l.Index
	}
	d.MIG = instances(g.MIG, l.MIG)
	n.Devices = append(n.Devices, d)
	n.Problems = append(n.Problems, g.problems(d)...)
}

// watts gives the power drawn; the average over a second is what the driver's
// own table shows where there are two readings.
func (g smiGPU) watts() *float64 {
	for _, p := range []smiPower{g.Power, g.OldPower} {
		for _, text := range []string{p.Draw, p.Average, p.Instant} {
			if w := watts(text); w != nil {
				return w
			}
		}
	}
	return nil
}

// of finds the GPU of a UUID.
func of(all []Listed, uuid string) (Listed, bool) {
	for _, l := range all {
		if l.UUID != "" && l.UUID == uuid {
			return l, true
		}
	}
	return Listed{}, false
}

// instances puts the document's MIG instances, which have memory, to those of
// the list, which have UUID and profile. Before driver 470 a UUID held the
// numbers of the instances; since then both sides count alike.
func instances(all []smiMIG, listed []ListedMIG) []machine.MIG {
	out := []machine.MIG{}
	taken := make([]bool, len(listed))
	for i, m := range all {
		one := machine.MIG{UUID: said(m.UUID), MemoryBytes: mebibytes(m.Memory.Total)}
		index, err := strconv.Atoi(said(m.Index))
		if err != nil {
			index = i
		}
		ids := "/" + strings.TrimSpace(m.Instance) + "/" + strings.TrimSpace(m.Compute)
		for j, l := range listed {
			old := strings.HasPrefix(l.UUID, "MIG-GPU-")
			if !taken[j] && (one.UUID != "" && l.UUID == one.UUID || one.UUID == "" && (old && strings.HasSuffix(l.UUID, ids) || !old && l.Index == index)) {
				one.UUID, one.Profile, taken[j] = l.UUID, l.Profile, true
				break
			}
		}
		out = append(out, one)
	}
	for j, l := range listed {
		if !taken[j] {
			out = append(out, machine.MIG{UUID: l.UUID, Profile: l.Profile})
		}
	}
	return out
}

// problems says what keeps a GPU from serving, or makes it slow.
func (g smiGPU) problems(d machine.Device) []string {
	var out []string
	say := func(format string, args ...any) {
		out = append(out, fmt.Sprintf("GPU %d (%s) ", d.Index, d.Model)+fmt.Sprintf(format, args...))
	}
	if d.UUID == "" {
		say("has no UUID and cannot be given to jobs: it does not answer; see `sudo dmesg | grep -i xid`, and restart the machine")
	}
	if strings.EqualFold(said(g.Persistence), "Disabled") {
		say("has persistence mode off, so each first use waits seconds for the driver: `sudo nvidia-smi -pm 1`, or enable nvidia-persistenced")
	}
	if said(g.ComputeMode) == "Prohibited" {
		say("lets nothing compute (compute mode Prohibited): `sudo nvidia-smi -i %d -c DEFAULT`", d.Index)
	}
	current, pending := said(g.MIGMode.Current), said(g.MIGMode.Pending)
	switch {
	case current != pending && current != "" && pending != "":
		say("changes its MIG mode to %s only when it is reset: stop what uses it and run `sudo nvidia-smi -i %d --gpu-reset`, or restart the machine", pending, d.Index)
	case current == "Enabled" && len(d.MIG) == 0:
		say("is in MIG mode without instances, so nothing can run on it: make some, as with `sudo nvidia-smi mig -i %d -cgi 19 -C`, or leave the mode with `sudo nvidia-smi -i %d -mig 0`", d.Index, d.Index)
	}
	if strings.EqualFold(said(g.RowFailure), "Yes") {
		say("could not replace broken memory rows: results may be wrong; have it exchanged")
	}
	if r := said(g.Recovery); strings.EqualFold(said(g.Reset.Required), "Yes") || r != "" {
		if r == "" {
			r = "Reset"
		}
		say("asks for recovery (%s): stop what uses it and run `sudo nvidia-smi -i %d --gpu-reset`, or restart the machine", r, d.Index)
	}
	return out
}

// Listed is one GPU of `nvidia-smi -L`.
type Listed struct {
	Index int
	Name  string
	UUID  string
	MIG   []ListedMIG
}

// ListedMIG is one MIG instance of it. Index counts within its GPU.
type ListedMIG struct {
	Index   int
	Profile string // such as 3g.40gb, 1g.10gb+me or 1c.3g.40gb
	UUID    string // MIG-… or, before driver 470, MIG-GPU-…/instance/compute instance
}

// ParseNvidiaList reads `nvidia-smi -L` and passes over what it does not know.
func ParseNvidiaList(text []byte) []Listed {
	var out []Listed
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		head, rest, ok := strings.Cut(line, "(UUID:")
		if !ok {
			continue
		}
		uuid := said(strings.TrimSuffix(strings.TrimSpace(rest), ")"))
		if name, isMIG := strings.CutPrefix(head, "MIG "); isMIG {
			profile, number, ok := strings.Cut(name, " Device")
			index, err := strconv.Atoi(strings.Trim(number, " :\t"))
			if ok && err == nil && index >= 0 && len(out) > 0 {
				g := &out[len(out)-1]
				g.MIG = append(g.MIG, ListedMIG{Index: index, Profile: strings.TrimSpace(profile), UUID: uuid})
			}
			continue
		}
		number, name, ok := strings.Cut(head, ":")
		index, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(number, "GPU ")))
		if ok && err == nil && index >= 0 && strings.HasPrefix(number, "GPU ") {
			out = append(out, Listed{Index: index, Name: strings.TrimSpace(name), UUID: uuid})
		}
	}
	return out
}
