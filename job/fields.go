package job

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
)

// The words that may stand in place.terms and place.classes. They are those
// of package offer, which this package does not import: plan joins the two.
var (
	termWords  = []string{"on-demand", "spot", "reserved", "owned"}
	classWords = []string{"hyperscaler", "neocloud", "marketplace", "colo", "serverless", "own"}
	precisions = []string{"fp32", "tf32", "bf16", "fp16", "f16", "fp8", "int8", "fp4", "nvfp4", "mxfp4", "int4", "4bit", "8bit", "q2_k", "q3_k_m", "q4_0", "q4_k_s", "q4_k_m", "q5_k_m", "q6_k", "q8_0", "iq4_xs"}
)

const (
	maxTokens = 1e18
	maxParams = 1e15
	maxInt    = 1 << 40
)

// fields are the keys of a job file.
func (s *Spec) fields(d *decoder) []field {
	return []field{
		{"version", "Version of this format: 1.", integerSchema, d.wholeInto(&s.Version, 1, 1)},
		{"name", "Name of the job: lower-case letters, digits and -. Default: the file's name.", textSchema, d.nameInto(&s.Name)},
		{"kind", "task runs to its end; service answers until it is stopped; notebook is for a person.", enumSchema("task", "service", "notebook"), func(n node) {
			if w, ok := d.word(n, []string{"task", "service", "notebook"}); ok {
				s.Kind = Kind(w)
			}
		}},
		{"image", "Container image; without it the command runs on the host. Prepared by name: pytorch, jax, vllm, unsloth.", textSchema, d.textInto(&s.Image)},
		{"env", "Environment variables.", mapSchema(textSchema), d.textMapInto(&s.Env, true)},
		{"secrets", "Names of secrets that the job gets as environment variables.", listSchema(textSchema), d.textsInto(&s.Secrets)},
		{"labels", "Words to find and account jobs by.", mapSchema(textSchema), d.textMapInto(&s.Labels, false)},
		{"workdir", "Folder that is sent along.", textSchema, d.textInto(&s.Workdir)},
		{"mounts", "Local files and folders that are sent along beside the workdir.", listSchema(objectSchema(func(d *decoder) []field { return mountFields(d, &Mount{}) })), d.mountsInto(&s.Mounts)},
		{"setup", "Command that runs once on a machine before run.", textSchema, d.textInto(&s.Setup)},
		{"run", "Command, in a shell.", textSchema, d.textInto(&s.Run)},
		{"ports", "Ports of the job that can be forwarded; the first is where a service answers.", listSchema(integerSchema), d.portsInto(&s.Ports)},
		{"health", "How one knows that a service answers.", objectSchema(func(d *decoder) []field { return healthFields(d, &Health{}) }), func(n node) {
			s.Health = &Health{Every: 10 * time.Second, Start: 5 * time.Minute}
			d.object(n, healthFields(d, s.Health))
		}},
		{"restart", "When a service that ended starts again.", enumSchema("always", "failure", "never"), func(n node) { s.Restart, _ = d.word(n, []string{"always", "failure", "never"}) }},
		{"outputs", "Files and folders that are brought back.", listSchema(textSchema), d.textsInto(&s.Outputs)},
		{"resources", "What one machine must have.", objectSchema(func(d *decoder) []field { return resourceFields(d, &Resources{}) }), func(n node) { d.object(n, resourceFields(d, &s.Resources)) }},
		{"work", "How much there is to do, in exactly one form. Needed to plan.", objectSchema(func(d *decoder) []field { return workFields(d, &Work{}) }), func(n node) { d.work(n, s) }},
		{"startup", "Time from request to useful work. Default: estimated from image, weights, network and boot.", durationSchema, d.durationInto(&s.Startup, true)},
		{"data", "What moves in and out, and what stays.", objectSchema(func(d *decoder) []field { return dataFields(d, &Data{}) }), func(n node) { d.data(n, &s.Data) }},
		{"checkpoint", "That the job can go on where it was interrupted.", objectSchema(func(d *decoder) []field { return checkpointFields(d, &Checkpoint{}) }), func(n node) { d.checkpoint(n, s) }},
		{"limits", "What ends or forbids what goes beyond it.", objectSchema(func(d *decoder) []field { return limitFields(d, &Limits{}) }), func(n node) { d.object(n, limitFields(d, &s.Limits)) }},
		{"place", "Where the job may run.", objectSchema(func(d *decoder) []field { return placeFields(d, &Place{}) }), func(n node) { d.object(n, placeFields(d, &s.Place)) }},
		{"array", "Number of equal jobs, for sweeps and frames.", integerSchema, d.wholeInto(&s.Array, 1, 1_000_000)},
		{"after", "Names of jobs that must have ended well before.", listSchema(textSchema), d.textsInto(&s.After)},
		{"priority", "Higher runs earlier: -1000 to 1000.", integerSchema, d.wholeInto(&s.Priority, -1000, 1000)},
		{"retries", "How often a failed job is tried again.", integerSchema, d.wholeInto(&s.Retries, 0, 1000)},
	}
}

