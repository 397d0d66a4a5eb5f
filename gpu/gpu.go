// Package gpu knows the cards: what each model is called, what it can do, how
// it can be cut up, and which names are one card and which are several.
package gpu

import (
	"strconv"
	"strings"
)

// Bytes is a size in bytes.
type Bytes int64

// Units of Bytes, decimal and binary.
const (
	KB  Bytes = 1e3
	MB  Bytes = 1e6
	GB  Bytes = 1e9
	TB  Bytes = 1e12
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
	TiB Bytes = 1 << 40
)

// Model is one card as sold. A figure that is 0 is unknown or absent on the
// card.
type Model struct {
	ID           string  // key of the table, such as h100-sxm
	Name         string  // canonical name FAMILY[-FORM][-MEMORY], such as H100-SXM, A100-SXM-80GB, RTX4090
	Title        string  // as its maker calls it, such as H100 SXM5 80GB
	Vendor       string  // nvidia, amd, intel, google, aws, apple (lower case)
	Family       string  // the name without form and memory: H100, A100, RTX4090
	Architecture string  // Hopper, Ampere, ...
	Form         string  // SXM5, PCIe, NVL, OAM, ...
	Class        string  // datacenter, workstation, consumer, integrated
	MemoryGB     float64 // nominal, as providers and drivers name it
	MemoryType   string
	BandwidthGBs float64 // GB/s
	FP16TFLOPS   float64 // dense, matrix units, FP32 accumulate; 0 where the card has none
	FP32TFLOPS   float64 // vector
	FP8TFLOPS    float64 // dense
	FP4TFLOPS    float64 // dense
	INT8TOPS     float64 // dense
	Watts        float64 // board power
	Compute      string  // CUDA compute capability such as 8.0, or gfx target
	Year         int
	Consumer     bool // sold to consumers; the maker's licence has limits in data centres
	MIG          []Profile
	Source       string
	Checked      string // verified, one source, unverified

	BenchmarkName string // in tables of measurements; may be empty
	index         int    // in the table
	aliases       string // other spellings, separated by |
}

// Profile is one way to cut a card with MIG.
type Profile struct {
	Name          string  // such as 1g.10gb
	MemoryGB      float64 // of one instance
	ComputeSlices string  // such as 1/7
	ComputeShare  float64 // the same as a number
	Max           int     // instances of this profile on one card
}

// Partition is what a job gets of a card: the whole (the zero value), a MIG
// profile, or a share between 0 and 1.
type Partition struct {
	Profile string
	Share   float64
}

// Whole says that the card is not cut.
func (p Partition) Whole() bool { return p.Profile == "" && (p.Share == 0 || p.Share == 1) }

// String gives the form used after the @: a profile, a share, or nothing.
func (p Partition) String() string {
	switch {
	case p.Profile != "":
		return p.Profile
	case p.Whole():
		return ""
	}
	return strconv.FormatFloat(p.Share, 'g', -1, 64)
}

// Profile finds a MIG profile of the model by name.
func (m *Model) Profile(name string) (Profile, bool) {
	for _, p := range m.MIG {
		if strings.EqualFold(p.Name, name) {
			return p, true
		}
	}
	return Profile{}, false
}
