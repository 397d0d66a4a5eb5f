package convert

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/destajo/destajo/fault"
)

// DStack reads a configuration of dstack: a task, a dev environment or a
// service. env gives the value of a variable that the file leaves open; nil has
// none. The error joins every mistake, each with line, column and what to do.
func DStack(file string, data []byte, env func(string) string) ([]Result, error) {
	docs, err := documents(file, data)
	if err != nil {
		return nil, err
	}
	if len(docs) > 1 {
		return nil, fault.New(fault.Invalid, "a second document begins here").At(file, docs[1].line, docs[1].column).Hint("one file is one configuration: split it")
	}
	s := &stack{reader: &reader{file: file}, d: &draft{nodes: 1}, env: env}
	if err := s.configuration(docs[0]); err != nil {
		return nil, err
	}
	if err := s.err(); err != nil {
		return nil, err
	}
	result, err := s.finish(s.d, "dstack")
	if err != nil {
		return nil, err
	}
	return []Result{result}, nil
}

// stack reads one configuration.
type stack struct {
	*reader
	d          *draft
	env        func(string) string
	entrypoint string
	start      value // of entrypoint
	directory  string
	shell      string // empty: bash, or sh in an image that the file names
	shellAt    value
	commands   []string
	early      []string // commands of setup
	instances  value    // instance_types
	maxPrice   value
	wished     bool // the file says something of GPUs
}

// others are configurations that are no jobs, with what stands for them here.
var others = map[string]string{
	"fleet":    "a fleet is no job: add hosts with `destajo machines add ssh://user@host`; machines of clouds come and go with the jobs",
	"volume":   "a volume is no job: keep files with checkpoint.dir, or bring them back with outputs",
	"gateway":  "a gateway is no job: `destajo port` forwards a service's port",
	"endpoint": "an endpoint is no job: write a service with the command that serves the model",
}

// runTypes are the configurations that are jobs.
var runTypes = []string{"task", "dev-environment", "service"}

func (s *stack) configuration(doc *node) error {
	at := root(doc)
	for _, p := range s.pairs(at) {
		if p.key == "type" {
			at = p.value
		}
	}
	name := ""
	if at.path == "type" {
		name = at.text
	}
	if why, ok := others[name]; ok {
		return fault.New(fault.Invalid, "type: %s", name).At(s.file, at.line, at.column).Hint("%s", why)
	}
	if !slices.Contains(runTypes, name) {
		e := fault.New(fault.Invalid, "type: expected one of %s, found %s", strings.Join(runTypes, ", "), at.what()).At(s.file, at.line, at.column)
		if near := fault.Nearest(name, runTypes); name != "" && len(near) > 0 {
			return e.Hint("did you mean %s?", near[0])
		}
		return e.Hint("write type: task")
	}
	s.object(root(doc), s.fields(name))
	if len(s.faults) == 0 {
		s.settle(named(doc, "commands"), name, at)
	}
	return nil
}

// fields are the keys of a configuration of a type.
func (s *stack) fields(kind string) []field {
	out := append(s.common(), s.profile()...)
	switch kind {
	case "task":
		return append(append(out, s.running()...), field{"nodes", s.wholeInto(&s.d.nodes, 1, 100_000)})
	case "service":
		return append(append(out, s.running()[1:]...), s.serving()...)
	}
	return append(out, s.developing()...)
}

