package devices

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/machine"
)

// AMD is what amd-smi's documents say.
type AMD struct {
	Driver   string // such as amdgpu 6.10.5
	Devices  []machine.Device
	Problems []string // each with how to mend it
}

// ParseAMD reads `amd-smi list --json`, `static --json` and `metric --json` of
// ROCm 5.7 to 7 and puts them together by the GPU's number. Each may be nil:
// what it would have said is unknown then. A document that cannot be read is
// an error, and the others count all the same.
func ParseAMD(list, static, metric []byte) (AMD, error) {
	var out AMD
	var first error
	var docs [3]map[int]object
	var order []int
	for i, text := range [][]byte{list, static, metric} {
		all, err := objects(text)
		if err != nil && first == nil {
			first = fault.Wrap(fault.Invalid, err, "amd-smi %s", []string{"list", "static", "metric"}[i])
		}
		docs[i] = map[int]object{}
		for at, o := range all {
			n, _, ok := number(o.text("gpu"))
			index := int(n)
			if !ok || index < 0 || index > 1<<16 {
				index = at
			}
			if _, twice := docs[i][index]; twice {
				continue
			}
			docs[i][index] = o
			if !slices.Contains(order, index) {
				order = append(order, index)
			}
		}
	}
	slices.Sort(order)
	for _, index := range order {
		out.add(index, docs[0][index], docs[1][index], docs[2][index])
	}
	return out, first
}

// add takes what the three documents say of one GPU.
func (a *AMD) add(index int, list, static, metric object) {
	d := machine.Device{
		Index: index, UUID: said(list.text("uuid")), Vendor: "amd", Model: amdName(static),
		MIG: []machine.MIG{},
	}
	total := present(static.text("vram", "size"), static.text("vram", "vram_size_mb"), metric.text("mem_usage", "total_vram"), metric.text("fb_usage", "fb_total"), metric.text("vram", "total"))
	d.MemoryBytes = mebibytes(total)
	d.MemoryUsed = used(present(metric.text("mem_usage", "used_vram"), metric.text("fb_usage", "fb_used"), metric.text("vram", "used")))
	d.Utilization = percent(present(metric.text("usage", "gfx_activity"), metric.text("usage", "gfx_usage")))
	d.PowerWatts = watts(present(metric.text("power", "socket_power"), metric.text("power", "current_socket_power"), metric.text("power", "current_power"), metric.text("power", "average_power"), metric.text("power", "average_socket_power")))
	d.Temperature = celsius(present(metric.text("temperature", "hotspot"), metric.text("temperature", "junction"), metric.text("temperature", "edge")))
	if d.GPU = Identify(d.Vendor, d.Model, d.MemoryBytes); d.GPU == "" {
		d.GPU = Identify(d.Vendor, said(static.text("board", "product_name")), d.MemoryBytes)
	}
	part, _, _ := number(list.text("partition_id"))
	switch m := model(d.GPU); {
	case m != nil && m.Class == "integrated", strings.Contains(d.Model, "MI300A"), hostMemory().MatchString(static.text("vram", "type")):
		d.SharedMemory = true
	default:
		// Of a divided GPU only the first part has figures of its own.
		d.SharedMemory = inapplicable(total) && part == 0
	}
	a.Devices = append(a.Devices, d)

	if v := said(static.text("driver", "version")); v != "" && a.Driver == "" {
		if a.Driver = "amdgpu " + v; strings.HasPrefix(v, "Linux version") {
			a.Driver = "amdgpu" // the kernel's own: it has no version
		}
	}
	if d.UUID == "" {
		a.Problems = append(a.Problems, fmt.Sprintf("GPU %d (%s) has no UUID and cannot be given to jobs: run `amd-smi list` and look for messages", index, d.Model))
	}
}

// hostMemory are the kinds of memory that only GPUs inside a processor have.
var hostMemory = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^(LP)?DDR\d`) })

// amdName gives the name of the card, or what else tells which it is.
func amdName(static object) string {
	market, board := said(static.text("asic", "market_name")), said(static.text("board", "product_name"))
	if market != "" && !strings.HasPrefix(market, "0x") {
		return market
	}
	for _, s := range []string{board, said(static.text("asic", "target_graphics_version")), market} {
		if s != "" {
			return s
		}
	}
	return ""
}

// present gives the first of several readings that states something, else the
// first that is there at all.
func present(all ...string) string {
	kept := ""
	for _, s := range all {
		if said(s) != "" {
			return s
		}
		if kept == "" {
			kept = s
		}
	}
	return kept
}

// object is a JSON object.
type object map[string]any

// objects reads a list of objects, bare as in ROCm 5 and 6 or under gpu_data
// as in ROCm 7; warnings before it are passed over.
func objects(text []byte) ([]object, error) {
	if text == nil {
		return nil, nil
	}
	first := fault.New(fault.Invalid, "no JSON in %q", firstLines(text))
	for start, tries := 0, 0; start < len(text) && tries < 20; start, tries = start+1, tries+1 {
		next := bytes.IndexAny(text[start:], "[{")
		if next < 0 {
			break
		}
		start += next
		var v any
		if json.NewDecoder(bytes.NewReader(text[start:])).Decode(&v) == nil {
			if all := asList(v); all != nil {
				return all, nil
			}
		}
		// A warning may hold a bracket: the document then begins on a later line.
		line := bytes.IndexByte(text[start:], '\n')
		if line < 0 {
			break
		}
		start += line
	}
	return nil, first
}

// asList finds the list in what was decoded; nil when there is none.
func asList(v any) []object {
	switch t := v.(type) {
	case map[string]any:
		if inner, ok := t["gpu_data"]; ok {
			return asList(inner)
		}
		if _, ok := t["gpu"]; ok {
			return []object{t}
		}
	case []any:
		out := []object{}
		for _, e := range t {
			if m, ok := e.(map[string]any); ok {
				out = append(out, m)
			}
		}
		if len(out) > 0 || len(t) == 0 {
			return out
		}
	}
	return nil
}

// text gives a reading as text: 12, "12 W" and {"value": 12, "unit": "W"} are
// one and the same. Empty when it is not there.
func (o object) text(path ...string) string {
	var v any = map[string]any(o)
	for _, key := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return ""
		}
		v = m[key]
	}
	if m, ok := v.(map[string]any); ok {
		inner := object(m)
		if value := inner.text("value"); value != "" {
			return strings.TrimSpace(value + " " + inner.text("unit"))
		}
		return ""
	}
	switch t := v.(type) {
	case string:
		return t
	case float64:
		return strconv.FormatFloat(t, 'f', -1, 64)
	}
	return ""
}