func mountFields(d *decoder, m *Mount) []field {
	return []field{
		{"from", "Local file or folder.", textSchema, d.textInto(&m.From)},
		{"to", "Where it lies for the job.", textSchema, d.textInto(&m.To)},
	}
}

func healthFields(d *decoder, h *Health) []field {
	return []field{
		{"port", "Port; the first of ports unless said.", integerSchema, d.wholeInto(&h.Port, 1, 65535)},
		{"path", "Path of an HTTP GET; without it the port must take connections.", textSchema, d.textInto(&h.Path)},
		{"every", "Time between two checks.", durationSchema, d.spanInto(&h.Every)},
		{"start", "Grace from its start until it must answer.", durationSchema, d.spanInto(&h.Start)},
	}
}

func resourceFields(d *decoder, r *Resources) []field {
	request := anySchema(textSchema, integerSchema, objectSchema(func(d *decoder) []field { return longFields(d, &gpu.Long{}) }))
	return []field{
		{"gpus", "Any of these GPUs: NAME[:count][@partition], a least memory such as 24GB+, 0 for none, or the long form.", anySchema(request, listSchema(request)), d.gpusInto(r)},
		{"nodes", "Machines that start together.", integerSchema, d.wholeInto(&r.Nodes, 1, 100_000)},
		{"cpus", "Least number of vCPUs: 8+ or 8.", anySchema(integerSchema, textSchema), func(n node) {
			s, ok := scalarText(n.Node)
			if ok {
				if rest, plus := strings.CutSuffix(s, "+"); plus {
					s = rest
				}
			}
			x, err := parseNumber(s)
			if !ok || err != nil || !(x > 0) || x > 1e6 {
				d.fail(n, "expected a number of CPUs, found %s", kindOf(n.Node)).Hint("write a number above 0, as in 8+")
				return
			}
			r.CPUs = x
		}},
		{"memory", "Least host memory: 32GB+ or 32GB.", bytesSchema, d.bytesInto(&r.Memory, true)},
		{"disk", "Disk while the job runs.", bytesSchema, d.bytesInto(&r.Disk, true)},
	}
}

func longFields(d *decoder, l *gpu.Long) []field {
	return []field{
		{"model", "Card or family, such as H100.", textSchema, d.textInto(&l.Model)},
		{"form", "Socket: SXM, PCIe, NVL, OAM.", textSchema, d.textInto(&l.Form)},
		{"memory", "Memory of one card: 24GB+ or 24GB.", bytesSchema, d.textInto(&l.Memory)},
		{"count", "GPUs of one machine.", integerSchema, d.wholeInto(&l.Count, 1, 100_000)},
		{"partition", "MIG profile such as 3g.40gb, or a share such as 0.5.", anySchema(textSchema, numberSchema), d.textInto(&l.Partition)},
		{"vendor", "nvidia unless said.", textSchema, d.textInto(&l.Vendor)},
		{"compute", "CUDA compute capability, such as 8.0+.", anySchema(textSchema, numberSchema), d.textInto(&l.Compute)},
	}
}

