package convert

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/money"
)

// clouds are SkyPilot's names of clouds with ours; an empty one is none whose
// machines can be rented here.
var clouds = map[string]string{
	"aws": "aws", "azure": "azure", "gcp": "gcp", "ibm": "ibm", "lambda": "lambda", "nebius": "nebius", "oci": "oci", "runpod": "runpod",
	"vast": "vast", "cudo": "cudo", "fluidstack": "fluidstack", "paperspace": "paperspace", "do": "digitalocean", "verda": "verda",
	"datacrunch": "verda", "hyperbolic": "hyperbolic", "primeintellect": "primeintellect", "seeweb": "seeweb", "shadeform": "shadeform",
	"scp": "scp", "mithril": "mithril", "yotta": "yotta", "crusoe": "crusoe", "coreweave": "coreweave", "vsphere": "", "slurm": "", "kubernetes": "", "k8s": "",
}

// candidate is one of the machines that a task accepts.
type candidate struct {
	at                     value
	provider, region       string
	own                    bool // a host of the user's over SSH
	gpus                   []gpuWish
	spot                   bool
	cpus, ratio            float64
	memory, disk, image    string
	price                  money.Amount
	ports                  []int
	labels                 []variable
	priority, retries      int
	idle                   string
	instance, accelerators bool
	unusable               *Note
}

// refuse says that the candidate cannot be had here.
func (c *candidate) refuse(v value, format string, args ...any) {
	if c.unusable == nil {
		c.unusable = &Note{v.line, v.column, v.path, fault.New("", format, args...).Message, true}
	}
}

// resources reads what a task accepts: one candidate, or those of any_of or
// ordered over the outer fields.
func (s *sky) resources(v value) {
	outer := s.pairs(v)
	inner := slices.IndexFunc(outer, func(p pair) bool { return (p.key == "any_of" || p.key == "ordered") && p.value.kind != null })
	sets := [][]pair{nil}
	if inner >= 0 {
		group := outer[inner]
		if other := slices.IndexFunc(outer[inner+1:], func(p pair) bool { return p.key == "any_of" || p.key == "ordered" }); other >= 0 {
			s.fail(outer[inner+1+other].value, "any_of and ordered exclude each other").Hint("keep one of the two")
		}
		if group.key == "ordered" {
			s.note(group.value, "the order does not count: what costs least comes first, and the others when it cannot be had")
		}
		sets = nil
		for _, item := range s.items(group.value) {
			sets = append(sets, s.pairs(item))
		}
		if len(sets) == 0 {
			sets = [][]pair{nil}
		}
	}
	outer = slices.DeleteFunc(outer, func(p pair) bool { return p.key == "any_of" || p.key == "ordered" })
	var all []*candidate
	for _, set := range sets {
		c := &candidate{at: v}
		if inner >= 0 && len(set) > 0 {
			c.at = set[0].value
		}
		s.read(over(outer, set), s.candidateFields(c))
		s.settle(c)
		all = append(all, c)
	}
	s.combine(v, all)
}

// over lays the fields of a candidate over the outer ones. infra and cloud,
// region, zone say the same and give way to each other.
func over(outer, inner []pair) []pair {
	has := func(keys ...string) bool {
		return slices.ContainsFunc(inner, func(p pair) bool { return slices.Contains(keys, p.key) })
	}
	var out []pair
	for _, p := range outer {
		switch {
		case has(p.key), p.key == "infra" && has("cloud", "region", "zone"), slices.Contains([]string{"cloud", "region", "zone"}, p.key) && has("infra"):
		default:
			out = append(out, p)
		}
	}
	return append(out, inner...)
}

