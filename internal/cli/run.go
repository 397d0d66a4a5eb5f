package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/bundle"
	"github.com/destajo/destajo/internal/control"
	"github.com/destajo/destajo/internal/convert"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
)

type runOptions struct {
	detach bool
	from   string
	env    []string
}

func (a *app) runCommand() *cobra.Command {
	var o runOptions
	c := &cobra.Command{
		Use:     "run JOB",
		GroupID: "run",
		Short:   "Run a job where it costs least, follow it and account for it",
		Long: `Run a job: it is planned over the machines that are configured (this one, and
those of destajo machines add), sent there, followed, and accounted for. What
was estimated, what it took and what it cost is said at the end. JOB is a job
file; - reads standard input. The job's log goes to standard output.

Ctrl-C asks whether to stop the job or to leave it running. A job that is left,
or started with --detach, needs destajo serve on this machine: something must
watch it. Without it, a terminal that is closed stops the job. Exit code 10 when
the job itself did not end well.`,
		Example: "  destajo run examples/hello.yml\n  destajo run --detach train.yml\n  destajo run --from skypilot task.yaml",
		Args:    exactly(1, "one job file"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.run(args[0], o) },
	}
	f := c.Flags()
	f.BoolVarP(&o.detach, "detach", "d", false, "do not follow the job; needs destajo serve")
	f.StringVar(&o.from, "from", "", "the file is of skypilot or dstack")
	f.StringArrayVar(&o.env, "env", nil, "set a variable of the job: NAME=VALUE; may be given again")
	return c
}

