package chaos

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
)

// task is one job file, and what must become of it.
type task struct {
	name   string
	kind   string
	rows   int // jobs that it makes
	nodes  int
	steps  int // each of a tenth of a second and perStep lines
	exit   int // of its command, at the end
	retry  int
	after  *task
	state  job.State
	gate   int           // it is submitted after so many kills
	stop   time.Duration // after its submission; 0: not at all
	attach bool          // by a `destajo run` that follows it

	there chan struct{} // closed when it is submitted
	ids   []int64       // then
}

const perStep = 40

// kinds is the order in which kinds of jobs come, over and over.
var kinds = []string{"plain", "gang", "fails", "stop", "outputs", "gpu", "flaky", "array", "after", "plain", "missing", "checkpoint", "after-failed", "stubborn", "limit", "gang", "cost", "plain"}

var shortKinds = []string{"plain", "gang", "stop", "outputs", "fails", "after", "array"}

// draw makes the jobs from the seed.
func (r *rig) draw() []*task {
	kinds, stops := kinds, 10*time.Second
	if r.Short {
		kinds, stops = shortKinds, 3*time.Second
	}
	var out []*task
	var well, badly *task
	for rows := 0; rows < r.Jobs; {
		kind := kinds[len(out)%len(kinds)]
		t := &task{name: fmt.Sprintf("%s-%d", kind, len(out)), kind: kind, rows: 1, nodes: 1, steps: 5 + int(r.chance()*30), state: job.Done, there: make(chan struct{}),
			attach: r.chance() < 0.2}
		switch kind {
		case "gang":
			t.nodes = 2
		case "fails":
			t.exit, t.retry, t.state, t.steps = 7, 1, job.Failed, 5
			badly = t
		case "missing":
			t.exit, t.state, t.steps = 127, job.Failed, 2
		case "flaky":
			t.retry, t.steps = 2, 5
		case "array":
			t.rows = min(5, max(2, r.Jobs-rows))
		case "stop", "stubborn":
			t.steps, t.state, t.stop = 3000, job.Stopped, r.between(time.Second, stops)
		case "after":
			t.after = well
		case "after-failed":
			t.after, t.state = badly, job.Failed
		case "limit", "cost":
			t.steps, t.state = 3000, job.Failed
		case "plain", "outputs":
			well = t
		}
		rows += t.rows
		out = append(out, t)
	}
	for i, t := range out {
		t.gate = r.Kills * 19 * i / 20 / len(out)
	}
	return out
}

// file is the job file. The job writes to a file of ours when it starts, lives
// and ends, which nothing of the program touches.
func (t *task) file(trace string) string {
	var b strings.Builder
	gpus := "0"
	if t.kind == "gpu" {
		gpus = "RTX4090"
	}
	fmt.Fprintf(&b, "name: %s\nresources: {gpus: %s, cpus: 2, nodes: %d}\nplace: {terms: [spot, on-demand]}\n", t.name, gpus, t.nodes)
	if t.rows > 1 {
		fmt.Fprintf(&b, "array: %d\n", t.rows)
	}
	if t.retry > 0 {
		fmt.Fprintf(&b, "retries: %d\n", t.retry)
	}
	if t.after != nil {
		fmt.Fprintf(&b, "after: [%s]\n", t.after.name)
	}
	end := ""
	switch t.kind {
	case "outputs":
		b.WriteString("outputs: [result.txt]\n")
		end = "echo \"result of $DESTAJO_TASK\" > result.txt\n"
	case "checkpoint":
		b.WriteString("checkpoint: {dir: ckpt, every: 20s, write: 1s, restart: 1s}\n")
		end = "echo kept > ckpt/end\n"
	case "gpu":
		end = "test -n \"$CUDA_VISIBLE_DEVICES\" || exit 9\n"
	case "limit":
		b.WriteString("limits: {duration: 3s}\n")
	case "cost":
		b.WriteString("limits: {cost: 0.004 USD}\n")
	case "flaky":
		end = "test $(grep -c ' end ' \"$trace\") -ge 3 || exit 3\n"
	case "missing":
		end = "no-such-command-anywhere\n"
	}
	trap := "say term; exit 143"
	if t.kind == "stubborn" {
		trap = ":"
	}
	fmt.Fprintf(&b, "run: |\n")
	script := fmt.Sprintf("trace='%s'\nsay() { echo \"$DESTAJO_TASK $1 $(date +%%s%%N)\" >> \"$trace\"; }\nsay start\ntrap '%s' TERM\ni=0\n"+
		"while [ $i -lt %d ]; do\n  n=0\n  while [ $n -lt %d ]; do echo \"line $((i*%d+n)) of $DESTAJO_TASK\"; n=$((n+1)); done\n  say beat\n  sleep 0.1\n  i=$((i+1))\ndone\n"+
		"say end\n%sexit %d\n", trace, trap, t.steps, perStep, perStep, end, t.exit)
	if t.kind == "missing" {
		script = strings.Replace(script, "exit 127\n", "", 1)
	}
	for line := range strings.Lines(script) {
		b.WriteString("  " + line)
	}
	return b.String()
}

