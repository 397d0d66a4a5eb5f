package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/bundle"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
)

// jobRow is a job in a listing.
type jobRow struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Kind      job.Kind   `json:"kind"`
	State     job.State  `json:"state"`
	Reason    string     `json:"reason"`
	Priority  int        `json:"priority"`
	Attempts  int        `json:"attempts"`
	ExitCode  *int       `json:"exit_code"`
	Submitted time.Time  `json:"submitted"`
	Started   *time.Time `json:"started"`
	Ended     *time.Time `json:"ended"`
	Seconds   float64    `json:"seconds"` // from start to end, or to now
	Offer     string     `json:"offer"`
}

func jobRows(jobs []*job.Job, now time.Time) []jobRow {
	out := make([]jobRow, 0, len(jobs))
	for _, j := range jobs {
		out = append(out, rowOfJob(j, now))
	}
	return out
}

func rowOfJob(j *job.Job, now time.Time) jobRow {
	r := jobRow{ID: jobRef(j), Name: j.Name, Kind: j.Kind, State: j.State, Reason: j.Reason, Priority: j.Priority, Attempts: j.Attempts,
		Submitted: j.Submitted, Started: known2(j.Started), Ended: known2(j.Ended)}
	if j.ExitCode >= 0 {
		r.ExitCode = &j.ExitCode
	}
	if !j.Started.IsZero() {
		end := now
		if !j.Ended.IsZero() {
			end = j.Ended
		}
		r.Seconds = end.Sub(j.Started).Seconds()
	}
	if j.Estimate != nil {
		r.Offer = j.Estimate.Offer
	}
	return r
}

// jobRef is how people name a job: 12, or 12.7 for a member of an array.
func jobRef(j *job.Job) string {
	if j.Array != 0 {
		return fmt.Sprintf("%d.%d", j.Array, j.Index)
	}
	return strconv.FormatInt(j.ID, 10)
}

