package convert

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// SkyPilot reads a task file of SkyPilot. A file with several documents is a
// pipeline: it gives a job for each, and each waits for the one before. env
// gives the value of a variable that the file leaves open; nil has none. The
// error joins every mistake, each with line, column and what to do.
func SkyPilot(file string, data []byte, env func(string) string) ([]Result, error) {
	docs, err := documents(file, data)
	if err != nil {
		return nil, err
	}
	title := &reader{file: file}
	pipeline, parallel := "", false
	if len(docs) > 1 && isHeader(docs[0]) {
		title.object(root(docs[0]), title.headerFields(&pipeline, &parallel))
		docs = docs[1:]
	}
	all := []*reader{title}
	var drafts []*draft
	for i, doc := range docs {
		s := &sky{reader: &reader{file: file}, d: &draft{nodes: 1}, env: env}
		s.task(doc)
		if i == 0 {
			s.notes = append(title.notes, s.notes...)
		}
		s.chain(doc, drafts, len(docs), pipeline, parallel)
		all, drafts = append(all, s.reader), append(drafts, s.d)
	}
	faults := &reader{file: file}
	for _, r := range all {
		faults.faults = append(faults.faults, r.faults...)
	}
	if err := faults.err(); err != nil {
		return nil, err
	}
	var out []Result
	for i, r := range all[1:] {
		result, err := r.finish(drafts[i], "SkyPilot")
		if err != nil {
			return nil, err
		}
		out = append(out, result)
	}
	return out, nil
}

// headerKeys are those of the document that may stand before a pipeline.
var headerKeys = []string{"name", "execution", "primary_tasks", "termination_delay"}

func isHeader(n *node) bool {
	return !slices.ContainsFunc(n.entries, func(e entry) bool { return !slices.Contains(headerKeys, e.key) })
}

func (r *reader) headerFields(name *string, parallel *bool) []field {
	return []field{
		{"name", r.textInto(name)},
		{"execution", func(v value) {
			switch v.text {
			case "serial":
			case "parallel":
				*parallel = true
				r.fatal(v, "jobs that start together and find each other are not known here: submit them one by one, or make them one job with resources.nodes")
			default:
				r.fail(v, "%s is no way to run a pipeline", v.what()).Hint("write serial or parallel")
			}
		}},
		{"primary_tasks", r.drop("every job ends by itself")},
		{"termination_delay", r.drop("every job ends by itself")},
	}
}

// sky reads one task.
type sky struct {
	*reader
	d       *draft
	env     func(string) string
	known   map[string]string // variables of the file, for $NAME within it
	service value
}

// chain names the job within a pipeline and makes it wait for the one before.
func (s *sky) chain(doc *node, before []*draft, count int, pipeline string, parallel bool) {
	if count < 2 {
		if s.d.name == "" && pipeline != "" {
			s.d.name = s.jobName(named(doc, "name"), pipeline)
		}
		return
	}
	if s.d.name == "" {
		if pipeline == "" {
			pipeline = "task"
		}
		s.d.name = (&reader{}).jobName(root(doc), cut(pipeline, 50)+"-"+strconv.Itoa(len(before)+1))
	}
	taken := func(name string) bool {
		return slices.ContainsFunc(before, func(d *draft) bool { return d.name == name })
	}
	for base, i := cut(s.d.name, 50), 2; taken(s.d.name); i++ {
		s.d.name = strings.TrimRight(strings.TrimSuffix(base, "…"), "-") + "-" + strconv.Itoa(i)
	}
	if len(before) > 0 && !parallel {
		s.d.after = []string{before[len(before)-1].name}
	}
}

