package convert

import (
	"slices"
	"strconv"

	"github.com/destajo/destajo/gpu"
)

// gpuWish is a GPU request: a short form, or the long form's fields.
type gpuWish struct {
	short                          string
	model, memory, vendor, compute string
	count                          int
}

// shorten gives the short form where it says all.
func (g gpuWish) shorten() gpuWish {
	count := ":" + strconv.Itoa(g.count)
	plainVendor := g.vendor == "" || g.vendor == gpu.DefaultVendor
	switch {
	case g.short != "" || g.compute != "" || !plainVendor || g.model != "" && (g.memory != "" || g.vendor != ""):
		return g
	case g.model != "":
		return gpuWish{short: g.model + count}
	case g.memory != "":
		return gpuWish{short: g.memory + count}
	}
	return g
}

// check says why a wish cannot be had.
func (g gpuWish) check() error {
	_, err := g.parse()
	return err
}

func (g gpuWish) parse() (gpu.Request, error) {
	if g.short != "" {
		return gpu.ParseRequest(g.short)
	}
	return gpu.Long{Model: g.model, Memory: g.memory, Vendor: g.vendor, Compute: g.compute, Count: g.count}.Request()
}

// request is what a wish asks for, however it is written.
func (g gpuWish) request() gpu.Request {
	r, _ := g.parse() // wishes are checked before
	r.Text = ""
	return r
}

// addWish adds a wish unless it asks for what another asks for.
func addWish(all []gpuWish, w gpuWish) []gpuWish {
	asks := w.request()
	if slices.ContainsFunc(all, func(o gpuWish) bool { return o.request().Equal(asks) }) {
		return all
	}
	return append(all, w)
}

func (g gpuWish) write() string {
	if g.short != "" {
		return scalar(g.short)
	}
	count := ""
	if g.count > 0 {
		count = strconv.Itoa(g.count)
	}
	return flowMap("model", scalar(g.model), "memory", g.memory, "count", count, "vendor", g.vendor, "compute", scalar(g.compute))
}