func workFields(d *decoder, w *Work) []field {
	hourKeys := mapSchema(numberSchema)
	return []field{
		{"hours", "Elapsed hours of the whole job by GPU. A key without a count is for the count that resources asks.", hourKeys, d.hoursInto(w)},
		{"finetune", "Fine-tuning.", objectSchema(func(d *decoder) []field { return finetuneFields(d, &Finetune{}) }), func(n node) {
			w.Finetune = &Finetune{Epochs: 1}
			d.form(n, finetuneFields(d, w.Finetune), "model", "method", "tokens")
		}},
		{"train", "Training from random weights.", objectSchema(func(d *decoder) []field { return trainFields(d, &Train{}) }), func(n node) {
			w.Train = &Train{}
			d.form(n, trainFields(d, w.Train), "model", "tokens")
		}},
		{"generate", "Inference in bulk.", objectSchema(func(d *decoder) []field { return generateFields(d, &Generate{}) }), func(n node) {
			w.Generate = &Generate{}
			d.form(n, generateFields(d, w.Generate), "model", "output_tokens")
		}},
		{"images", "Training or inference over images.", objectSchema(func(d *decoder) []field { return imageFields(d, &Images{}) }), func(n node) {
			w.Images = &Images{Epochs: 1}
			d.form(n, imageFields(d, w.Images), "model", "mode", "images")
		}},
		{"units", "Anything countable, such as frames to render.", objectSchema(func(d *decoder) []field { return unitFields(d, &Units{}) }), func(n node) {
			w.Units = &Units{Unit: "unit"}
			d.form(n, unitFields(d, w.Units), "count", "rate")
		}},
		{"traffic", "What a service has to answer; cost per month.", objectSchema(func(d *decoder) []field { return trafficFields(d, &Traffic{}) }), func(n node) {
			w.Traffic = &Traffic{Peak: 1}
			d.form(n, trafficFields(d, w.Traffic), "model", "requests_per_day", "input_tokens", "output_tokens")
		}},
	}
}

func modelSchema() schema {
	return anySchema(textSchema, objectSchema(func(d *decoder) []field { return modelFields(d, &Model{}) }))
}

func modelFields(d *decoder, m *Model) []field {
	return []field{
		{"name", "Name of the model.", textSchema, d.textInto(&m.Name)},
		{"params", "Parameters, such as 7B.", countSchema, d.countInto(&m.Params, maxParams)},
		{"active", "Parameters that one token uses, of a mixture of experts.", countSchema, d.countInto(&m.Active, maxParams)},
		{"layers", "Layers.", integerSchema, d.wholeInto(&m.Layers, 1, 10_000)},
		{"hidden", "Width of the hidden state.", integerSchema, d.wholeInto(&m.Hidden, 1, 1_000_000)},
		{"kv_heads", "Heads of keys and values.", integerSchema, d.wholeInto(&m.KVHeads, 1, 10_000)},
		{"head_dim", "Width of one head.", integerSchema, d.wholeInto(&m.HeadDim, 1, 100_000)},
		{"vocab", "Size of the vocabulary.", integerSchema, d.wholeInto(&m.Vocab, 1, 100_000_000)},
		{"context", "Longest context in tokens.", countSchema, d.countIntInto(&m.Context, maxInt)},
	}
}

func finetuneFields(d *decoder, f *Finetune) []field {
	return []field{
		{"model", "The model.", modelSchema(), d.modelInto(&f.Model)},
		{"method", "lora, qlora or full.", enumSchema("lora", "qlora", "full"), func(n node) { f.Method, _ = d.word(n, []string{"lora", "qlora", "full"}) }},
		{"tokens", "Tokens of one epoch.", countSchema, d.countInto(&f.Tokens, maxTokens)},
		{"epochs", "Times over the data; 1 unless said.", numberSchema, d.countInto(&f.Epochs, 1e6)},
		{"sequence", "Tokens per sample.", countSchema, d.countIntInto(&f.Sequence, maxInt)},
		{"stack", "Software: peft, unsloth, torchtune, ...", textSchema, d.textInto(&f.Stack)},
	}
}