func (a *app) run(path string, o runOptions) error {
	data, err := a.readFile(path)
	if err != nil {
		return err
	}
	texts := []converted{{text: data, dir: folderOf(path)}}
	if o.from != "" {
		if texts, err = a.convertFile(path, data, o.from, a.Getenv); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	h, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer h.close()
	if o.detach {
		if err := h.needsServe("a detached job", "then again; without --detach the job is followed here"); err != nil {
			return err
		}
	}
	var wait sync.WaitGroup
	defer wait.Wait()
	loopContext, stopLoop := context.WithCancel(ctx)
	defer stopLoop()
	failed := make(chan error, 1)
	if !o.detach { // the loop gets ready while the job is read
		l := h.loop("run", 0, a.logger())
		wait.Go(func() {
			if err := l.Run(loopContext); err != nil {
				failed <- err
			}
		})
	}
	for _, t := range texts {
		placed, err := h.submit(ctx, path, t, o.env)
		if err != nil {
			return err
		}
		if o.detach {
			if err := a.submitted(placed); err != nil {
				return err
			}
			continue
		}
		a.sayPlaced(placed)
		if err := h.follow(ctx, placed, failed); err != nil {
			return err
		}
	}
	return nil
}

// converted is a job file with the folder from which it speaks of files.
type converted struct {
	text []byte
	dir  string
}

func folderOf(path string) string {
	if path == "-" {
		return "."
	}
	return filepath.Dir(path)
}

// convertFile turns a foreign job file into ours, and says what is not carried over.
func (a *app) convertFile(path string, data []byte, format string, env func(string) string) ([]converted, error) {
	var results []convert.Result
	var err error
	switch format {
	case "skypilot":
		results, err = convert.SkyPilot(path, data, env)
	case "dstack":
		results, err = convert.DStack(path, data, env)
	default:
		return nil, fault.New(fault.Invalid, "unknown format %q", format).Hint("--from takes skypilot or dstack")
	}
	if err != nil {
		return nil, err
	}
	var out []converted
	var fatal []error
	for _, r := range results {
		for _, n := range r.Notes {
			if n.Fatal {
				fatal = append(fatal, fault.New(fault.Invalid, "%s: %s", n.Field, n.Text).At(path, n.Line, n.Column))
				continue
			}
			fmt.Fprintf(a.Err, "%s:%d:%d: %s: %s\n", path, n.Line, n.Column, n.Field, n.Text)
		}
		out = append(out, converted{text: r.YAML, dir: folderOf(path)})
	}
	return out, errors.Join(fatal...)
}

// logger is for what the loop has to say to people who look for faults.
func (a *app) logger() *slog.Logger {
	level := slog.LevelError
	if l := a.Getenv("DESTAJO_LOG"); l != "" {
		if level.UnmarshalText([]byte(l)) != nil {
			level = slog.LevelInfo
		}
	}
	return slog.New(slog.NewTextHandler(a.Err, &slog.HandlerOptions{Level: level}))
}

// submit packs what is sent along and hands the job in.
func (h *house) submit(ctx context.Context, path string, t converted, env []string) (*control.Placed, error) {
	name := filepath.Base(path)
	spec, err := job.Parse(path, t.text)
	if err != nil {
		return nil, err
	}
	extra, err := variables(env)
	if err != nil {
		return nil, err
	}
	x := control.Submission{File: path, Text: string(t.text), Env: extra}
	if spec.Workdir != "" || len(spec.Mounts) > 0 {
		if x.Bundle, err = h.pack(ctx, spec, t.dir); err != nil {
			return nil, err
		}
	}
	if len(spec.Outputs) > 0 {
		dir := t.dir
		if spec.Workdir != "" {
			dir = inside(t.dir, spec.Workdir)
		}
		if x.Dir, err = filepath.Abs(dir); err != nil {
			return nil, fault.Wrap(fault.Invalid, err, "the folder of %s", name)
		}
	}
	placed, err := h.Submit(ctx, h.who, x)
	select {
	case h.poke <- struct{}{}:
	default:
	}
	return placed, err
}

// variables reads NAME=VALUE.
func variables(env []string) (map[string]string, error) {
	out := map[string]string{}
	for _, e := range env {
		name, value, ok := strings.Cut(e, "=")
		if !ok || name == "" {
			return nil, fault.New(fault.Invalid, "--env %q is no NAME=VALUE", e).Hint("write --env EPOCHS=3")
		}
		out[name] = value
	}
	return out, nil
}

// inside is a path of a job file as seen from here.
func inside(dir, name string) string {
	if strings.HasPrefix(name, "~/") {
		if home, err := os.UserHomeDir(); err == nil {
			return filepath.Join(home, name[2:])
		}
	}
	if filepath.IsAbs(name) {
		return name
	}
	return filepath.Join(dir, name)
}

// pack stores the workdir and the mounts of a job.
func (h *house) pack(ctx context.Context, spec *job.Spec, dir string) (string, error) {
	var mounts []bundle.Mount
	for i, m := range spec.Mounts {
		mounts = append(mounts, bundle.Mount{From: inside(dir, m.From), At: control.MountPath(i)})
	}
	work := ""
	if spec.Workdir != "" {
		work = inside(dir, spec.Workdir)
	}
	r, w := io.Pipe()
	var summary bundle.Summary
	packed := make(chan error, 1)
	go func() {
		var err error
		summary, err = bundle.Pack(w, work, mounts, nil)
		_ = w.CloseWithError(err)
		packed <- err
	}()
	name, err := h.PutBundle(ctx, h.who, r)
	_ = r.CloseWithError(err)
	if badly := <-packed; fault.KindOf(badly) == fault.Invalid { // the files are at fault, not where they were to be stored
		return "", badly
	}
	if err != nil {
		return "", err
	}
	for _, s := range summary.Skipped {
		fmt.Fprintln(h.app.Err, "workdir:", s)
	}
	if summary.Bytes > 1e9 {
		fmt.Fprintf(h.app.Err, "sending %.1f GB along; .destajoignore keeps files out\n", float64(summary.Bytes)/1e9)
	}
	return name, nil
}

// needsServe checks that something will watch a job when this process is gone.
func (h *house) needsServe(what, next string) error {
	if !h.served() {
		return fault.New(fault.Conflict, "%s needs `destajo serve` on this machine, to watch it, to stop it at its limits and to end its machine", what).
			Hint("run `destajo serve` in another terminal or as a service, %s", next)
	}
	return nil
}

// submitted says what a detached submission led to.
func (a *app) submitted(p *control.Placed) error {
	if a.output == "json" {
		return a.printJSON(jobRows(p.Jobs, a.Now()))
	}
	j := p.Jobs[0]
	fmt.Fprintf(a.Out, "%d\n", j.ID)
	fmt.Fprintf(a.Err, "job %d %s is submitted: `destajo logs -f %d` follows it, `destajo stop %d` stops it\n", j.ID, j.Name, j.ID, j.ID)
	return nil
}

// sayPlaced says where a job goes and what it is expected to cost.
func (a *app) sayPlaced(p *control.Placed) {
	j := p.Jobs[0]
	c := &p.Choice.Candidates[0]
	e := &c.Estimate
	what := fmt.Sprintf("job %d %s", j.ID, j.Name)
	if len(p.Jobs) > 1 {
		what += fmt.Sprintf(" (an array of %d)", len(p.Jobs))
	}
	mark := ""
	if c.Terms.Assumed {
		mark = ", an assumed price"
	}
	if !e.Known {
		a.tell(fmt.Sprintf("%s → %s at %s %s/h%s; its work is not stated, so its cost is not estimated", what, e.Offer, price(e.PriceHour), e.Currency, mark))
		return
	}
	a.tell(fmt.Sprintf("%s → %s: about %s, %s %s (%s %s/h%s)", what, e.Offer, seconds(e.WallHours*3600), price(e.Cost), e.Currency, price(e.PriceHour), e.Currency, mark))
}

// tell writes a line for people, wrapped where they look at a terminal.
func (a *app) tell(text string) {
	if a.Terminal {
		text = wrap(text, a.columns())
	}
	fmt.Fprintln(a.Err, text)
}

// follow shows a job's log and states until it has ended and its machine with it.
func (h *house) follow(ctx context.Context, p *control.Placed, failed <-chan error) error {
	a := h.app
	signals := make(chan os.Signal, 2)
	// A closed terminal or pipe must not leave a job that nobody watches: it
	// stops the job too.
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer signal.Stop(signals)
	w := watcher{house: h, ids: ids(p.Jobs), out: a.Out, logs: map[string]int64{}, pause: 50 * time.Millisecond}
	if a.output == "json" {
		w.out = a.Err
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var seen int64 = -1
	var looked time.Time
	for {
		select {
		case err := <-failed:
			return err
		case s := <-signals:
			if left, err := h.interrupted(ctx, p, s); left || err != nil {
				return err
			}
		case <-tick.C:
		}
		n, err := h.Version(ctx)
		if err != nil {
			return err
		}
		if n == seen && !w.streaming() || len(w.ids) > 1 && time.Since(looked) < w.pause {
			continue
		}
		looked = time.Now()
		w.pause = min(w.pause*2, 250*time.Millisecond)
		seen = n
		over, err := w.look(ctx)
		if err != nil {
			return err
		}
		if w.broken != nil {
			w.broken = nil
			if err := h.Stop(ctx, h.who, w.ids, "nobody reads what it writes: the output of `destajo run` was closed"); err != nil {
				return err
			}
		}
		if over {
			h.settle(ctx, signals)
			return h.report(ctx, w.jobs)
		}
	}
}

func ids(jobs []*job.Job) []int64 {
	out := make([]int64, len(jobs))
	for i, j := range jobs {
		out[i] = j.ID
	}
	return out
}

// watcher shows what becomes of some jobs.
type watcher struct {
	house *house
	ids   []int64
	out   io.Writer
	jobs  []*job.Job
	said  string
	pause time.Duration    // between two looks at an array, which is costly
	logs  map[string]int64 // bytes shown of a task's log
	live  []shown

	broken error // out was closed
}

// shown is a task whose log is being shown.
type shown struct {
	attempt *machine.Attempt
	rank    int
}

func (w *watcher) streaming() bool { return len(w.live) > 0 }

// look reads the rows anew, shows what is new, and says whether all has ended.
func (w *watcher) look(ctx context.Context) (bool, error) {
	h := w.house
	f := record.JobFilter{IDs: w.ids}
	if len(w.ids) > 1 {
		f = record.JobFilter{Array: w.ids[0]}
	}
	var err error
	if w.jobs, err = h.Jobs(ctx, h.who, f); err != nil {
		return false, err
	}
	over := true
	count := map[job.State]int{}
	for _, j := range w.jobs {
		over = over && j.State.Ended()
		count[j.State]++
	}
	if len(w.ids) > 1 {
		w.say(fmt.Sprintf("%d of %d ended, %d running", count[job.Done]+count[job.Failed]+count[job.Stopped], len(w.ids), count[job.Running]))
		return over, nil
	}
	j := w.jobs[0]
	if !j.State.Ended() && j.Reason != "" && j.Reason != control.Looking {
		text := j.Reason
		if j.State == job.Stopping {
			text = j.Stop
		} else if slow := w.slow(ctx, j); slow != "" {
			text = slow
		}
		if !strings.HasPrefix(text, string(j.State)) { // "starting at", "starting the agent" say it themselves
			text = string(j.State) + ": " + text
		}
		w.say(text)
	}
	if j.State == job.Running || over || len(w.live) > 0 {
		if err := w.show(ctx, j); err != nil {
			return false, err
		}
	}
	return over, nil
}

// slow says for what a start waits, in the words of its machine.
func (w *watcher) slow(ctx context.Context, j *job.Job) string {
	if j.State != job.Starting {
		return ""
	}
	attempts, err := w.house.store.Attempts(ctx, j.ID)
	if err != nil || len(attempts) == 0 {
		return ""
	}
	for _, t := range attempts[len(attempts)-1].Tasks {
		m, err := w.house.store.Machine(ctx, t.Machine)
		// That it was asked for, and that its backend took that, goes without saying.
		plain := err == nil && (strings.HasPrefix(m.Reason, "asked for") || strings.HasPrefix(m.Reason, "its backend"))
		if err == nil && (m.State == machine.Intent || m.State == machine.Booting) && m.Reason != "" && !plain {
			return m.Reason
		}
	}
	return ""
}

// say writes a line of progress once.
func (w *watcher) say(text string) {
	if text != w.said {
		w.said = text
		w.house.app.tell("· " + text)
	}
}

// show writes what is new of the job's logs, attempt after attempt.
func (w *watcher) show(ctx context.Context, j *job.Job) error {
	h := w.house
	attempts, err := h.Attempts(ctx, h.who, j.ID)
	if err != nil {
		return err
	}
	w.live = nil
	for _, a := range attempts {
		for rank := range a.Tasks {
			if a.State != machine.Over {
				w.live = append(w.live, shown{a, rank})
			}
			if err := w.copy(ctx, a, rank, len(a.Tasks) > 1); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *watcher) copy(ctx context.Context, a *machine.Attempt, rank int, several bool) error {
	id := machine.TaskID(a.ID, rank)
	for {
		data, err := w.house.Log(ctx, w.house.who, a, rank, w.logs[id], 1<<20)
		if err != nil || len(data) == 0 {
			return err
		}
		w.logs[id] += int64(len(data))
		if several {
			data = prefixed(data, rank)
		}
		if _, err := w.out.Write(data); err != nil {
			w.out, w.broken = io.Discard, err
		}
	}
}

// prefixed puts the rank before each line.
func prefixed(data []byte, rank int) []byte {
	var b bytes.Buffer
	for line := range bytes.Lines(data) {
		fmt.Fprintf(&b, "[%d] ", rank)
		b.Write(line)
	}
	return b.Bytes()
}

// interrupted asks what is to become of the job; without a terminal it stops.
// When the terminal is closed it goes on if someone else watches it.
func (h *house) interrupted(ctx context.Context, p *control.Placed, s os.Signal) (left bool, err error) {
	a := h.app
	if a.Terminal && s == os.Interrupt {
		fmt.Fprintf(a.Err, "\n[s]top job %d, [l]eave it running, or go on following (Enter)? ", p.Jobs[0].ID)
		line, _ := bufio.NewReader(a.In).ReadString('\n')
		switch strings.ToLower(strings.TrimSpace(line)) {
		case "s", "stop":
		case "l", "leave":
			if err := h.needsServe("a job that is left running", "then press Ctrl-C again"); err != nil {
				a.explain(err)
				return false, nil
			}
			fmt.Fprintf(a.Err, "job %d goes on: `destajo logs -f %d` follows it\n", p.Jobs[0].ID, p.Jobs[0].ID)
			return true, nil
		default:
			return false, nil
		}
	}
	why := "stopped from the keyboard"
	switch {
	case s == syscall.SIGPIPE: // the log says it too
		return false, nil
	case s == syscall.SIGHUP && h.needsServe("", "") == nil:
		return true, nil
	case s != os.Interrupt:
		why = fmt.Sprintf("its `destajo run` was ended by a signal: %s", s)
	}
	fmt.Fprintf(a.Err, "stopping job %d\n", p.Jobs[0].ID)
	return false, h.Stop(ctx, h.who, ids(p.Jobs), why)
}

// settle waits until the machines that nobody needs have ended, when it is this
// process that ends them. Who asks for the end gets it: Ctrl-C ends the waiting.
func (h *house) settle(ctx context.Context, signals <-chan os.Signal) {
	until := time.Now().Add(2 * time.Minute)
	said, pause := false, 2*time.Millisecond
	for time.Now().Before(until) {
		acting, err := h.Acting(ctx)
		if err != nil || acting != holder("run") {
			return // another process looks after them
		}
		machines, err := h.Machines(ctx, h.who, false)
		if err != nil {
			return
		}
		busy, err := h.On(ctx, h.who)
		if err != nil {
			return
		}
		idle := 0
		for _, m := range machines {
			if len(busy[m.ID]) == 0 && m.State != machine.Quarantined {
				idle++
			}
		}
		if idle == 0 {
			return
		}
		if !said && time.Until(until) < 118*time.Second {
			fmt.Fprintln(h.app.Err, "· ending the machine")
			said = true
		}
		select {
		case s := <-signals:
			if s == os.Interrupt || s == syscall.SIGTERM {
				until = time.Time{}
			}
		case <-time.After(pause):
			pause = min(pause+pause/8, 100*time.Millisecond)
		}
	}
	fmt.Fprintln(h.app.Err, "a machine has not ended yet: `destajo machines` shows it; `destajo serve` goes on ending it")
}