func known2(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func (a *app) jobsCommand() *cobra.Command {
	var all, members bool
	var limit int
	var states []string
	c := &cobra.Command{
		Use:     "jobs",
		GroupID: "run",
		Short:   "List jobs: what runs, what waits and why",
		Long: `List the jobs that have not ended, newest first; with --all the ended ones too.
The members of an array share a row unless --members is given.`,
		Example: "  destajo jobs\n  destajo jobs --all --limit 20\n  destajo jobs --state waiting -o json",
		Args:    nothing,
		RunE: func(*cobra.Command, []string) error {
			if limit < 0 {
				return fault.New(fault.Invalid, "--limit %d", limit).Hint("write a number above 0; without it all are listed")
			}
			f := record.JobFilter{Live: !all && len(states) == 0, Limit: limit}
			for _, s := range states {
				f.States = append(f.States, job.State(s))
			}
			if err := words("state", states, job.States()); err != nil {
				return err
			}
			return a.jobs(f, members)
		},
	}
	c.Flags().BoolVar(&all, "all", false, "ended jobs too")
	c.Flags().BoolVar(&members, "members", false, "a row for each member of an array")
	c.Flags().IntVar(&limit, "limit", 0, "at most so many jobs, the newest")
	c.Flags().StringSliceVar(&states, "state", nil, "only jobs in these states: waiting, starting, running, stopping, done, failed, stopped")
	return c
}

func (a *app) jobs(f record.JobFilter, members bool) error {
	ctx := context.Background()
	h, err := a.open(ctx)
	if err != nil {
		return err
	}
	defer h.close()
	jobs, err := h.Jobs(ctx, h.who, f)
	if err != nil {
		return err
	}
	now := a.Now()
	l := listing{header: []string{"ID", "NAME", "STATE", "TIME", "TRIES", "SUBMITTED", "WHERE", "REASON"}, right: map[int]bool{3: true, 4: true}, shrink: 7}
	type group struct {
		row   int
		count map[job.State]int
	}
	arrays := map[int64]*group{}
	for _, j := range jobs {
		r := rowOfJob(j, now)
		took := "-"
		if r.Started != nil {
			took = seconds(max(r.Seconds, 1e-3))
		}
		row := []string{r.ID, r.Name, string(r.State), took, strconv.Itoa(r.Attempts), a.moment(j.Submitted), r.Offer, r.Reason}
		if j.State == job.Waiting && j.Array == 0 && r.Reason != "" && len(l.foot) < 5 {
			l.foot = append(l.foot, fmt.Sprintf("%s %s: %s", r.ID, r.Name, r.Reason))
		}
		if j.Array == 0 || members || a.output == "csv" {
			l.rows = append(l.rows, row)
			continue
		}
		g := arrays[j.Array]
		if g == nil {
			g = &group{len(l.rows), map[job.State]int{}}
			arrays[j.Array] = g
			row[0], row[4] = strconv.FormatInt(j.Array, 10), ""
			l.rows = append(l.rows, row)
		}
		g.count[j.State]++
	}
	for _, g := range arrays {
		var parts []string
		total := 0
		for _, s := range job.States() {
			if n := g.count[s]; n > 0 {
				parts = append(parts, fmt.Sprintf("%d %s", n, s))
				total += n
			}
		}
		l.rows[g.row][2], l.rows[g.row][7] = "array", strings.Join(parts, ", ")
		l.rows[g.row][1] += fmt.Sprintf(" [%d]", total)
	}
	if !a.tabular() { // the rows have the reasons whole
		l.foot = nil
	} else if len(l.rows) == 0 {
		l.foot = []string{"No jobs. `destajo run examples/hello.yml` runs one; --all lists ended ones."}
	}
	return a.print(l, jobRows(jobs, now))
}

// moment is a time of a listing, UTC: for people only as exact as they need.
func (a *app) moment(t time.Time) string {
	t = t.UTC()
	switch {
	case a.output == "csv":
		return t.Format(time.RFC3339)
	case t.Format(time.DateOnly) == a.Now().UTC().Format(time.DateOnly) && a.tabular():
		return t.Format("15:04 UTC")
	case a.tabular():
		return t.Format(time.DateOnly)
	}
	return t.Format("2006-01-02 15:04")
}

// plural is a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// seconds says a time in words, short.
func seconds(s float64) string {
	switch {
	case s <= 0:
		return "-"
	case s < 10:
		return strconv.FormatFloat(s, 'f', 1, 64) + "s"
	case s < 120:
		return strconv.FormatFloat(s, 'f', 0, 64) + "s"
	}
	return clock(s / 3600)
}

// price shows an amount with the decimals that it needs.
func price(x money.Amount) string {
	switch f := x.Float(); {
	case x == 0:
		return "0"
	case f >= 0.1 || f <= -0.1:
		return x.Fixed(2)
	case f >= 0.001 || f <= -0.001:
		return x.Fixed(4)
	}
	return x.String()
}

func (a *app) jobCommand() *cobra.Command {
	var fetch string
	c := &cobra.Command{
		Use:     "job JOB",
		GroupID: "run",
		Short:   "Show one job: estimate against actual, attempts, costs, events",
		Long: `Show all that is known of one job: what was estimated and what it took and cost
by part, its attempts and machines, and what happened to it. JOB is a number, a
member of an array such as 12.7, or a name.`,
		Example: "  destajo job 12\n  destajo job 12.7 -o json\n  destajo job 12 --fetch results/",
		Args:    exactly(1, "one job"),
		RunE: func(_ *cobra.Command, args []string) error {
			ctx := context.Background()
			h, err := a.open(ctx)
			if err != nil {
				return err
			}
			defer h.close()
			jobs, err := h.Find(ctx, h.who, args[0])
			if err != nil {
				return err
			}
			if fetch != "" {
				for _, j := range jobs {
					dir := fetch
					if len(jobs) > 1 {
						dir = filepath.Join(fetch, strconv.Itoa(j.Index))
					}
					n, err := h.fetch(ctx, j, dir)
					if err != nil {
						return err
					}
					if n == 0 {
						return fault.New(fault.NotFound, "job %s brought nothing back", jobRef(j)).Hint("name files or folders under outputs: of the job")
					}
					h.sayFetched(n, dir)
				}
				return nil
			}
			if len(jobs) > 1 {
				return a.jobs(record.JobFilter{Array: jobs[0].Array}, true)
			}
			return h.showJob(ctx, jobs[0].ID)
		},
	}
	c.Flags().StringVar(&fetch, "fetch", "", "bring the job's outputs into this folder")
	return c
}

// fetch unpacks what a job brought back and counts the files.
func (h *house) fetch(ctx context.Context, j *job.Job, dir string) (int, error) {
	files := 0
	for rank := range 1024 {
		r, err := h.Outputs(ctx, h.who, j, rank)
		if err != nil {
			return files, err
		}
		if r == nil {
			break
		}
		to := dir
		if rank > 0 {
			to = filepath.Join(dir, fmt.Sprintf("rank-%d", rank))
		}
		names, err := bundle.Unpack(r, to)
		_ = r.Close()
		if err != nil {
			return files, err
		}
		files += len(names)
	}
	return files, nil
}

func (h *house) sayFetched(files int, dir string) {
	if files > 0 {
		fmt.Fprintf(h.app.Err, "outputs: %s in %s\n", plural(files, "file"), dir)
	}
}

func (a *app) logsCommand() *cobra.Command {
	var follow bool
	var attempt, rank, tail int
	c := &cobra.Command{
		Use:     "logs JOB",
		GroupID: "run",
		Short:   "Print what a job wrote",
		Long: `Print what a job wrote to standard output and standard error, byte by byte. Of
several attempts all are printed, one after the other, unless --attempt says which.`,
		Example: "  destajo logs 12\n  destajo logs -f train\n  destajo logs 12 --tail 20",
		Args:    exactly(1, "one job"),
		RunE: func(_ *cobra.Command, args []string) error {
			if tail < 0 || attempt < 0 {
				return fault.New(fault.Invalid, "--tail and --attempt take numbers above 0")
			}
			ctx := context.Background()
			h, err := a.open(ctx)
			if err != nil {
				return err
			}
			defer h.close()
			return h.logs(ctx, args[0], follow, attempt, rank, tail)
		},
	}
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on until the job has ended")
	c.Flags().IntVar(&attempt, "attempt", 0, "only this attempt, from 1")
	c.Flags().IntVar(&rank, "rank", -1, "only this machine of a gang, from 0")
	c.Flags().IntVar(&tail, "tail", 0, "only the last lines")
	return c
}

func (h *house) logs(ctx context.Context, ref string, follow bool, attempt, rank, tail int) error {
	jobs, err := h.Find(ctx, h.who, ref)
	if err != nil {
		return err
	}
	out := h.app.Out
	offsets := map[string]int64{}
	for {
		over := true
		for _, j := range jobs {
			now, err := h.Jobs(ctx, h.who, record.JobFilter{IDs: []int64{j.ID}})
			if err != nil {
				return err
			}
			over = over && len(now) == 1 && now[0].State.Ended()
			attempts, err := h.Attempts(ctx, h.who, j.ID)
			if err != nil {
				return err
			}
			if attempt > len(attempts) && !follow {
				return fault.New(fault.NotFound, "job %s had %d attempts, not %d", jobRef(j), len(attempts), attempt)
			}
			for _, x := range attempts {
				if attempt > 0 && x.Number != attempt {
					continue
				}
				if n := len(x.Tasks); rank >= n {
					return fault.New(fault.NotFound, "job %s runs on %s, there is no rank %d", jobRef(j), plural(n, "machine"), rank).Hint("ranks count from 0")
				}
				for r := range x.Tasks {
					if rank >= 0 && r != rank {
						continue
					}
					if err := h.copyLog(ctx, out, x, r, offsets, tail); err != nil {
						return err
					}
				}
			}
		}
		if !follow || over {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (h *house) copyLog(ctx context.Context, out io.Writer, a *machine.Attempt, rank int, offsets map[string]int64, tail int) error {
	id := machine.TaskID(a.ID, rank)
	if _, begun := offsets[id]; !begun && tail > 0 {
		offset, err := tailOf(h.Files.Log(a.Job, a.ID, rank), tail)
		if err != nil {
			return err
		}
		offsets[id] = offset
	}
	for {
		data, err := h.Log(ctx, h.who, a, rank, offsets[id], 1<<20)
		if err != nil || len(data) == 0 {
			return err
		}
		offsets[id] += int64(len(data))
		switch {
		case h.app.output == "json":
			data = jsonLines(data, a, rank)
		case len(a.Tasks) > 1:
			data = prefixed(data, rank)
		}
		if _, err := out.Write(data); err != nil {
			return fault.Wrap(fault.Internal, err, "writing the log")
		}
	}
}

// jsonLines gives each piece of a log that ends in a line break, or stands at
// the end, as an object of its own. What is no text is shown as it can be.
func jsonLines(data []byte, a *machine.Attempt, rank int) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	for line := range bytes.Lines(data) {
		_ = e.Encode(struct {
			Job     int64  `json:"job"`
			Attempt int    `json:"attempt"`
			Rank    int    `json:"rank"`
			Text    string `json:"text"`
		}{a.Job, a.Number, rank, strings.TrimSuffix(string(line), "\n")})
	}
	return b.Bytes()
}

// tailOf finds where the last lines of a file begin.
func tailOf(path string, lines int) (int64, error) {
	f, err := os.Open(path)
	if os.IsNotExist(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fault.Wrap(fault.Internal, err, "reading the log")
	}
	defer f.Close()
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	buffer := make([]byte, 64<<10)
	for at := end; at > 0; {
		n := min(int64(len(buffer)), at)
		at -= n
		if _, err := f.ReadAt(buffer[:n], at); err != nil {
			return 0, err
		}
		for i := n - 1; i >= 0; i-- {
			if buffer[i] == '\n' && at+i+1 < end {
				if lines--; lines == 0 {
					return at + i + 1, nil
				}
			}
		}
	}
	return 0, nil
}

func (a *app) stopCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "stop JOB...",
		GroupID: "run",
		Short:   "Stop jobs; they get a notice and time to save their work",
		Long: `Stop jobs for good: each gets SIGTERM and the file named by DESTAJO_NOTICE, then
30 seconds, then SIGKILL; its machine is ended when nothing else needs it. The
number of an array stops all of its members.`,
		Example: "  destajo stop 12\n  destajo stop 12.7 sweep",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fault.New(fault.Invalid, "destajo stop takes one or more jobs").Hint("usage: %s", c.UseLine())
			}
			ctx := context.Background()
			h, err := a.open(ctx)
			if err != nil {
				return err
			}
			defer h.close()
			var all []*job.Job
			for _, ref := range args {
				jobs, err := h.Find(ctx, h.who, ref)
				if err != nil {
					return err
				}
				all = append(all, jobs...)
			}
			live := 0
			for _, j := range all {
				if !j.State.Ended() {
					live++
				}
			}
			if err := h.Stop(ctx, h.who, ids(all), ""); err != nil {
				return err
			}
			if live > 0 {
				h.carryOut(ctx, all)
			}
			return a.print(listing{header: []string{"ID", "NAME", "STATE"}, rows: h.states(ctx, all)}, h.rows(ctx, all))
		},
	}
}

// carryOut makes stops happen: by the process that acts on this state, or here.
func (h *house) carryOut(ctx context.Context, jobs []*job.Job) {
	loopContext, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.loop("run", 0, h.app.logger()).Run(loopContext)
	}()
	until := time.Now().Add(h.Settings.Grace + 30*time.Second)
	for time.Now().Before(until) {
		over := true
		now, err := h.current(ctx, jobs)
		if err != nil {
			break
		}
		for _, j := range now {
			over = over && j.State.Ended()
		}
		if over {
			h.settle(ctx, nil)
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	stop()
	<-done
}

func (h *house) current(ctx context.Context, jobs []*job.Job) ([]*job.Job, error) {
	return h.Jobs(ctx, h.who, record.JobFilter{IDs: ids(jobs)})
}

func (h *house) rows(ctx context.Context, jobs []*job.Job) []jobRow {
	now, err := h.current(ctx, jobs)
	if err != nil {
		now = jobs
	}
	return jobRows(now, h.Now())
}

func (h *house) states(ctx context.Context, jobs []*job.Job) [][]string {
	var out [][]string
	for _, r := range h.rows(ctx, jobs) {
		out = append(out, []string{r.ID, r.Name, string(r.State)})
	}
	return out
}