func trainFields(d *decoder, t *Train) []field {
	return []field{
		{"model", "The model.", modelSchema(), d.modelInto(&t.Model)},
		{"tokens", "Tokens to train on.", countSchema, d.countInto(&t.Tokens, maxTokens)},
		{"precision", "Number format, such as bf16.", textSchema, d.precisionInto(&t.Precision)},
	}
}

func generateFields(d *decoder, g *Generate) []field {
	return []field{
		{"model", "The model.", modelSchema(), d.modelInto(&g.Model)},
		{"input_tokens", "Tokens read in all.", countSchema, d.countInto(&g.InputTokens, maxTokens)},
		{"output_tokens", "Tokens written in all.", countSchema, d.countInto(&g.OutputTokens, maxTokens)},
		{"context", "Tokens held at once: the size of the KV cache.", countSchema, d.countIntInto(&g.Context, maxInt)},
		{"precision", "Number format of the weights, such as bf16, fp8, int4, q4_k_m.", textSchema, d.precisionInto(&g.Precision)},
		{"engine", "Software: vllm, llama.cpp, tensorrt-llm, ...", textSchema, d.textInto(&g.Engine)},
		{"concurrency", "Requests at once; as many as fit unless said.", integerSchema, d.wholeInto(&g.Concurrency, 1, 1_000_000)},
	}
}

func imageFields(d *decoder, i *Images) []field {
	return []field{
		{"model", "The model.", modelSchema(), d.modelInto(&i.Model)},
		{"mode", "train or infer.", enumSchema("train", "infer"), func(n node) { i.Mode, _ = d.word(n, []string{"train", "infer"}) }},
		{"images", "Images of one epoch.", countSchema, d.countInto(&i.Images, maxTokens)},
		{"epochs", "Times over the data; 1 unless said.", numberSchema, d.countInto(&i.Epochs, 1e6)},
	}
}

func unitFields(d *decoder, u *Units) []field {
	return []field{
		{"count", "How many there are.", countSchema, d.countInto(&u.Count, 1e15)},
		{"unit", "What one is called.", textSchema, d.textInto(&u.Unit)},
		{"rate", "How many are done per time, by GPU: 120/h.", mapSchema(textSchema), d.ratesInto(u)},
	}
}

func trafficFields(d *decoder, t *Traffic) []field {
	return []field{
		{"model", "The model.", modelSchema(), d.modelInto(&t.Model)},
		{"requests_per_day", "Requests a day.", countSchema, d.countInto(&t.RequestsPerDay, 1e15)},
		{"input_tokens", "Tokens read per request.", countSchema, d.countInto(&t.InputTokens, 1e9)},
		{"output_tokens", "Tokens written per request.", countSchema, d.countInto(&t.OutputTokens, 1e9)},
		{"peak", "Busiest hour over the mean hour, such as 3x.", anySchema(textSchema, numberSchema), func(n node) {
			s, ok := scalarText(n.Node)
			x, err := parseNumber(strings.TrimSuffix(s, "x"))
			if !ok || err != nil || !(x >= 1) || x > 1e4 {
				d.fail(n, "expected a factor from 1, found %s", kindOf(n.Node)).Hint("write it as 3x")
				return
			}
			t.Peak = x
		}},
	}
}

func dataFields(d *decoder, v *Data) []field {
	return []field{
		{"download", "What is brought in.", bytesSchema, d.bytesInto(&v.Download, false)},
		{"from", "Where it lies: provider:region, or internet.", textSchema, d.sideInto(&v.From)},
		{"upload", "What is brought out.", bytesSchema, d.bytesInto(&v.Upload, false)},
		{"to", "Where it goes: provider:region, or internet.", textSchema, d.sideInto(&v.To)},
		{"keep", "What stays on disk after the job.", bytesSchema, d.bytesInto(&v.Keep, false)},
		{"keep_for", "For how long it stays.", durationSchema, func(n node) {
			if t, ok := d.duration(n, false); ok {
				v.KeepFor = t
			}
		}},
	}
}