func (s *sky) task(doc *node) {
	if n := doc.get("envs"); n != nil {
		s.open(n)
	}
	var resources, run, setup value
	s.object(root(doc), s.fields(&resources, &setup, &run))
	if s.service.node != nil {
		s.d.kind = "service"
	} else if strings.TrimSpace(s.d.run) == "" {
		s.d.kind, s.d.run = "notebook", "sleep infinity"
		s.note(named(doc, "run"), "without run it is a machine to work on: a notebook that holds it; `destajo ssh` goes there, and it ends when nobody uses it (limits.idle)")
	}
	if resources.node == nil {
		resources = root(&node{kind: mapping, line: doc.line, column: doc.column})
		resources.path = "resources"
	}
	s.resources(resources)
	if s.service.node != nil {
		s.serve()
	}
	s.commands(setup, run)
}

// fields are the keys of a task.
func (s *sky) fields(resources, setup, run *value) []field {
	d := s.d
	return []field{
		{"name", func(v value) {
			if name, ok := s.scalar(v); ok {
				d.name = s.jobName(v, name)
			}
		}},
		{"workdir", func(v value) { s.workdir(s.expand(v)) }},
		{"num_nodes", s.wholeInto(&d.nodes, 1, 100_000)},
		{"resources", func(v value) { *resources = s.expand(v) }},
		{"envs", s.envs},
		{"secrets", s.secrets},
		{"managed_secrets", s.managed},
		{"file_mounts", func(v value) { s.mounts(s.expand(v)) }},
		{"storage_mounts", func(v value) { s.mounts(s.expand(v)) }},
		{"volumes", func(v value) { s.volumes(s.expand(v)) }},
		{"volume_mounts", s.refuse("volumes are not known here: send files along with mounts, keep them with checkpoint.dir or bring them back with outputs")},
		{"setup", func(v value) { *setup = v; s.textInto(&d.setup)(v) }},
		{"run", func(v value) { *run = v; s.textInto(&d.run)(v) }},
		{"service", func(v value) { s.service = s.expand(v) }},
		{"pool", s.refuse("pools of workers are not known here: submit jobs one by one, they share machines as they fit")},
		{"config", s.config},
		{"experimental", func(v value) {
			for _, p := range s.pairs(v) {
				s.note(p.value, "settings of SkyPilot itself are not carried over")
			}
		}},
		{"inputs", s.traffic(&d.download)},
		{"outputs", s.traffic(&d.upload)},
		{"event_callback", s.drop("no command runs on events: `destajo job` and `destajo jobs -o json` tell the states")},
		{"api_server_access", s.drop("there is no SkyPilot server: the job has no access to one")},
		{"file_mounts_mapping", s.drop("is internal to SkyPilot")},
		{"_metadata", s.drop("is internal to SkyPilot")},
	}
}

// open notes the values of the file's own variables.
func (s *sky) open(n *node) {
	s.known = map[string]string{}
	for _, e := range n.entries {
		switch e.value.kind {
		case text, number, boolean:
			s.known[e.key] = python(e.value)
		case null:
			if given := s.given(e.key); given != "" {
				s.known[e.key] = given
			}
		}
	}
}

func (s *sky) given(name string) string {
	if s.env == nil {
		return ""
	}
	return s.env(name)
}

