package estimate

import "math"

// Start is what a machine must do before the work begins. A figure that is 0
// is unknown and takes the usual value.
type Start struct {
	BootSeconds  float64 // until the machine runs
	ImageGB      float64 // compressed
	WeightsGB    float64
	DataGB       float64
	DownloadMbps float64
	Compiles     bool // the engine compiles and captures graphs before it serves
}

// Usual speeds of a start: a host gets 70 % of its line, an image is twice as
// large unpacked and unpacks at 0.25 GB/s, weights load at 1 GB/s. A cold vLLM
// start took 200 s beside download and load (8B on an L40S, tensorfuse), 82 s
// with warm caches.
const (
	usualBoot    = 90
	usualMbps    = 1000
	lineShare    = 0.7
	unpackGBs    = 0.25
	unpackGrowth = 2
	loadGBs      = 1
	compileTime  = 200
)

// AfterBoot is the time from a running machine to useful work, in seconds.
func (s Start) AfterBoot() float64 {
	s.BootSeconds = 1 // any; it is left out again
	_, sum := s.Seconds()
	return sum - s.BootSeconds
}

// Seconds gives the time of a start in parts: boot, download, unpack, load and
// compile, and their sum.
func (s Start) Seconds() (parts []Term, sum float64) {
	mbps := s.DownloadMbps
	if mbps <= 0 {
		mbps = usualMbps
	}
	boot := s.BootSeconds
	if boot <= 0 {
		boot = usualBoot
	}
	compile := 0.0
	if s.Compiles {
		compile = compileTime
	}
	bytes := math.Max(0, s.ImageGB) + math.Max(0, s.WeightsGB) + math.Max(0, s.DataGB)
	parts = []Term{
		{"boot", boot}, {"download", bytes * 8000 / (mbps * lineShare)}, {"unpack image", math.Max(0, s.ImageGB) * unpackGrowth / unpackGBs},
		{"load weights", math.Max(0, s.WeightsGB) / loadGBs}, {"compile", compile},
	}
	for _, p := range parts {
		sum += p.Value
	}
	return parts, sum
}