func (r *rig) trace(t *task) string { return filepath.Join(r.traces, t.name) }

// submit hands a job in when its time has come, as often as it takes, and stops
// it when it is to be stopped.
func (r *rig) submit(ctx context.Context, t *task) {
	for ctx.Err() == nil && r.kills() < t.gate {
		sleep(ctx, 50*time.Millisecond)
	}
	if t.after != nil {
		select {
		case <-t.after.there:
		case <-ctx.Done():
			return
		}
	}
	path := filepath.Join(r.Dir, t.name+".yml")
	if err := os.WriteFile(path, []byte(t.file(r.trace(t))), 0o600); err != nil {
		r.wrong("harness: %v", err)
		return
	}
	began := time.Now()
	for try := 0; ctx.Err() == nil && !r.found(ctx, t); try++ {
		if try > 0 {
			sleep(ctx, 300*time.Millisecond)
		}
		if t.attach && time.Since(began) < 20*time.Second {
			r.attached(ctx, t, path)
			continue
		}
		out, err := r.command(ctx, "run", "--detach", path)
		if err != nil && ctx.Err() == nil && !strings.Contains(out, "needs `destajo serve`") {
			r.wrong("%s: destajo run --detach: %v: %s", t.name, err, out)
			sleep(ctx, time.Second)
		}
	}
	close(t.there)
	r.say("%s is submitted: %v", t.name, t.ids)
	if t.stop == 0 {
		return
	}
	sleep(ctx, t.stop)
	if out, err := r.command(ctx, "stop", strconv.FormatInt(t.ids[0], 10)); err != nil && ctx.Err() == nil {
		r.wrong("%s: destajo stop: %v: %s", t.name, err, out)
	}
}

// attached starts a `destajo run` that follows its job, and acts as a control
// plane when no other does. It lives until it is killed or its job has ended.
func (r *rig) attached(ctx context.Context, t *task, path string) {
	p, err := r.start("run-"+t.name, "run", path)
	if err != nil {
		r.wrong("harness: %v", err)
		return
	}
	go func() { <-p.done; r.forget(p) }()
	for ctx.Err() == nil && !r.found(ctx, t) {
		select {
		case <-p.done:
			return
		default:
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// found looks for the rows of a job by its name.
func (r *rig) found(ctx context.Context, t *task) bool {
	jobs, err := r.store.Jobs(ctx, record.JobFilter{Name: t.name})
	if err != nil {
		if ctx.Err() == nil {
			r.wrong("harness: %v", err)
		}
		return false
	}
	t.ids = nil
	for _, j := range jobs {
		t.ids = append(t.ids, j.ID)
	}
	return len(t.ids) > 0
}

// command runs the program to its end.
func (r *rig) command(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, r.Binary, args...)
	cmd.Env = r.environment()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return strings.TrimSpace(out.String()), err
}

func sleep(ctx context.Context, t time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(t):
	}
}