func checkpointFields(d *decoder, c *Checkpoint) []field {
	return []field{
		{"dir", "Folder that is kept and restored.", textSchema, d.textInto(&c.Dir)},
		{"every", "Useful time between two; chosen unless said.", durationSchema, d.durationInto(&c.Every, false)},
		{"write", "Time to write one.", durationSchema, d.durationInto(&c.Write, true)},
		{"restart", "Time from a new machine to useful work.", durationSchema, d.durationInto(&c.Restart, true)},
	}
}

func limitFields(d *decoder, l *Limits) []field {
	return []field{
		{"cost", "Most that the finished job may cost: 10 USD.", textSchema, d.moneyInto(&l.Cost, false)},
		{"price", "Most that all its machines may cost an hour: 3 USD/h.", textSchema, d.moneyInto(&l.Price, true)},
		{"duration", "Longest running time.", durationSchema, d.durationInto(&l.Duration, false)},
		{"deadline", "When it must be finished: a duration from now, or a moment with its zone.", textSchema, d.deadlineInto(&l.Deadline)},
		{"idle", "Stop when nothing happened for so long; off for never.", textSchema, func(n node) {
			if s, ok := scalarText(n.Node); ok && s == "off" {
				l.IdleOff = true
				return
			}
			d.durationInto(&l.Idle, false)(n)
		}},
	}
}

func placeFields(d *decoder, p *Place) []field {
	return []field{
		{"terms", "on-demand, spot, owned; all unless said.", listSchema(enumSchema(termWords...)), d.wordsInto(&p.Terms, termWords)},
		{"classes", "Who may sell.", listSchema(enumSchema(classWords...)), d.wordsInto(&p.Classes, classWords)},
		{"providers", "Only these providers.", listSchema(textSchema), d.textsInto(&p.Providers)},
		{"exclude", "None of these providers.", listSchema(textSchema), d.textsInto(&p.Exclude)},
		{"countries", "Only these countries, as ISO 3166-1 alpha-2 codes.", listSchema(textSchema), d.countriesInto(&p.Countries)},
		{"regions", "Only these regions: region or provider:region.", listSchema(textSchema), d.textsInto(&p.Regions)},
		{"verified", "Only sellers that the marketplace has checked.", boolSchema, d.boolInto(&p.Verified)},
		{"consumer", "Whether consumer cards may be used.", boolSchema, d.boolInto(&p.Consumer)},
	}
}

// form reads one form of work and checks that what it needs is there.
func (d *decoder) form(n node, fields []field, needed ...string) {
	bad := len(d.faults)
	d.object(n, fields)
	if len(d.faults) > bad || !isMapping(n) {
		return
	}
	for _, key := range needed {
		if !slices.ContainsFunc(d.pairs(n), func(p pair) bool { return p.key == key }) {
			d.fail(n, "%s is missing", key).Hint("add %s: to it", key)
		}
	}
}

func (d *decoder) work(n node, s *Spec) {
	w := &Work{}
	bad := len(d.faults)
	d.object(n, workFields(d, w))
	if !isMapping(n) {
		return
	}
	s.Work = w
	forms := d.pairs(n)
	switch {
	case len(d.faults) > bad:
	case len(forms) == 0:
		d.fail(n, "says no amount of work").Hint("write one of hours, finetune, train, generate, images, units, traffic")
	case len(forms) > 1:
		d.fail(forms[1].at, "a second form of work").Hint("keep exactly one of %s and %s", forms[0].key, forms[1].key)
	case forms[0].key == "hours" && len(w.Hours) == 0:
		d.fail(n, "work.hours is empty").Hint("write hours: {H100: 2.5}")
	}
}

func (d *decoder) data(n node, v *Data) {
	bad := len(d.faults)
	d.object(n, dataFields(d, v))
	if len(d.faults) > bad {
		return
	}
	switch {
	case v.Keep > 0 && v.KeepFor == 0:
		d.fail(n, "keep without keep_for: disks cost by the month").Hint("add keep_for: 1mo")
	case v.KeepFor > 0 && v.Keep == 0:
		d.fail(n, "keep_for without keep").Hint("add keep: with a size")
	case v.From != "" && v.Download == 0:
		d.fail(n, "from without download").Hint("add download: with a size")
	case v.To != "" && v.Upload == 0:
		d.fail(n, "to without upload").Hint("add upload: with a size")
	}
}

