package convert

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// draft is a job of ours in the making. Empty values are not written.
type draft struct {
	name, kind, image string
	env, labels       []variable
	secrets           []string
	workdir           string
	mounts            []File
	setup, run        string
	fetch             string // commands that come before both
	ports             []int
	health            *health
	gpus              []gpuWish
	noGPU             bool
	nodes             int
	cpus              float64
	memory, disk      string
	download, upload  string
	price, duration   string // limits
	idle              string
	terms, classes    []string // place
	providers         []string
	regions           []string
	after             []string
	priority, retries int
}

type variable struct{ name, value string }

type health struct {
	port         int
	path         string
	every, start string
}

// write gives the job's text, in the order in which our own examples have it.
// With quoted set no text is written as a block.
func (d *draft) write(quoted bool) []byte {
	w := &writer{quoted: quoted}
	w.text("name", d.name)
	w.text("kind", d.kind)
	w.text("image", d.image)
	w.variables("env", d.env)
	w.list("secrets", d.secrets)
	w.variables("labels", d.labels)
	w.text("workdir", d.workdir)
	if len(d.mounts) > 0 {
		w.line("mounts:")
		for _, m := range d.mounts {
			w.line("  - {from: " + scalar(m.Local) + ", to: " + scalar(m.Remote) + "}")
		}
	}
	w.text("setup", d.setup)
	w.text("run", d.run)
	if len(d.ports) > 0 {
		ports := make([]string, len(d.ports))
		for i, p := range d.ports {
			ports[i] = strconv.Itoa(p)
		}
		w.line("ports: [" + strings.Join(ports, ", ") + "]")
	}
	if h := d.health; h != nil {
		w.flow("health", "port", strconv.Itoa(h.port), "path", scalar(h.path), "every", h.every, "start", h.start)
	}
	d.writeResources(w)
	w.flow("data", "download", d.download, "upload", d.upload)
	w.flow("limits", "price", d.price, "duration", d.duration, "idle", d.idle)
	w.flow("place", "terms", flowList(d.terms), "classes", flowList(d.classes), "providers", flowList(d.providers), "regions", flowList(d.regions))
	w.list("after", d.after)
	w.number("priority", d.priority)
	w.number("retries", d.retries)
	return []byte(w.b.String())
}

func (d *draft) writeResources(w *writer) {
	gpus := ""
	if d.noGPU {
		gpus = "0"
	} else if len(d.gpus) > 0 {
		wishes := make([]string, len(d.gpus))
		for i, g := range d.gpus {
			wishes[i] = g.write()
		}
		gpus = "[" + strings.Join(wishes, ", ") + "]"
	}
	nodes, cpus := "", ""
	if d.nodes > 1 {
		nodes = strconv.Itoa(d.nodes)
	}
	if d.cpus > 0 {
		cpus = strconv.FormatFloat(d.cpus, 'f', -1, 64) + "+"
	}
	memory := d.memory
	if memory != "" {
		memory += "+"
	}
	if gpus+nodes+cpus+memory+d.disk == "" {
		return
	}
	w.line("resources:")
	for _, p := range [][2]string{{"gpus", gpus}, {"nodes", nodes}, {"cpus", cpus}, {"memory", memory}, {"disk", d.disk}} {
		if p[1] != "" {
			w.line("  " + p[0] + ": " + p[1])
		}
	}
}

// writer writes the lines of a job's text.
type writer struct {
	b      strings.Builder
	quoted bool
}

func (w *writer) line(s string) { w.b.WriteString(s + "\n") }

func (w *writer) number(key string, n int) {
	if n != 0 {
		w.line(key + ": " + strconv.Itoa(n))
	}
}

// text writes a text that is not empty, as a block where it has several lines.
func (w *writer) text(key, s string) {
	switch {
	case s == "":
	case strings.Contains(s, "\n") && !w.quoted && blockable(s):
		body, ended := strings.CutSuffix(s, "\n")
		mark := "|"
		if !ended {
			mark = "|-"
		}
		w.line(key + ": " + mark)
		for l := range strings.SplitSeq(body, "\n") {
			if l == "" {
				w.line("")
				continue
			}
			w.line("  " + l)
		}
	default:
		w.line(key + ": " + scalar(s))
	}
}

func (w *writer) variables(key string, all []variable) {
	if len(all) == 0 {
		return
	}
	w.line(key + ":")
	for _, v := range all {
		w.line("  " + scalar(v.name) + ": " + scalarOrEmpty(v.value))
	}
}

func (w *writer) list(key string, all []string) {
	if len(all) > 0 {
		w.line(key + ": " + flowList(all))
	}
}

// flow writes an object in one line, without the keys that are empty.
func (w *writer) flow(key string, pairs ...string) {
	if s := flowMap(pairs...); s != "{}" {
		w.line(key + ": " + s)
	}
}

func flowMap(pairs ...string) string {
	var parts []string
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			parts = append(parts, pairs[i]+": "+pairs[i+1])
		}
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func flowList(all []string) string {
	if len(all) == 0 {
		return ""
	}
	parts := make([]string, len(all))
	for i, s := range all {
		parts[i] = scalarOrEmpty(s)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// blockable says whether a text comes back unchanged from a literal block.
func blockable(s string) bool {
	if s[0] == ' ' || s[0] == '\n' || s[0] == '\t' || strings.HasSuffix(s, "\n\n") {
		return false
	}
	for _, c := range s {
		if c < ' ' && c != '\n' && c != '\t' || c == 0x7f || c == 0x85 || c == 0x2028 || c == 0x2029 || c == 0xfeff {
			return false
		}
	}
	return true
}

// plain is text that needs no quotes in any place.
var plain = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^[A-Za-z/.~_][A-Za-z0-9/._~@+-]*( [A-Za-z0-9/._~@+=-]+)*$`)
})

// reserved are words that YAML, of one version or the other, takes for
// something else than text.
var reserved = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(?i)(true|false|yes|no|on|off|y|n|null|~|\.nan|\.inf|[._0-9+-]+(e[0-9+-]+)?|\.?[0-9._]+)$`)
})

// scalar writes a text; an empty one is nothing.
func scalar(s string) string {
	if s == "" {
		return ""
	}
	return scalarOrEmpty(s)
}

func scalarOrEmpty(s string) string {
	if plain().MatchString(s) && !reserved().MatchString(s) {
		return s
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}