// candidateFields are the keys of one candidate.
func (s *sky) candidateFields(c *candidate) []field {
	disk := func(v value) {
		if size, ok := s.size(v, v.text); ok {
			c.disk = size
		}
	}
	internal := s.drop("is internal to SkyPilot")
	return []field{
		{"infra", func(v value) { s.infra(c, v) }},
		{"cloud", func(v value) { s.cloud(c, v, v.text) }},
		{"region", s.textInto(&c.region)},
		{"zone", s.zone},
		{"accelerators", func(v value) { s.accelerators(c, v) }},
		{"accelerator_args", func(v value) {
			var args []field
			for _, key := range []string{"runtime_version", "tpu_name", "tpu_vm", "gcp_queued_resource"} {
				args = append(args, field{key, s.drop("settings of TPU machines are not carried over")})
			}
			s.object(v, args)
		}},
		{"cpus", func(v value) { s.cpus(c, v) }},
		{"memory", func(v value) { s.memory(c, v) }},
		{"instance_type", func(v value) {
			c.instance = true
			s.note(v, "machines are chosen by what they have and not by their type")
		}},
		{"use_spot", func(v value) { c.spot, _ = s.flag(v) }},
		{"spot_recovery", func(v value) { s.recovery(c, v) }},
		{"job_recovery", func(v value) { s.recovery(c, v) }},
		{"max_hourly_cost", func(v value) {
			if x, ok := s.positive(v, v.text); ok {
				c.price = s.dollars(v, x)
			}
		}},
		{"disk_size", disk},
		{"ephemeral_storage", disk},
		{"disk_tier", s.drop("how fast a disk is cannot be asked for")},
		{"network_tier", s.drop("how fast a network is cannot be asked for")},
		{"local_disk", s.drop("what kind of disk it is cannot be asked for: resources.disk asks for its size")},
		{"image_id", func(v value) { s.image(c, v) }},
		{"ports", func(v value) { c.ports = s.portRanges(v) }},
		{"labels", func(v value) {
			for _, p := range s.pairs(v) {
				if text, ok := s.scalar(p.value); ok {
					c.labels = append(c.labels, variable{p.key, text})
				}
			}
		}},
		{"autostop", func(v value) { s.autostop(c, v) }},
		{"priority", s.wholeInto(&c.priority, -1000, 1000)},
		{"priority_class", s.drop("there are no classes of priority: write priority with a number")},
		{"volumes", s.refuse("volumes are not known here: send files along with mounts, keep them with checkpoint.dir or bring them back with outputs")},
		{"_docker_login_config", internal},
		{"_is_image_managed", internal},
		{"_requires_fuse", internal},
		{"_cluster_config_overrides", internal},
		{"_no_missing_accel_warnings", internal},
	}
}

func (s *sky) infra(c *candidate, v value) {
	name, ok := s.scalar(v)
	if !ok {
		return
	}
	cloud, rest, _ := strings.Cut(strings.Trim(strings.TrimSpace(name), "/"), "/")
	s.cloud(c, v, cloud)
	if c.own || c.unusable != nil {
		if c.own && rest != "" {
			s.note(v, "all your own hosts count, not those of the pool %s alone", cut(oneLine(rest), 60))
		}
		return
	}
	region, zone, _ := strings.Cut(rest, "/")
	if region != "*" {
		c.region = region
	}
	if zone != "" && zone != "*" {
		s.zone(v)
	}
}

func (s *sky) zone(v value) {
	if _, ok := s.scalar(v); ok {
		s.note(v, "zones are not chosen: any zone of the region counts")
	}
}

func (s *sky) cloud(c *candidate, v value, name string) {
	switch low := strings.ToLower(name); {
	case low == "*":
	case low == "ssh":
		c.own = true
	case clouds[low] != "":
		c.provider = clouds[low]
	default:
		if _, known := clouds[low]; known {
			c.refuse(v, "machines of %s are not used here: add its hosts with `destajo machines add ssh://user@host`", low)
			return
		}
		names := []string{"ssh"}
		for n := range clouds {
			names = append(names, n)
		}
		slices.Sort(names)
		e := s.fail(v, "unknown cloud %q", cut(oneLine(name), 60))
		if near := fault.Nearest(name, names); len(near) > 0 {
			e.Hint("did you mean %s?", strings.Join(near, " or "))
		} else {
			e.Hint("known are %s", strings.Join(names, ", "))
		}
	}
}

