package convert

import (
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// backends are dstack's names of clouds with ours; an empty one is none whose
// machines can be rented here.
var backends = map[string]string{
	"aws": "aws", "azure": "azure", "gcp": "gcp", "oci": "oci", "lambda": "lambda", "nebius": "nebius", "crusoe": "crusoe", "verda": "verda",
	"datacrunch": "verda", "amddevcloud": "amddevcloud", "digitalocean": "digitalocean", "hotaisle": "hotaisle", "jarvislabs": "jarvislabs",
	"cloudrift": "cloudrift", "vultr": "vultr", "runpod": "runpod", "vastai": "vast", "tensordock": "tensordock", "cudo": "cudo",
	"kubernetes": "", "slurm": "", "dstack": "",
}

// profile are the keys that may also stand in a profile.
func (s *stack) profile() []field {
	d := s.d
	d.terms = []string{"on-demand", "owned"}
	pool := s.drop("there are no pools: machines are shared by all jobs that fit")
	given := "a machine is given back when no job uses it"
	return []field{
		{"backends", s.backends},
		{"regions", func(v value) { d.regions = s.texts(v) }},
		{"availability_zones", s.drop("zones are not chosen: any zone of the region counts")},
		{"instance_types", func(v value) {
			s.instances = v
			s.note(v, "machines are chosen by what they have and not by their type")
		}},
		{"reservation", s.drop("machines are rented and not taken from a reservation")},
		{"spot_policy", func(v value) {
			terms, ok := map[string][]string{"spot": {"spot", "owned"}, "on-demand": {"on-demand", "owned"}, "auto": {"on-demand", "spot", "owned"}}[v.text]
			if !ok {
				s.fail(v, "%s is no policy", v.what()).Hint("write spot, on-demand or auto")
				return
			}
			d.terms = terms
		}},
		{"retry", s.retry},
		{"retry_policy", s.retry},
		{"max_duration", func(v value) {
			if t, off, ok := s.span(v); ok && !off {
				d.duration = t
			}
		}},
		{"stop_duration", s.drop("how long a job may take to end is set for all: DESTAJO_GRACE")},
		{"max_price", func(v value) { s.maxPrice = v }},
		{"creation_policy", func(v value) {
			switch v.text {
			case "reuse":
				s.note(v, "a machine may be rented too: write place.terms: [owned] to use your own alone")
			case "reuse-or-create":
			default:
				s.fail(v, "%s is no policy", v.what()).Hint("write reuse or reuse-or-create")
			}
		}},
		{"idle_duration", s.drop(given)},
		{"termination_policy", s.drop(given)},
		{"termination_idle_time", s.drop(given)},
		{"utilization_policy", func(v value) {
			why := s.drop("a job is not ended for idle GPUs: limits.idle ends one in which nothing happens")
			s.object(v, []field{{"min_gpu_utilization", why}, {"time_window", why}})
		}},
		{"startup_order", s.drop("all machines of a job start together")},
		{"stop_criteria", s.drop("a job on several machines ends when all have ended, or one has failed")},
		{"schedule", func(v value) {
			s.object(v, []field{{"cron", s.refuse("there are no schedules: call destajo run from cron")}})
		}},
		{"fleets", pool},
		{"instances", s.drop("machines are chosen by what they have and not by their name")},
		{"backend_options", s.drop("settings of one provider are not carried over")},
		{"pool_name", pool},
		{"instance_name", pool},
		{"tags", func(v value) {
			for _, p := range s.pairs(v) {
				if text, ok := s.scalar(p.value); ok {
					d.labels = append(d.labels, variable{p.key, text})
				}
			}
		}},
	}
}

func (s *stack) backends(v value) {
	own, left := false, 0
	for _, item := range s.items(v) {
		name, ok := s.scalar(item)
		low := strings.ToLower(name)
		switch _, known := backends[low]; {
		case !ok:
		case low == "ssh" || low == "remote" || low == "local":
			own = true
		case backends[low] != "":
			s.d.providers = sum(s.d.providers, backends[low])
		case known:
			left++
			s.note(item, "machines of %s are not used here: add its hosts with `destajo machines add ssh://user@host`", low)
		default:
			// The list of backends grows faster than this table.
			s.d.providers = sum(s.d.providers, low)
			s.note(item, "the provider %s is not known here", cut(oneLine(name), 60))
		}
	}
	switch {
	case own && len(s.d.providers) > 0:
		s.note(v, "your own hosts are left out where clouds are named: remove place.providers to have both")
	case own:
		s.d.classes = []string{"own"}
	case left > 0 && len(s.d.providers) == 0:
		s.fatal(v, "none of these backends can be used here")
	}
}

var lapse = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^([0-9]{1,9})\s*([smhdw]?)$`) })

// span reads a time in seconds or with its unit; off is none.
func (s *stack) span(v value) (t string, off, ok bool) {
	text := strings.ToLower(strings.TrimSpace(v.text))
	if text == "off" || text == "false" || text == "-1" {
		return "", true, true
	}
	if text == "true" || text == "on" {
		return "", true, true
	}
	m := lapse().FindStringSubmatch(text)
	if v.kind == list || v.kind == mapping || m == nil || strings.Trim(m[1], "0") == "" {
		s.fail(v, "expected a time, found %s", v.what()).Hint("write seconds, or a time such as 90s, 12m, 2h or 1d, or off")
		return "", false, false
	}
	unit := m[2]
	if unit == "" {
		unit = "s"
	}
	return strings.TrimLeft(m[1], "0") + unit, false, true
}

// tries are made of a job that dstack would try again for a time.
const tries = 10

// retry reads true, or the events after which the job is tried again. A place
// that is missing and an interruption never end a job here.
func (s *stack) retry(v value) {
	again := "a failed job is tried again up to " + strconv.Itoa(tries) + " times, and not for a time"
	if v.kind != mapping {
		if on, ok := s.flag(v); ok && on {
			s.d.retries = tries
			s.note(v, "%s", again)
		}
		return
	}
	all := true
	s.object(v, []field{
		{"on_events", func(v value) {
			all = false
			for _, event := range s.texts(v) {
				switch event {
				case "error":
					s.d.retries = tries
					s.note(v, "%s", again)
				case "no-capacity", "interruption":
				default:
					s.fail(v, "unknown event %q", cut(oneLine(event), 60)).Hint("write some of no-capacity, interruption, error")
				}
			}
		}},
		{"retry", func(v value) { all, _ = s.flag(v) }},
		{"duration", s.drop("how long to try is not set: limits.deadline ends the job")},
	})
	if all {
		s.d.retries = tries
		s.note(v, "%s", again)
	}
}

func (s *stack) resources(v value) {
	d := s.d
	s.object(v, []field{
		{"cpu", s.cpu},
		{"memory", func(v value) { d.memory = s.least(v) }},
		{"shm_size", s.drop("shared memory is what the host or the container engine gives: set it there if it is too small")},
		{"gpu", s.gpu},
		{"disk", func(v value) {
			if v.kind == mapping && v.get("size") != nil {
				s.object(v, []field{{"size", func(v value) { d.disk = s.least(v) }}})
				return
			}
			d.disk = s.least(v)
		}},
	})
}

// limits of a range as text; both are empty when there is none.
func (s *stack) bounds(v value) (low, high string, ok bool) {
	if v.kind == mapping {
		s.object(v, []field{{"min", s.textInto(&low)}, {"max", s.textInto(&high)}})
	} else {
		text, good := s.scalar(v)
		if !good {
			return "", "", false
		}
		low, high, ok = strings.Cut(strings.ReplaceAll(text, " ", ""), "..")
		if !ok {
			high = low
		}
	}
	if low == "" && high == "" {
		s.fail(v, "an empty range").Hint("write a number, or a range such as 8.. or 8..16")
		return "", "", false
	}
	return low, high, true
}

// least reads a range of sizes: ours asks for the least.
func (s *stack) least(v value) string {
	low, high, ok := s.bounds(v)
	if !ok {
		return ""
	}
	if high != "" {
		s.note(v, "a machine may have more than that")
		s.size(v, high)
	}
	if low == "" {
		return ""
	}
	size, _ := s.size(v, low)
	return size
}

// cpu reads COUNT, ARCH:COUNT or {arch, count}.
func (s *stack) cpu(v value) {
	count := v
	arch := func(v value, name string) {
		if low := strings.ToLower(name); low == "arm" {
			s.note(v, "the processor's architecture cannot be asked for: leave out what is not arm with place.exclude")
		} else if low != "x86" {
			s.fail(v, "unknown architecture %q", cut(oneLine(name), 60)).Hint("write x86 or arm")
		}
	}
	if v.kind == mapping && (v.get("arch") != nil || v.get("count") != nil) {
		count = value{}
		s.object(v, []field{
			{"arch", func(v value) { arch(v, v.text) }},
			{"count", func(v value) { count = v }},
		})
	} else if v.kind == text {
		n := *v.node
		n.text = ""
		for part := range strings.SplitSeq(strings.ReplaceAll(v.text, " ", ""), ":") {
			if part != "" && strings.Trim(part, "0123456789.") == "" {
				n.text = part
			} else {
				arch(v, part)
			}
		}
		if count.node = &n; n.text == "" {
			return
		}
	}
	if count.node == nil {
		return
	}
	low, high, ok := s.bounds(count)
	if !ok {
		return
	}
	if high != "" {
		s.note(v, "a machine may have more than that")
	}
	if low != "" {
		if x, ok := s.positive(count, low); ok {
			s.d.cpus = min(x, 1e6)
		}
	}
}

// maxCounts of a range of GPUs are written out.
const maxCounts = 16

// wish is what a file asks of GPUs.
type wish struct {
	vendor, compute string
	names           []string
	count           [2]string
	memory          [2]string
	total           [2]string
}

// gpu reads the parts of a request in any order, divided by colons: vendor,
// names divided by commas, memory with a unit, number; or the same as keys.
func (s *stack) gpu(v value) {
	s.wished = true
	w := wish{count: [2]string{"1", "1"}}
	if v.kind == mapping {
		span := func(into *[2]string) func(value) {
			return func(v value) { into[0], into[1], _ = s.bounds(v) }
		}
		s.object(v, []field{
			{"vendor", s.textInto(&w.vendor)},
			{"name", func(v value) {
				for _, n := range s.texts(v) {
					w.names = append(w.names, strings.Split(n, ",")...)
				}
			}},
			{"count", span(&w.count)},
			{"memory", span(&w.memory)},
			{"total_memory", span(&w.total)},
			{"compute_capability", func(v value) {
				if v.kind == list {
					w.compute = strings.Join(s.lines(v), ".")
				} else {
					s.textInto(&w.compute)(v)
				}
			}},
		})
	} else if text, ok := s.scalar(v); ok {
		for part := range strings.SplitSeq(strings.ReplaceAll(text, " ", ""), ":") {
			n := *v.node
			n.text = part
			at := value{&n, v.path, v.line, v.column}
			switch {
			case part == "":
				s.fail(v, "an empty part in %s", v.what()).Hint("write it as A100:80GB:2, or 24GB..")
				return
			case slices.Contains([]string{"nvidia", "amd", "google", "tpu", "intel", "tenstorrent", "tt"}, strings.ToLower(part)):
				w.vendor = part
			case part[0] >= 'A' && part[0] <= 'Z' || part[0] >= 'a' && part[0] <= 'z':
				w.names = strings.Split(part, ",")
			case strings.ContainsAny(strings.ToUpper(part), "KMGTB"):
				w.memory[0], w.memory[1], _ = s.bounds(at)
			default:
				w.count[0], w.count[1], _ = s.bounds(at)
			}
		}
	}
	s.ask(v, w)
}

// ask makes requests of ours of what a file asks.
func (s *stack) ask(v value, w wish) {
	counts := s.counts(v, w.count)
	if len(counts) == 0 || len(s.faults) > 0 {
		return
	}
	if counts[0] == 0 {
		s.d.noGPU = true
		if len(counts) > 1 {
			s.note(v, "a GPU may be absent: none is asked for")
		}
		return
	}
	w.vendor = strings.ToLower(w.vendor)
	switch w.vendor {
	case "tpu":
		w.vendor = "google"
	case "tt":
		w.vendor = "tenstorrent"
	}
	if w.compute != "" {
		w.compute += "+"
	}
	if w.memory[1] != "" {
		s.note(v, "a card may have more memory than that, where it costs less")
	}
	if w.total[1] != "" {
		s.note(v, "all cards together may have more memory than that, where they cost less")
	}
	names := w.names
	if len(names) == 0 {
		names = []string{""}
	}
	var refused []string
	for _, name := range names {
		for _, count := range counts {
			memory, ok := s.cardMemory(v, w, count)
			if !ok {
				return
			}
			g := gpuWish{model: strings.TrimSpace(name), memory: memory, vendor: w.vendor, compute: w.compute, count: count}
			if err := g.check(); err != nil {
				refused = sum(refused, oneLine(err.Error()))
				continue
			}
			s.d.gpus = addWish(s.d.gpus, g.shorten())
		}
	}
	for _, why := range refused {
		if len(s.d.gpus) == 0 {
			s.fatal(v, "%s: `destajo gpus` lists all that are known", why)
		} else {
			s.note(v, "left out: %s", why)
		}
	}
}

// counts lists the numbers of GPUs in a range, the least first.
func (s *stack) counts(v value, span [2]string) []int {
	number := func(text string, otherwise int) (int, bool) {
		if text == "" {
			return otherwise, true
		}
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 || n > 1024 {
			s.fail(v, "%q is no number of GPUs", cut(oneLine(text), 60)).Hint("write a number such as 8, or a range such as 1..8")
			return 0, false
		}
		return n, true
	}
	low, ok1 := number(span[0], 0)
	high, ok2 := number(span[1], -1)
	if !ok1 || !ok2 {
		return nil
	}
	switch {
	case high >= 0 && high < low:
		s.fail(v, "a range from %d to %d", low, high).Hint("write the lesser number first")
		return nil
	case high < 0:
		s.note(v, "no more than %d GPUs are asked for", low)
		return []int{low}
	case high-low >= maxCounts:
		s.note(v, "no more than %d GPUs are asked for", low)
		return []int{low}
	}
	var out []int
	for n := low; n <= high; n++ {
		out = append(out, n)
	}
	return out
}

// cardMemory is the least memory of one card, as our long form has it: nominal,
// in units of ours, which is what both names of cards and dstack mean.
func (s *stack) cardMemory(v value, w wish, count int) (string, bool) {
	least := 0.0
	for i, text := range []string{w.memory[0], w.total[0]} {
		if text == "" {
			continue
		}
		x, ok := s.gigabytes(v, text)
		if !ok {
			return "", false
		}
		if i == 1 {
			x = math.Ceil(x/float64(count)*100) / 100
		}
		least = max(least, x)
	}
	if least == 0 {
		return "", true
	}
	return strconv.FormatFloat(least, 'f', -1, 64) + "GB+", true
}

func (s *stack) gigabytes(v value, text string) (float64, bool) {
	m := sizeForm().FindStringSubmatch(text)
	scale := map[string]float64{"": 1, "g": 1, "t": 1024, "m": 1.0 / 1024}
	if m == nil || scale[strings.ToLower(m[2])] == 0 {
		s.fail(v, "%q is no size of memory", cut(oneLine(text), 60)).Hint("write it as 24GB")
		return 0, false
	}
	x, err := strconv.ParseFloat(m[1], 64)
	if err != nil || x > 1e6 {
		s.fail(v, "%q is no size of memory", cut(oneLine(text), 60)).Hint("write it as 24GB")
		return 0, false
	}
	return x * scale[strings.ToLower(m[2])], true
}