// common are the keys of every job.
func (s *stack) common() []field {
	d := s.d
	shell := func(v value) {
		name, ok := s.scalar(v)
		if ok && name != "sh" && name != "bash" && !shellPath().MatchString(name) {
			s.fail(v, "%s is no shell", v.what()).Hint("write sh, bash or a path such as /usr/bin/zsh")
		}
		s.shell, s.shellAt = name, v
	}
	onHost := "the job runs on the host as it is, or in the image that the file names"
	return []field{
		{"type", func(value) {}},
		{"name", func(v value) {
			if name, ok := s.scalar(v); ok {
				d.name = s.jobName(v, name)
			}
		}},
		{"image", s.textInto(&d.image)},
		{"user", s.drop("the user is the one of the host or of the image")},
		{"privileged", s.onlyWhenTrue("containers have no more rights than the host's user gives them")},
		{"entrypoint", func(v value) { s.start = v; s.textInto(&s.entrypoint)(v) }},
		{"working_dir", s.textInto(&s.directory)},
		{"home_dir", s.drop("has no effect in dstack either")},
		{"registry_auth", func(v value) {
			login := "the image is fetched with the login of the machine: run docker login there"
			s.object(v, []field{{"username", s.drop(login)}, {"password", s.drop(login)}})
		}},
		{"python", s.drop(onHost + ": write image: python:3.12 for one with Python")},
		{"nvcc", s.onlyWhenTrue(onHost + ": write image: nvidia/cuda:12.8.1-devel-ubuntu24.04 for one with nvcc")},
		{"docker", s.onlyWhenTrue(onHost + ": there is no Docker within it")},
		{"single_branch", s.drop("a repository is fetched at the one commit that is needed")},
		{"env", s.environment},
		{"shell", shell},
		{"resources", s.resources},
		{"priority", s.wholeInto(&d.priority, 0, 100)},
		{"volumes", s.volumes},
		{"repos", s.repositories},
		{"files", s.files},
		{"setup", func(v value) {
			s.early = append(s.early, s.lines(v)...)
			s.note(v, "its commands run before the others; dstack has left it out since 0.18.31")
		}},
	}
}

// running are the keys of jobs with commands.
func (s *stack) running() []field {
	return []field{
		{"ports", s.ports},
		{"commands", func(v value) { s.commands = s.lines(v) }},
	}
}

// lines reads a list of commands, of which some may be equal.
func (s *stack) lines(v value) []string {
	var out []string
	for _, item := range s.items(v) {
		if c, ok := s.scalar(item); ok && strings.TrimSpace(c) != "" {
			out = append(out, c)
		}
	}
	return out
}

// developing are the keys of a dev environment.
func (s *stack) developing() []field {
	editor := s.drop("no editor is set up: `destajo ssh` gives a shell, and editors reach the machine through it")
	return []field{
		{"ports", s.ports},
		{"ide", editor},
		{"version", editor},
		{"init", func(v value) { s.early = append(s.early, s.lines(v)...) }},
		{"inactivity_duration", func(v value) {
			if t, off, ok := s.span(v); ok && off {
				s.d.idle = "off"
			} else if ok {
				s.d.idle = t
			}
		}},
	}
}

// serving are the keys of a service: one of it runs, on one machine.
func (s *stack) serving() []field {
	d := s.d
	lone := s.drop("one of it runs, on one machine")
	direct := s.drop("requests come through `destajo port` straight to the service: nothing stands before it")
	return []field{
		{"port", func(v value) {
			if p := s.port(v); p != 0 {
				d.ports = []int{p}
			}
		}},
		{"gateway", direct},
		{"strip_prefix", direct},
		{"https", direct},
		{"auth", direct},
		{"rate_limits", direct},
		{"router", direct},
		{"model", s.drop("there is no common address of models: the service answers at its own port")},
		{"scaling", lone},
		{"replicas", func(v value) {
			if v.kind == list {
				s.fatal(v, "groups of replicas are not known here: write a service for each")
				return
			}
			if v.text != "1" && v.text != "1..1" {
				s.note(v, "one of it runs, on one machine")
			}
		}},
		{"probes", s.probes},
	}
}

// onlyWhenTrue notes a switch that is on.
func (s *stack) onlyWhenTrue(why string) func(value) {
	return func(v value) {
		if on, ok := s.flag(v); ok && on {
			s.note(v, "%s", why)
		}
	}
}