var decimal = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[-+]?[0-9]{1,15}\.[0-9]*$`) })

// python gives a scalar as Python writes it: SkyPilot makes text of what its
// YAML library has read as something else.
func python(n *node) string {
	switch {
	case n.kind == boolean || n.kind == text && !n.quoted && slices.Contains([]string{"yes", "no", "on", "off"}, strings.ToLower(n.text)):
		if slices.Contains([]string{"true", "yes", "on"}, strings.ToLower(n.text)) {
			return "True"
		}
		return "False"
	case n.kind == number && decimal().MatchString(n.text):
		x, err := strconv.ParseFloat(n.text, 64)
		if err != nil || x != 0 && x < 1e-4 && x > -1e-4 {
			return n.text
		}
		out := strconv.FormatFloat(x, 'f', -1, 64)
		if !strings.Contains(out, ".") {
			out += ".0"
		}
		return out
	}
	return n.text
}

func (s *sky) envs(v value) {
	for _, p := range s.pairs(v) {
		if !s.variable(p.value, p.key) {
			continue
		}
		if strings.HasPrefix(p.key, "SKYPILOT_DOCKER_") || strings.HasPrefix(p.key, "SKYPILOT_RUNPOD_DOCKER_") {
			s.note(p.value, "the image is fetched with the login of the machine: run docker login there")
			continue
		}
		switch value, ok := s.known[p.key]; {
		case ok:
			s.d.env = append(s.d.env, variable{p.key, value})
		case p.value.kind == null:
			s.fatal(p.value, "has no value: set %s in the environment, or write one", p.key)
		default:
			s.fail(p.value, "expected text, found %s", p.value.what()).Hint(`write %s: "" for an empty value`, p.key)
		}
	}
}

func (s *sky) secrets(v value) {
	if v.kind == list {
		for _, item := range s.items(v) {
			if name, ok := s.scalar(item); ok && s.variable(item, name) {
				s.kept(item, name)
			}
		}
		return
	}
	for _, p := range s.pairs(v) {
		if !s.variable(p.value, p.key) {
			continue
		}
		switch p.value.kind {
		case null:
			if given := s.given(p.key); given != "" {
				s.plainSecret(p.value, p.key, given)
			} else {
				s.fatal(p.value, "has no value: set %s in the environment, or write one", p.key)
			}
		case text, number, boolean:
			s.plainSecret(p.value, p.key, python(p.value.node))
		default:
			s.fail(p.value, "expected text, found %s", p.value.what()).Hint("write the secret's value, or nothing to take it from the environment")
		}
	}
}

// plainSecret makes a variable of a secret whose value stands in the file.
func (s *sky) plainSecret(v value, name, text string) {
	s.d.env = append(s.d.env, variable{name, text})
	s.note(v, "is a variable of the job here: who can read the job can read it")
}

// kept is a secret that SkyPilot's server keeps.
func (s *sky) kept(v value, name string) {
	s.d.secrets = sum(s.d.secrets, name)
	s.note(v, "SkyPilot's server keeps this secret: one of the name %s must be kept here", name)
}

func (s *sky) managed(v value) {
	for _, item := range s.items(v) {
		if item.kind != mapping {
			if name, ok := s.scalar(item); ok && s.variable(item, name) {
				s.kept(item, name)
			}
			continue
		}
		for _, p := range s.pairs(item) {
			if !s.variable(p.value, p.key) {
				continue
			}
			s.kept(p.value, p.key)
			if p.value.kind != null {
				s.object(p.value, []field{{"mount_path", s.refuse("a secret is a variable here and not a file: write it to one in setup")}})
			}
		}
	}
}

var reference = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`\$(\{[A-Za-z_][A-Za-z0-9_]*\}|[A-Za-z_][A-Za-z0-9_]*)`)
})

// expand replaces $NAME and ${NAME} of the file's own variables in keys and
// values, as SkyPilot does in all but commands.
func (s *sky) expand(v value) value {
	if len(s.known) == 0 {
		return v
	}
	put := func(text string) string {
		return reference().ReplaceAllStringFunc(text, func(m string) string {
			if x, ok := s.known[strings.Trim(m, "${}")]; ok {
				return x
			}
			return m
		})
	}
	var walk func(n *node) *node
	walk = func(n *node) *node {
		c := *n
		c.items, c.entries = nil, nil
		if c.kind == text {
			c.text = put(c.text)
		}
		for _, i := range n.items {
			c.items = append(c.items, walk(i))
		}
		for _, e := range n.entries {
			e.key, e.value = put(e.key), walk(e.value)
			c.entries = append(c.entries, e)
		}
		return &c
	}
	v.node = walk(v.node)
	return v
}

func (s *sky) workdir(v value) {
	if v.kind != mapping {
		s.textInto(&s.d.workdir)(v)
		return
	}
	var url, ref string
	s.object(v, []field{{"url", s.textInto(&url)}, {"ref", s.textInto(&ref)}})
	if url == "" {
		s.fail(v, "url is missing").Hint("write the address of the repository, or a local folder")
		return
	}
	s.d.fetch += fetchRepository(url, ref)
	s.note(v, "is fetched with git on the machine, which must have git and may need your login")
}

// traffic reads the amount of data that a task moves.
func (s *sky) traffic(into *string) func(value) {
	return func(v value) {
		for _, p := range s.pairs(v) {
			if x, ok := s.positive(p.value, p.value.text); ok {
				*into = strconv.FormatFloat(x, 'f', -1, 64) + "GiB"
				s.note(p.value, "its amount counts as traffic; where it lies is not known here: add data.from or data.to, such as aws:us-east-1")
			}
		}
	}
}

// configKeys are the sections that a task may set.
var configKeys = []string{"active_workspace", "allowed_clouds", "aws", "azure", "docker", "gcp", "hooks", "kubernetes", "nebius", "nvidia_gpus", "oci", "runpod", "slurm", "ssh", "vast"}

func (s *sky) config(v value) {
	fields := make([]field, len(configKeys))
	for i, key := range configKeys {
		fields[i] = field{key, func(v value) {
			if v.kind != mapping || len(v.entries) == 0 {
				s.note(v, "settings of SkyPilot itself are not carried over")
				return
			}
			for _, p := range s.pairs(v) {
				s.note(p.value, "settings of SkyPilot itself are not carried over")
			}
		}}
	}
	s.object(v, fields)
}

// skyVariables are set from ours before the commands run.
const skyVariables = `export SKYPILOT_NODE_RANK="${DESTAJO_NODE_RANK:-0}" SKYPILOT_NUM_NODES="${DESTAJO_NODES:-1}"
export SKYPILOT_NUM_GPUS_PER_NODE="${DESTAJO_GPUS_PER_NODE:-0}" SKYPILOT_TASK_ID="${DESTAJO_JOB:-}"
export SKYPILOT_NODE_IPS="$(printf '%s\n' "${DESTAJO_HOSTS:-127.0.0.1}" | tr ',' '\n')"
`

// skySetupVariables are those that setup finds beside them.
const skySetupVariables = `export SKYPILOT_SETUP_NODE_RANK="$SKYPILOT_NODE_RANK" SKYPILOT_SETUP_NODE_IPS="$SKYPILOT_NODE_IPS"
export SKYPILOT_SETUP_NUM_GPUS_PER_NODE="$SKYPILOT_NUM_GPUS_PER_NODE"
`

var (
	provided = sync.OnceValue(func() *regexp.Regexp {
		return regexp.MustCompile(`(?m)(?:^|[;&|(]|\bthen|\bdo)[ \t]*(conda|uv) +[a-z]`)
	})
	activates = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\bconda +activate\b`) })
)