// accelerators reads NAME[:N], a map of names to numbers, a list (in order),
// or a set, which YAML takes for a map without values.
func (s *sky) accelerators(c *candidate, v value) {
	c.accelerators = true
	switch v.kind {
	case text, number:
		s.accelerator(c, v, v.text, "")
	case list:
		if len(v.node.items) > 1 {
			s.note(v, "the order does not count: what costs least comes first, and the others when it cannot be had")
		}
		for _, item := range s.items(v) {
			if name, ok := s.scalar(item); ok {
				s.accelerator(c, item, name, "")
			}
		}
	case mapping:
		for _, p := range s.pairs(v) {
			if p.value.kind != null && p.value.kind != number && p.value.kind != text {
				s.fail(p.value, "expected a number of accelerators, found %s", p.value.what()).Hint("write accelerators: {H100: 8}")
				continue
			}
			s.accelerator(c, p.value, p.key, p.value.text)
		}
	default:
		s.fail(v, "expected accelerators, found %s", v.what()).Hint("write accelerators: H100:8")
	}
	if len(c.gpus) == 0 && len(s.faults) == 0 && c.unusable == nil {
		c.refuse(v, "none of these is a GPU that is known here: `destajo gpus` lists all")
	}
}

// accelerator adds one wish. A part of a card, which SkyPilot knows for
// Kubernetes, is a share of ours.
func (s *sky) accelerator(c *candidate, v value, name, count string) {
	name = strings.TrimSpace(name)
	if before, after, ok := strings.Cut(name, ":"); ok && count == "" {
		name, count = before, after
	}
	if count == "" {
		count = "1"
	}
	x, err := strconv.ParseFloat(strings.TrimSpace(count), 64)
	if err != nil || !(x > 0) || x > 1024 || x > 1 && x != math.Trunc(x) {
		s.fail(v, "%q is no number of accelerators", cut(oneLine(count), 60)).Hint("write accelerators: H100:8")
		return
	}
	wish := fmt.Sprintf("%s:%d", name, int(x))
	if x < 1 {
		wish = name + "@" + strconv.FormatFloat(x, 'f', -1, 64)
	}
	if r, err := gpu.ParseRequest(wish); err != nil || r.None() {
		if near := fault.HintOf(err); near != "" {
			s.note(v, "%s is no GPU that is known here: %s", cut(oneLine(name), 60), near)
		} else {
			s.note(v, "%s is no GPU that is known here: `destajo gpus` lists all", cut(oneLine(name), 60))
		}
		return
	}
	c.gpus = addWish(c.gpus, gpuWish{short: wish})
}

func (s *sky) cpus(c *candidate, v value) {
	number, least := strings.CutSuffix(v.text, "+")
	if x, ok := s.positive(v, number); ok {
		if x > 1e6 {
			s.fail(v, "so many CPUs has no machine").Hint("write a number such as 8+")
			return
		}
		c.cpus = x
		if !least {
			s.note(v, "a machine may have more than that")
		}
	}
}

func (s *sky) memory(c *candidate, v value) {
	if number, ok := strings.CutSuffix(v.text, "x"); ok {
		c.ratio, _ = s.positive(v, number)
		return
	}
	number, least := strings.CutSuffix(v.text, "+")
	if size, ok := s.size(v, number); ok {
		c.memory = size
		if !least {
			s.note(v, "a machine may have more than that")
		}
	}
}

func (s *sky) image(c *candidate, v value) {
	if v.kind == mapping {
		for _, p := range s.pairs(v) {
			if c.image == "" && strings.HasPrefix(p.value.text, "docker:") {
				c.image = strings.TrimPrefix(p.value.text, "docker:")
				s.note(v, "one image is used in all regions")
			}
		}
		if c.image == "" {
			s.fatal(v, "images of machines are not used: name a container image, as in image_id: docker:pytorch/pytorch")
		}
		return
	}
	name, ok := s.scalar(v)
	if !ok {
		return
	}
	switch image, container := strings.CutPrefix(name, "docker:"); {
	case container && image != "":
		c.image = image
	case strings.HasPrefix(name, "skypilot:"):
		s.note(v, "SkyPilot's own images are not used: the machine has what its provider puts there; image names a container")
	default:
		s.fatal(v, "images of machines are not used: name a container image, as in image_id: docker:pytorch/pytorch")
	}
}