var stackSecret = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$\{\{\s*secrets\.([A-Za-z0-9_-]+)\s*\}\}`) })

// environment reads a map of names to values, or a list of NAME=VALUE. A name
// without value is taken from the environment.
func (s *stack) environment(v value) {
	set := func(at value, name, text string, given bool) {
		if !s.variable(at, name) {
			return
		}
		if slices.ContainsFunc(s.d.env, func(o variable) bool { return o.name == name }) {
			s.fail(at, "%s stands here twice", name).Hint("remove one")
			return
		}
		if !given {
			if s.env != nil {
				text = s.env(name)
			}
			if text == "" {
				s.fatal(at, "has no value: set %s in the environment, or write %s=VALUE", name, name)
				return
			}
		}
		if m := stackSecret().FindStringSubmatch(text); m != nil && m[0] == strings.TrimSpace(text) {
			s.d.secrets = sum(s.d.secrets, name)
			s.note(at, "dstack's server keeps this secret as %s: one of the name %s must be kept here", m[1], name)
			return
		} else if m != nil {
			s.fatal(at, "a secret is a whole variable here and no part of one: give it a variable, and put the rest around it in the commands")
			return
		}
		s.d.env = append(s.d.env, variable{name, text})
	}
	if v.kind == mapping {
		for _, p := range s.pairs(v) {
			if p.value.kind == list || p.value.kind == mapping {
				s.fail(p.value, "expected text, found %s", p.value.what()).Hint(`write %s: "" for an empty value`, p.key)
				continue
			}
			set(p.value, p.key, p.value.text, p.value.kind != null)
		}
		return
	}
	for _, item := range s.items(v) {
		if line, ok := s.scalar(item); ok {
			name, text, given := strings.Cut(line, "=")
			item.path = v.path + "." + name
			set(item, name, text, given)
		}
	}
}

// port reads a port, or a mapping of a local one to the job's.
func (s *stack) port(v value) int {
	local, port := "", v.text
	if v.kind == mapping {
		port = ""
		s.object(v, []field{
			{"local_port", s.textInto(&local)},
			{"container_port", s.textInto(&port)},
		})
	} else if before, after, ok := strings.Cut(v.text, ":"); ok {
		local, port = before, after
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 1 || n > 65535 {
		s.fail(v, "%s is no port", v.what()).Hint("write a port such as 8080, or LOCAL:PORT such as 80:8080")
		return 0
	}
	if local != "" && local != port {
		s.note(v, "the local port is chosen when it is forwarded: `destajo port` takes it")
	}
	return n
}

func (s *stack) ports(v value) {
	for _, item := range s.items(v) {
		if p := s.port(item); p != 0 && !slices.Contains(s.d.ports, p) {
			s.d.ports = append(s.d.ports, p)
		}
	}
	s.note(v, "ports are forwarded when someone asks: `destajo port`")
}

// probes reads the first HTTP check.
func (s *stack) probes(v value) {
	for i, item := range s.items(v) {
		if i > 0 {
			s.note(item, "only the first check is made")
			continue
		}
		h := &health{}
		s.d.health = h
		bare := true
		unset := s.drop("is not set here: a check is a GET that must give a status below 400")
		posts := func(v value) { bare = false; s.note(v, "the check is only that the port takes connections") }
		s.object(item, []field{
			{"type", func(v value) {
				if v.text != "http" {
					s.fail(v, "%s is no kind of check", v.what()).Hint("write type: http")
				}
			}},
			{"url", s.textInto(&h.path)},
			{"method", func(v value) {
				if !strings.EqualFold(v.text, "get") {
					posts(v)
				}
			}},
			{"headers", posts},
			{"body", posts},
			{"timeout", unset},
			{"interval", func(v value) {
				if t, off, ok := s.span(v); ok && !off {
					h.every = t
				}
			}},
			{"ready_after", unset},
			{"until_ready", s.onlyWhenTrue("checks go on as long as the service runs")},
		})
		if h.path == "" {
			h.path = "/"
		}
		if !bare {
			h.path = ""
		}
	}
}

// volumes reads mounts of volumes and of folders of the host.
func (s *stack) volumes(v value) {
	const why = "volumes are not known here, and the job would not find it: send files along with mounts, keep them with checkpoint.dir or bring them back with outputs"
	for _, item := range s.items(v) {
		if item.kind != mapping {
			s.fatal(item, why)
			continue
		}
		var name, host, path string
		optional := false
		s.object(item, []field{
			{"name", func(v value) { name = v.what() }},
			{"instance_path", s.textInto(&host)},
			{"path", s.textInto(&path)},
			{"optional", func(v value) { optional, _ = s.flag(v) }},
		})
		if name == "" && host != "" && optional {
			s.note(item, "folders of the host are not mounted: it is optional, and left out")
			continue
		}
		s.fatal(item, why)
	}
}

// repositories reads the repository that the job works in: a local folder is
// the workdir, one of an address is fetched.
func (s *stack) repositories(v value) {
	for i, item := range s.items(v) {
		if i > 0 {
			s.fail(item, "a second repository").Hint("dstack takes one: send other folders along with files")
			return
		}
		var local, url, branch, hash, path string
		if item.kind == mapping {
			s.object(item, []field{
				{"local_path", s.textInto(&local)}, {"url", s.textInto(&url)}, {"branch", s.textInto(&branch)}, {"hash", s.textInto(&hash)},
				{"path", s.textInto(&path)}, {"if_exists", s.drop("files that are there already are written over")},
			})
		} else if text, ok := s.scalar(item); ok {
			local, url, path = repository(text)
		}
		if hash == "" {
			hash = branch
		}
		switch {
		case local != "" && url != "", local == "" && url == "":
			s.fail(item, "expected a local path or an address").Hint("write one of local_path and url")
		case url != "":
			s.note(item, "is fetched with git on the machine, which must have git and may need your login")
			if path != "" && path != "." {
				s.d.fetch += "mkdir -p " + quotePath(path) + " && cd " + quotePath(path) + " || exit 1\n" + fetchRepository(url, hash) + "cd \"$OLDPWD\"\n"
			} else {
				s.d.fetch += fetchRepository(url, hash)
			}
		case path != "" && path != ".":
			s.d.mounts = append(s.d.mounts, File{local, path})
		default:
			s.d.workdir = local
			if branch != "" || hash != "" {
				s.note(item, "the folder is sent as it is, whatever branch it is on")
			}
		}
	}
}

// repository splits PATH or ADDRESS, with :PATH where it shall lie.
func repository(text string) (local, url, path string) {
	parts := strings.Split(text, ":")
	address := len(parts) > 1 && (strings.Contains(parts[0], "@") || strings.HasPrefix(parts[1], "//"))
	if address {
		parts = append([]string{parts[0] + ":" + parts[1]}, parts[2:]...)
	}
	if len(parts) > 1 {
		path = strings.Join(parts[1:], ":")
	}
	if address {
		return "", parts[0], path
	}
	return parts[0], "", path
}

// files reads local files that are sent along.
func (s *stack) files(v value) {
	for _, item := range s.items(v) {
		var from, to string
		if item.kind == mapping {
			s.object(item, []field{{"local_path", s.textInto(&from)}, {"path", s.textInto(&to)}})
		} else if text, ok := s.scalar(item); ok {
			var has bool
			if from, to, has = strings.Cut(text, ":"); !has {
				to = from
			}
		}
		switch {
		case from == "" || to == "":
			s.fail(item, "a path is missing").Hint("write ./data:/data, or a path alone")
		case to == "." && s.d.workdir == "":
			s.d.workdir = from
		default:
			s.d.mounts = append(s.d.mounts, File{from, to})
		}
	}
}

// stackVariables are set from ours before the commands run.
const stackVariables = `export DSTACK_NODE_RANK="${DESTAJO_NODE_RANK:-0}" DSTACK_NODES_NUM="${DESTAJO_NODES:-1}" DSTACK_GPUS_PER_NODE="${DESTAJO_GPUS_PER_NODE:-0}"
export DSTACK_GPUS_NUM="$((DSTACK_NODES_NUM * DSTACK_GPUS_PER_NODE))" DSTACK_MASTER_NODE_IP="${DESTAJO_MASTER:-127.0.0.1}"
export DSTACK_NODES_IPS="$(printf '%s\n' "${DESTAJO_HOSTS:-127.0.0.1}" | tr ',' '\n')" DSTACK_MPI_HOSTFILE="${DESTAJO_HOSTFILE:-}"
export DSTACK_RUN_NAME="${DESTAJO_NAME:-}" DSTACK_WORKING_DIR="$PWD" DSTACK_REPO_DIR="$PWD"
`

var stackVariable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`DSTACK_[A-Z][A-Z_]*`) })

// settle makes the commands and checks what spans several keys.
func (s *stack) settle(doc value, kind string, at value) {
	d := s.d
	d.kind = map[string]string{"service": "service", "dev-environment": "notebook"}[kind]
	if !s.wished {
		d.noGPU = true
		if s.instances.node != nil {
			d.noGPU = false
			s.fatal(s.instances, "an instance type alone does not say what the machine has: write resources.gpu, or gpu: 0")
		}
	}
	if s.maxPrice.node != nil {
		if x, ok := s.positive(s.maxPrice, s.maxPrice.text); ok {
			d.price = s.pricePerHour(s.maxPrice, s.dollars(s.maxPrice, x), d.nodes)
		}
	}
	if kind == "service" {
		if len(d.ports) == 0 {
			s.fail(at, "a service without port").Hint("write port: 8000")
		} else if d.health == nil {
			d.health = &health{}
		}
		if d.health != nil && len(d.ports) > 0 {
			d.health.port = d.ports[0]
		}
	}
	run := joinCommands(s.commands)
	switch {
	case kind == "dev-environment":
		run = "sleep infinity"
		if s.shell != "" {
			s.note(s.shellAt, "`destajo ssh` gives bash, or sh where there is none")
		}
		if d.idle == "" {
			s.note(at, "a notebook ends when nobody has used it for an hour: limits.idle says otherwise")
		}
	case run == "" && d.image == "":
		s.fail(doc, "neither commands nor image").Hint("write commands: with at least one")
	}
	if s.entrypoint != "" {
		if run == "" {
			run = s.entrypoint
		} else {
			run = s.entrypoint + " " + quote(run)
		}
		s.note(s.start, "the entrypoint stands in run, before the commands as its only argument")
	}
	for _, name := range stackVariable().FindAllString(run, -1) {
		own := slices.ContainsFunc(d.env, func(v variable) bool { return v.name == name })
		if !strings.Contains(stackVariables, name+"=") && !own {
			s.note(doc, "the commands use %s, which is not set here", name)
		}
	}
	if d.image == "" && provided().MatchString(joinCommands(append(slices.Clone(s.early), s.commands...))) {
		s.note(doc, "the commands use uv or conda, which dstack's own image has: name an image that has it, or install it")
	}
	before := d.fetch
	if s.directory != "" {
		before += "mkdir -p " + quotePath(s.directory) + " && cd " + quotePath(s.directory) + " || exit 1\n"
	}
	if setup := joinCommands(s.early); setup != "" {
		d.setup = before + stackVariables + s.inShell(setup)
	}
	if run != "" {
		if len(s.commands) > 0 && s.entrypoint == "" {
			run = s.inShell(run)
		}
		d.run = before + stackVariables + run
	} else if before != "" {
		s.fatal(doc, "without commands the image's own command runs, and nothing can come before it: write commands")
	}
}

var shellPath = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^/[A-Za-z0-9_./+-]+$`) })

// inShell makes commands run in the shell of dstack: bash, or sh in an image
// that the file names, unless it says which.
func (s *stack) inShell(commands string) string {
	switch {
	case s.shell == "sh" || s.shell == "" && s.d.image != "":
		return commands
	case s.shell == "":
		return inShell("bash", commands)
	}
	return inShell(s.shell, commands)
}

// joinCommands makes one command of all: the first that fails ends them.
func joinCommands(all []string) string {
	parts := make([]string, len(all))
	for i, c := range all {
		c = strings.TrimSpace(c)
		if strings.HasSuffix(c, "&") && !strings.HasSuffix(c, "&&") {
			c = "{ " + c + " }"
		}
		parts[i] = c
	}
	return strings.Join(parts, " &&\n")
}