// condaHook lets conda activate work in a shell that nobody sits at.
const condaHook = `command -v conda >/dev/null && eval "$(conda shell.bash hook)"` + "\n"

var skyVariable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`SKYPILOT_[A-Z][A-Z_]*`) })

// commands puts the variables before setup and run, and tells what they use
// that is not there.
func (s *sky) commands(setup, run value) {
	d := s.d
	for _, c := range []struct {
		at   value
		text string
	}{{setup, d.setup}, {run, d.run}} {
		if c.at.node == nil {
			continue
		}
		for _, name := range skyVariable().FindAllString(c.text, -1) {
			set := strings.Contains(skyVariables, name+"=") || strings.Contains(skySetupVariables, name+"=") && c.at.path == "setup"
			_, own := s.known[name]
			if !set && !own {
				s.note(c.at, "uses %s, which is not set here", name)
			}
		}
		var tools []string
		for _, m := range provided().FindAllStringSubmatch(c.text, -1) {
			tools = sum(tools, m[1])
		}
		for _, tool := range tools {
			s.note(c.at, "uses %s, which SkyPilot puts on its machines: name an image that has it, or install it in setup", tool)
		}
		if strings.Contains(c.text, "sky_workdir") {
			s.note(c.at, "names ~/sky_workdir: the workdir is the folder where the commands start")
		}
	}
	if d.setup != "" {
		d.setup = skyVariables + skySetupVariables + d.fetch + skyShell(d.setup)
	}
	if d.kind != "notebook" {
		d.run = skyShell(d.run)
	}
	d.run = skyVariables + d.fetch + d.run
}

