package devices

import (
	"math"
	"strconv"
	"strings"

	"github.com/destajo/destajo/gpu"
)

// said gives a value that a driver states, or nothing where it states none:
// N/A, [N/A], [Not Supported], ERR!, [Unknown Error], [GPU is lost] and so on.
func said(text string) string {
	s := strings.TrimSpace(text)
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		return ""
	}
	switch strings.ToLower(s) {
	case "n/a", "na", "not supported", "not available", "err!", "error", "unknown", "unknown error", "unknown error!", "insufficient permissions", "gpu is lost", "gpu requires reset", "requested functionality has been deprecated", "none", "null":
		return ""
	}
	return s
}

// inapplicable says whether the driver answered that there is no such value,
// which is something else than an error or no answer.
func inapplicable(text string) bool {
	switch strings.ToLower(strings.Trim(strings.TrimSpace(text), "[]")) {
	case "n/a", "not supported":
		return true
	}
	return false
}

// number reads a finite number with or without a unit.
func number(text string) (value float64, unit string, ok bool) {
	s := said(text)
	i := 0
	for i < len(s) && (s[i] >= '0' && s[i] <= '9' || s[i] == '.' || s[i] == '-' && i == 0) {
		i++
	}
	v, err := strconv.ParseFloat(s[:i], 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0, "", false
	}
	return v, strings.TrimSpace(s[i:]), true
}

// within gives a reading that is in its plausible range; sensors report -1 or
// 65535 for what they do not know.
func within(text string, least, most float64, units ...string) *float64 {
	v, unit, ok := number(text)
	if !ok || v < least || v > most {
		return nil
	}
	for _, u := range append(units, "") {
		if strings.EqualFold(u, unit) {
			return &v
		}
	}
	return nil
}

func percent(text string) *float64 { return within(text, 0, 100, "%") }

// watts reads power; more than 20 kW is no single GPU.
func watts(text string) *float64 { return within(text, 0, 20_000, "W") }

func celsius(text string) *float64 { return within(text, -60, 250, "C", "°C") }

// mebibytes reads a memory; without a unit it is MiB, and 0 is no answer.
func mebibytes(text string) *int64 {
	if b := used(text); b != nil && *b > 0 {
		return b
	}
	return nil
}

// used is mebibytes where 0 is an answer.
func used(text string) *int64 {
	v, unit, ok := number(text)
	if !ok || v < 0 {
		return nil
	}
	// amd-smi writes MB and means MiB: its 196592 MB are a MI300X's 192 GiB less 16 MiB.
	switch strings.ToUpper(unit) {
	case "", "MB":
		unit = "MiB"
	case "GB":
		unit = "GiB"
	case "KB":
		unit = "KiB"
	}
	b, err := gpu.ParseBytes(strconv.FormatFloat(v, 'f', -1, 64) + unit)
	if err != nil || b > gpu.Bytes(1)<<50 {
		return nil
	}
	n := int64(b)
	return &n
}