func (d *decoder) checkpoint(n node, s *Spec) {
	c := &Checkpoint{}
	bad := len(d.faults)
	d.object(n, checkpointFields(d, c))
	s.Checkpoint = c
	if len(d.faults) == bad && c.Every != nil && c.Write != nil && *c.Write >= *c.Every {
		d.fail(n, "writing a checkpoint takes as long as the time between two").Hint("make every longer than write")
	}
}

// sideInto reads where data comes from or goes.
func (d *decoder) sideInto(into *string) func(node) {
	return func(n node) {
		s, ok := d.text(n)
		if !ok {
			return
		}
		provider, region, cut := strings.Cut(s, ":")
		if s != "internet" && (!cut || provider == "" || region == "") {
			d.fail(n, "%q is no place", short(s)).Hint("write provider:region, as in aws:us-east-1, or internet")
			return
		}
		*into = s
	}
}

func (d *decoder) precisionInto(into *string) func(node) {
	return func(n node) {
		s, ok := d.text(n)
		if !ok {
			return
		}
		low := strings.ToLower(s)
		if !slices.Contains(precisions, low) {
			e := d.fail(n, "unknown precision %q", short(s))
			if near := fault.Nearest(low, precisions); len(near) > 0 {
				e.Hint("did you mean %s?", strings.Join(near, " or "))
			} else {
				e.Hint("one of %s", strings.Join(precisions, ", "))
			}
			return
		}
		*into = low
	}
}

var jobName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) })

func (d *decoder) nameInto(into *string) func(node) {
	return func(n node) {
		s, ok := d.text(n)
		if !ok {
			return
		}
		if !jobName().MatchString(s) {
			d.fail(n, "%q is no name of a job", short(s)).Hint("use lower-case letters, digits and -, at most 63, not at the ends")
			return
		}
		*into = s
	}
}

// complete sets defaults and checks what spans several keys.
func (d *decoder) complete(root node, s *Spec) {
	if s.Name == "" {
		s.Name = baseName(d.file)
	}
	if slices.Contains(s.After, s.Name) {
		d.fail(root, "job %q waits for itself", s.Name).Hint("remove it from after")
	}
	if s.Kind == "" {
		s.Kind = Task
		if s.Work != nil && s.Work.Traffic != nil {
			s.Kind = Service
		}
	}
	if (s.Health != nil || s.Restart != "") && s.Kind != Service {
		d.fail(root, "health and restart are for a service, and this is a %s", s.Kind).Hint("write kind: service, or remove them")
	}
	if h := s.Health; h != nil && h.Port == 0 {
		if len(s.Ports) > 0 {
			h.Port = s.Ports[0]
		} else {
			d.fail(root, "health does not say which port to ask").Hint("add ports: [8000], or health: {port: 8000}")
		}
	}
	for _, p := range s.Place.Providers {
		if slices.Contains(s.Place.Exclude, p) {
			d.fail(root, "place both wants and excludes the provider %q", p).Hint("remove it from place.providers or place.exclude")
		}
	}
	if l := s.Limits; l.Duration != nil && l.Deadline != nil && l.Deadline.At.IsZero() && *l.Duration > l.Deadline.After {
		d.fail(root, "limits.duration is longer than the deadline").Hint("a job that ends at its deadline cannot run longer: shorten limits.duration or remove it")
	}
	if s.Resources.NoGPU && s.Work != nil && (s.Work.Finetune != nil || s.Work.Train != nil || s.Work.Generate != nil || s.Work.Images != nil || s.Work.Traffic != nil) {
		d.fail(root, "this form of work needs a GPU, and resources.gpus is 0").Hint("state hours instead, or ask for a GPU")
	}
	if s.Run == "" && s.Work == nil && s.Image == "" && s.Kind != Notebook && len(d.faults) == 0 {
		d.fail(root, "the job has neither run nor work: there is nothing to do").Hint("add run: with a command, or work: to plan")
	}
}