// maxPorts of a range are written out.
const maxPorts = 64

func (s *sky) portRanges(v value) []int {
	var out []int
	for _, item := range s.items(v) {
		from, to, isRange := strings.Cut(item.text, "-")
		if !isRange {
			to = from
		}
		a, err1 := strconv.Atoi(strings.TrimSpace(from))
		b, err2 := strconv.Atoi(strings.TrimSpace(to))
		if err1 != nil || err2 != nil || a < 1 || b > 65535 || a > b {
			s.fail(item, "%s is no port", item.what()).Hint("write a port such as 8080, or a range such as 8080-8090")
			continue
		}
		for p := a; p <= b; p++ {
			if len(out) == maxPorts {
				s.note(item, "only %d ports are kept", maxPorts)
				break
			}
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	if len(out) > 0 {
		s.note(v, "ports are not opened to the internet: `destajo port` forwards them to this machine")
	}
	return out
}

// autostop ends an idle machine. One of ours ends with its job anyway, so that
// it says something of notebooks alone.
func (s *sky) autostop(c *candidate, v value) {
	if v.kind == mapping {
		s.object(v, []field{
			{"idle_minutes", func(v value) { s.minutes(c, v) }},
			{"down", s.drop("a machine is always given back, and not only stopped")},
			{"wait_for", s.drop("what counts as idle is decided here: no work of the job and nobody in it")},
			{"hook", s.drop("no command runs before a machine is given back: trap SIGTERM in run")},
			{"hook_timeout", s.drop("no command runs before a machine is given back: trap SIGTERM in run")},
		})
		return
	}
	if v.kind == boolean {
		c.idle = map[bool]string{true: "5m", false: "off"}[strings.EqualFold(v.text, "true")]
	} else {
		s.minutes(c, v)
	}
	if s.d.kind != "notebook" {
		s.note(v, "a machine is given back when no job uses it: there is nothing to stop")
	}
}

func (s *sky) minutes(c *candidate, v value) {
	amount, unit := strings.ToLower(strings.TrimSpace(v.text)), "m"
	if i := len(amount) - 1; i > 0 && strings.Contains("mhdw", amount[i:]) {
		amount, unit = amount[:i], amount[i:]
	}
	if n, err := strconv.Atoi(amount); err != nil || n < 0 || n > 500_000 || v.kind != text && v.kind != number {
		s.fail(v, "expected a time, found %s", v.what()).Hint("write minutes such as 10, or a time such as 2h")
	} else if n > 0 {
		c.idle = strconv.Itoa(n) + unit
	}
	if strings.HasSuffix(v.path, "idle_minutes") && s.d.kind != "notebook" {
		s.note(v, "a machine is given back when no job uses it: there is nothing to stop")
	}
}

func (s *sky) recovery(c *candidate, v value) {
	const anew = "where an interrupted job goes on is decided anew each time, by cost"
	if v.kind != mapping {
		s.note(v, anew)
		return
	}
	s.object(v, []field{
		{"strategy", s.drop(anew)},
		{"max_restarts_on_errors", s.wholeInto(&c.retries, 0, 1000)},
		{"recover_on_exit_codes", s.drop("every failure counts as a try, whatever its code: retries says how many")},
	})
}

// dollars makes exact money of a number.
func (r *reader) dollars(v value, x float64) money.Amount {
	a, err := money.Parse(strconv.FormatFloat(x, 'f', -1, 64))
	if err != nil || a <= 0 {
		r.fail(v, "%s is no price", v.what()).Hint("write dollars per hour, as in 3.5")
	}
	return a
}
