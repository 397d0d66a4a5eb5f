package convert

import (
	"slices"
	"strconv"
	"strings"

	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/money"
)

// settle checks a candidate once all its fields are read.
func (s *sky) settle(c *candidate) {
	if c.instance && !c.accelerators && c.cpus == 0 {
		c.refuse(c.at, "an instance type alone does not say what the machine has: add accelerators, or cpus for one without")
	}
	if c.ratio > 0 {
		if c.cpus == 0 {
			s.note(c.at, "memory that is a multiple of cpus needs cpus: it is not asked for")
		} else {
			c.memory = strconv.FormatFloat(min(c.ratio*c.cpus, 1e6), 'f', -1, 64) + "GiB"
		}
	}
}

// combine makes one request of all candidates. Ours asks for each thing by
// itself, so that it may fit more than the pairs that the file lists.
func (s *sky) combine(v value, all []*candidate) {
	usable := slices.DeleteFunc(slices.Clone(all), func(c *candidate) bool { return c.unusable != nil })
	for _, c := range all {
		if n := c.unusable; n != nil {
			at := value{&node{}, n.Field, n.Line, n.Column}
			if len(usable) > 0 {
				s.note(at, "left out: %s", n.Text)
			} else {
				s.fatal(at, "%s", n.Text)
			}
		}
	}
	none := len(usable) == 0
	if none { // all that they ask for stays, for the one who changes it
		usable = all
	}
	s.combineGPUs(v, usable)
	if none {
		s.d.noGPU = s.d.noGPU && !slices.ContainsFunc(all, func(c *candidate) bool { return c.accelerators || c.instance })
	}
	s.combinePlaces(v, usable)
	s.combineRest(v, usable)
	if differing(usable) > 1 {
		s.note(v, "candidates that go together are not kept apart: each GPU may come from each place, on each terms")
	}
}

func (s *sky) combineGPUs(v value, all []*candidate) {
	without := false
	for _, c := range all {
		without = without || len(c.gpus) == 0
		for _, g := range c.gpus {
			s.d.gpus = addWish(s.d.gpus, g)
		}
	}
	s.d.noGPU = len(s.d.gpus) == 0
	if without && !s.d.noGPU {
		s.note(v, "a candidate without accelerators is left out: the others have some")
	}
}

func (s *sky) combinePlaces(v value, all []*candidate) {
	d := s.d
	var terms []string
	anywhere, anyRegion, own := false, false, 0
	for _, c := range all {
		if c.spot {
			terms = sum(terms, "spot")
		} else {
			terms = sum(terms, "on-demand")
		}
		switch {
		case c.own:
			own++
		case c.provider == "" && c.region == "":
			anywhere = true
		case c.region == "":
			d.providers, anyRegion = sum(d.providers, c.provider), true
		case c.provider == "":
			d.regions, anywhere = sum(d.regions, c.region), true
		default:
			d.providers, d.regions = sum(d.providers, c.provider), sum(d.regions, c.provider+":"+c.region)
		}
	}
	slices.Sort(terms)
	d.terms = append(terms, "owned")
	free := slices.ContainsFunc(all, func(c *candidate) bool { return !c.own && c.provider == "" && c.region == "" })
	switch {
	case own == len(all):
		d.terms, d.classes = []string{"owned"}, []string{"own"}
		return
	case own > 0 && len(d.providers) > 0:
		s.note(v, "your own hosts are left out where clouds are named: remove place.providers to have both")
	}
	if len(d.regions) > 0 && (anyRegion || free) {
		s.note(v, "a candidate without region stands beside one with: all regions count")
		d.regions = nil
	}
	if len(d.providers) > 0 && anywhere {
		if free {
			s.note(v, "a candidate anywhere stands beside one in a cloud: all clouds count")
		}
		d.providers = nil
	}
}

func (s *sky) combineRest(v value, all []*candidate) {
	d, first := s.d, all[0]
	d.cpus, d.memory, d.disk, d.image = first.cpus, first.memory, first.disk, first.image
	d.priority, d.retries, d.ports = first.priority, first.retries, first.ports
	price, several := first.price, false
	for _, c := range all[1:] {
		several = several || c.cpus != d.cpus || c.memory != d.memory || c.disk != d.disk
		d.cpus = min(d.cpus, c.cpus)
		d.memory, d.disk = smaller(d.memory, c.memory), smaller(d.disk, c.disk)
		if c.image != first.image {
			s.note(v, "candidates have different images: the first one's is used for all")
		}
		if c.price == 0 || price == 0 {
			price = 0
		} else {
			price = max(price, c.price)
		}
		d.priority, d.retries = max(d.priority, c.priority), max(d.retries, c.retries)
		for _, p := range c.ports {
			if !slices.Contains(d.ports, p) {
				d.ports = append(d.ports, p)
			}
		}
	}
	if several {
		s.note(v, "candidates ask for different cpus, memory or disk: the least of each is asked for")
	}
	if slices.ContainsFunc(all, func(c *candidate) bool { return c.price != first.price }) {
		s.note(v, "candidates have different max_hourly_cost: the highest counts for all")
	}
	d.price = s.pricePerHour(v, price, d.nodes)
	for _, c := range all {
		for _, l := range c.labels {
			if !slices.ContainsFunc(d.labels, func(o variable) bool { return o.name == l.name }) {
				d.labels = append(d.labels, l)
			}
		}
	}
	if d.kind == "notebook" {
		d.idle = first.idle
	}
}

// pricePerHour is the limit for all machines together; the other tools state it
// for one.
func (r *reader) pricePerHour(v value, one money.Amount, nodes int) string {
	if one == 0 {
		return ""
	}
	all, err := one.MulDiv(int64(nodes), 1)
	if err != nil {
		r.fail(v, "the price of %d machines is beyond any", nodes).Hint("write a lower price")
		return ""
	}
	return all.String() + " USD/h"
}

// smaller gives the lesser of two sizes of ours; nothing is the least.
func smaller(a, b string) string {
	if a == "" || b == "" {
		return ""
	}
	x, err1 := gpu.ParseBytes(a)
	y, err2 := gpu.ParseBytes(b)
	if err1 != nil || err2 != nil || x <= y {
		return a
	}
	return b
}

// differing is in how many ways candidates differ.
func differing(all []*candidate) int {
	ways := 0
	for _, way := range []func(c *candidate) string{
		func(c *candidate) string {
			var b strings.Builder
			for _, g := range c.gpus {
				b.WriteString(g.write() + " ")
			}
			return b.String()
		},
		func(c *candidate) string { return c.provider + ":" + c.region + strconv.FormatBool(c.own) },
		func(c *candidate) string { return strconv.FormatBool(c.spot) },
	} {
		for _, c := range all[1:] {
			if way(c) != way(all[0]) {
				ways++
				break
			}
		}
	}
	return ways
}