// skyShell runs commands in bash, as SkyPilot does.
func skyShell(commands string) string {
	if activates().MatchString(commands) {
		commands = condaHook + commands
	}
	return inShell("bash", commands)
}

// serve reads the service of a task: one of it runs, on one machine.
func (s *sky) serve() {
	d := s.d
	h := &health{start: "20m"} // SkyPilot waits 1200 s
	port := 0
	s.object(s.service, s.serviceFields(h, &port))
	if port != 0 {
		d.ports = append([]int{port}, slices.DeleteFunc(d.ports, func(p int) bool { return p == port })...)
	}
	if len(d.ports) == 0 {
		s.fatal(s.service, "no port says where the service answers: write resources.ports")
		return
	}
	h.port = d.ports[0]
	d.health = h
}

func (s *sky) serviceFields(h *health, port *int) []field {
	seconds := func(into *string) func(value) {
		return func(v value) {
			if x, ok := s.positive(v, v.text); ok {
				*into = strconv.FormatFloat(min(x, 1e8), 'f', -1, 64) + "s"
			}
		}
	}
	one := func(v value) {
		if n, ok := s.whole(v, 0, 1_000_000); ok && n != 1 {
			s.note(v, "one of it runs, on one machine")
		}
	}
	lone := s.drop("one of it runs, on one machine")
	probe := []field{
		{"path", s.textInto(&h.path)},
		{"initial_delay_seconds", seconds(&h.start)},
		{"timeout_seconds", s.drop("how long a check may take is not set here")},
		{"endpoint_probe_interval_seconds", seconds(&h.every)},
		{"consecutive_failure_threshold_timeout", s.drop("how long checks may fail is not set here")},
		{"post_data", func(v value) { s.note(v, "nothing is posted: the check is only that the port takes connections") }},
		{"headers", func(v value) { s.note(v, "no headers are sent: the check is only that the port takes connections") }},
	}
	return []field{
		{"readiness_probe", func(v value) {
			if v.kind != mapping {
				s.textInto(&h.path)(v)
				return
			}
			s.object(v, probe)
			if v.get("post_data") != nil || v.get("headers") != nil {
				h.path = ""
			}
		}},
		{"replica_policy", func(v value) {
			s.object(v, []field{
				{"min_replicas", one}, {"max_replicas", one}, {"num_overprovision", lone}, {"target_qps_per_replica", lone},
				{"dynamic_ondemand_fallback", s.drop("what runs after an interruption is decided anew: add on-demand to place.terms to allow it")},
				{"base_ondemand_fallback_replicas", lone}, {"spot_placer", lone}, {"upscale_delay_seconds", lone}, {"downscale_delay_seconds", lone},
			})
		}},
		{"replicas", one},
		{"workers", one},
		{"ports", s.wholeInto(port, 1, 65535)},
		{"load_balancing_policy", lone},
		{"load_balancer", func(v value) { s.object(v, []field{{"stream_timeout_seconds", lone}}) }},
		{"tls", s.drop("the port is reached through `destajo port`, which is encrypted: the service itself speaks what it speaks")},
		{"pool", s.refuse("pools of workers are not known here: submit jobs one by one, they share machines as they fit")},
	}
}
