package devices

import (
	"regexp"
	"strings"
	"sync"

	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/machine"
)

// Identify gives the id in our table of cards of what a driver calls a GPU;
// empty when the card is not there, when the name fits several cards, or when
// it contradicts the memory, in bytes. It never guesses.
func Identify(vendor, name string, memory *int64) string {
	gib := 0.0
	if memory != nil {
		gib = float64(*memory) / float64(gpu.GiB)
	}
	for _, spelling := range spellings(vendor, name, gib) {
		if m, err := gpu.Resolve(spelling, gib, spelling); err == nil && m.Vendor == vendor {
			return m.ID
		}
	}
	return ""
}

// spellings gives what a driver's name means in other words, the name itself
// first.
func spellings(vendor, name string, gib float64) []string {
	if name == "" {
		return nil
	}
	out := []string{name}
	if vendor == "nvidia" {
		// The 120 GB and 480 GB of a GH200 are its processor's memory, not the GPU's.
		if m := grace().FindStringSubmatch(name); m != nil && gib > 0 {
			out = append(out, m[1])
		}
		return out
	}
	// PCI's list of names: codename [name of the card].
	if _, inner, ok := strings.Cut(name, "["); ok {
		out = append(out, strings.TrimSuffix(strings.TrimSpace(inner), "]"))
	}
	for _, s := range out {
		plain := strings.Join(strings.Fields(amdExtras().ReplaceAllString(s, " ")), " ")
		// A MI250 shows as two GPUs.
		if strings.HasSuffix(strings.ToUpper(plain), "MI250") && gib > 0 && gib < 70 {
			plain += "-GCD"
		}
		if plain != s {
			out = append(out, plain)
		}
		// Drivers leave out the line of a workstation card, or name it.
		out = append(out, strings.TrimSpace(strings.ReplaceAll(plain, "AI PRO", "")), "Radeon AI PRO "+plain)
	}
	return out
}

var (
	grace     = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(?:NVIDIA )?(GH200) (?:120|480)GB$`) })
	amdExtras = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)\b(graphics|oam|vf|hf|ac mba)\b|\(mcm\)`) })
)

// shared says whether a device's memory is the host's: its driver has no
// number for it although nothing failed, or its kind is built that way. A GPU
// in MIG mode may hide its own memory behind that of its instances.
func shared(d machine.Device, total, mig string) bool {
	if m := model(d.GPU); m != nil && m.Class == "integrated" {
		return true
	}
	return inapplicable(total) && said(mig) != "Enabled"
}

// model gives the card of an id.
func model(id string) *gpu.Model {
	for _, m := range gpu.Models() {
		if m.ID == id {
			return m
		}
	}
	return nil
}
