package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/plan"
	"github.com/destajo/destajo/tenant"
)

// Service is the one door to jobs, machines and money. Every verb says on whose
// behalf it is called, checks that they may, and changes rows in one
// transaction with a line in the trail. It acts on rows only: the Loop, in this
// process or another one, makes the world follow.
type Service struct {
	Store    Store
	Backends func(context.Context) (map[string]backend.Backend, error)
	Chooser  *Chooser
	Files    Files
	Settings Settings
	Now      func() time.Time
}

// Submission is a job to be run.
type Submission struct {
	File   string            // its name, for faults
	Text   string            // the job file
	Env    map[string]string // variables beside those of the file
	Dir    string            // folder to which outputs come back; empty: none
	Bundle string            // stored by PutBundle; empty: nothing is sent along
}

// Placed is what a submission led to.
type Placed struct {
	Jobs   []*job.Job // one, or the members of an array
	Spec   *job.Spec
	Choice *Choice
	Plan   *plan.Plan // over the places that can run it
}

// Plan says where a job could run now.
func (s *Service) Plan(ctx context.Context, who tenant.Who, file, text string) (*Placed, error) {
	if err := who.May(tenant.ReadJobs); err != nil {
		return nil, err
	}
	spec, err := job.Parse(file, []byte(text))
	if err != nil {
		return nil, err
	}
	return s.place(ctx, spec)
}

func (s *Service) place(ctx context.Context, spec *job.Spec) (*Placed, error) {
	now := s.Now()
	if err := spec.Check(now); err != nil {
		return nil, err
	}
	all, err := s.Backends(ctx)
	if err != nil {
		return nil, err
	}
	defer closeAll(all)
	places, failed := ready(ctx, all)
	known, err := s.Store.Changed(ctx, 0)
	if err != nil {
		return nil, err
	}
	met := map[string]*record.Place{}
	for _, x := range known.Places {
		met[x.Offer] = x
	}
	c, p, err := s.Chooser.Choose(spec, places, met, failed, now, s.Settings)
	if err != nil {
		return nil, err
	}
	return &Placed{Spec: spec, Choice: c, Plan: p}, nil
}

func closeAll(all map[string]backend.Backend) {
	for _, b := range all {
		_ = b.Close()
	}
}

// Looking is the reason of a job that was submitted a moment ago.
const Looking = "looking for a place"

// Submit takes a job in. A job that no known place could ever run is refused
// with the kind NothingFits and changes nothing; one for which there is no room
// now waits.
func (s *Service) Submit(ctx context.Context, who tenant.Who, x Submission) (*Placed, error) {
	if err := who.May(tenant.Submit); err != nil {
		return nil, err
	}
	spec, err := job.Parse(x.File, []byte(x.Text))
	if err != nil {
		return nil, err
	}
	if spec.Run == "" && spec.Kind != job.Notebook && spec.Image == "" {
		return nil, fault.New(fault.Invalid, "job %q has no command", spec.Name).At(x.File, 0, 0).Hint("add run: with a command; `destajo plan` plans without one")
	}
	if len(spec.Secrets) > 0 {
		return nil, fault.New(fault.Invalid, "job %q wants the secrets %s, and this state keeps none", spec.Name, strings.Join(spec.Secrets, ", ")).At(x.File, 0, 0).
			Hint("give them as env: of the job, which everybody who can read this state can read too")
	}
	placed, err := s.place(ctx, spec)
	if err != nil {
		return nil, err
	}
	if len(placed.Choice.Candidates) == 0 {
		return nil, fault.New(fault.NothingFits, "job %q: %s", spec.Name, placed.Choice.Why).Hint("`destajo machines` lists what there is; `destajo plan` shows what could be rented")
	}
	after, err := s.resolve(ctx, who, spec)
	if err != nil {
		return nil, err
	}
	now := s.Now()
	n := max(1, spec.Array)
	first, err := s.Store.NextJobs(ctx, n)
	if err != nil {
		return nil, err
	}
	best := placed.Choice.Candidates[0].Estimate
	c := &record.Changes{}
	for i := range n {
		j := &job.Job{ID: first + int64(i), Project: who.Project, Member: who.Member, Name: spec.Name, Kind: spec.Kind, Index: i, Env: x.Env, Dir: x.Dir, Bundle: x.Bundle,
			After: after, Priority: spec.Priority, State: job.Waiting, Reason: Looking, Submitted: now, ExitCode: -1, Estimate: &best}
		if n > 1 {
			j.Array = first
		}
		if i == 0 {
			j.Text = x.Text
		}
		if d := spec.Limits.Deadline; d != nil {
			j.Deadline = now.Add(d.In(now))
		}
		placed.Jobs = append(placed.Jobs, j)
	}
	c.Jobs = placed.Jobs
	c.Events = []tenant.Event{{At: now, Project: who.Project, Member: who.Member, Job: first, What: "submitted", Detail: submitted(spec.Name, n)}}
	return placed, s.Store.Apply(ctx, 0, c)
}

func submitted(name string, n int) string {
	if n > 1 {
		return fmt.Sprintf("%s, an array of %d", name, n)
	}
	return name
}

// resolve finds the jobs for which a new one waits: by number, or the newest
// of that name, all members of an array.
func (s *Service) resolve(ctx context.Context, who tenant.Who, spec *job.Spec) ([]int64, error) {
	var out []int64
	for _, name := range spec.After {
		jobs, err := s.Find(ctx, who, name)
		if err != nil {
			return nil, fault.Wrap(fault.KindOf(err), err, "after").Hint("write the number or the name of a job that was submitted before")
		}
		for _, j := range jobs {
			out = append(out, j.ID)
		}
	}
	return out, nil
}

// PutBundle stores files that are sent along with a job.
func (s *Service) PutBundle(_ context.Context, who tenant.Who, r io.Reader) (string, error) {
	if err := who.May(tenant.Submit); err != nil {
		return "", err
	}
	return s.Files.PutBlob(r)
}

// Jobs lists jobs, newest first.
func (s *Service) Jobs(ctx context.Context, who tenant.Who, f record.JobFilter) ([]*job.Job, error) {
	if err := who.May(tenant.ReadJobs); err != nil {
		return nil, err
	}
	f.Project = who.Project
	return s.Store.Jobs(ctx, f)
}

// Find gives the jobs that a person names: by number (12), as the member of an
// array (12.7), or the newest of a name. The number of an array's first job
// names the whole array.
func (s *Service) Find(ctx context.Context, who tenant.Who, ref string) ([]*job.Job, error) {
	if err := who.May(tenant.ReadJobs); err != nil {
		return nil, err
	}
	unknown := fault.New(fault.NotFound, "no job %q", ref).Hint("`destajo jobs --all` lists ended ones too")
	number, member, isMember := strings.Cut(ref, ".")
	id, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		jobs, err := s.Store.Jobs(ctx, record.JobFilter{Project: who.Project, Name: ref, Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(jobs) == 0 {
			return nil, unknown
		}
		if jobs[0].Array == 0 {
			return jobs, nil
		}
		id, isMember = jobs[0].Array, false
	}
	jobs, err := s.Store.Jobs(ctx, record.JobFilter{Project: who.Project, IDs: []int64{id}})
	if err != nil {
		return nil, err
	}
	if len(jobs) == 0 {
		return nil, unknown
	}
	if jobs[0].Array == 0 || jobs[0].Array != id && !isMember {
		if isMember {
			return nil, fault.New(fault.NotFound, "job %d is no array", id).Hint("write %d", id)
		}
		return jobs, nil
	}
	all, err := s.Store.Jobs(ctx, record.JobFilter{Project: who.Project, Array: jobs[0].Array})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b *job.Job) int { return a.Index - b.Index })
	if !isMember {
		return all, nil
	}
	i, err := strconv.Atoi(member)
	if err != nil || i < 0 || i >= len(all) {
		return nil, fault.New(fault.NotFound, "array %d has the members 0 to %d, not %q", id, len(all)-1, member).Hint("write %d.0", id)
	}
	return all[i : i+1], nil
}

// Detail is all that is known of one job.
type Detail struct {
	Job      *job.Job
	Spec     *job.Spec
	Attempts []*machine.Attempt
	Machines map[string]*machine.Machine // of its attempts
	Hold     *tenant.Hold                // nil before the first attempt
	Entries  []record.Entry
	Events   []tenant.Event
	Samples  []record.Sample // of the last attempt
}

// Job tells all that is known of one job.
func (s *Service) Job(ctx context.Context, who tenant.Who, id int64) (*Detail, error) {
	jobs, err := s.Jobs(ctx, who, record.JobFilter{IDs: []int64{id}})
	if err != nil {
		return nil, err
	}
	if len(jobs) == 0 {
		return nil, fault.New(fault.NotFound, "no job %d", id).Hint("`destajo jobs --all` lists ended ones too")
	}
	d := &Detail{Job: jobs[0], Machines: map[string]*machine.Machine{}}
	text := d.Job.Text
	if text == "" && d.Job.Array != 0 {
		if first, err := s.Store.Jobs(ctx, record.JobFilter{IDs: []int64{d.Job.Array}}); err == nil && len(first) > 0 {
			text = first[0].Text
		}
	}
	if d.Spec, err = job.Parse(d.Job.Name+".yml", []byte(text)); err != nil {
		d.Spec = &job.Spec{Name: d.Job.Name}
	}
	if d.Attempts, err = s.Store.Attempts(ctx, id); err != nil {
		return nil, err
	}
	for _, a := range d.Attempts {
		for i := range a.Tasks {
			if m, err := s.Store.Machine(ctx, a.Tasks[i].Machine); err == nil {
				d.Machines[m.ID] = m
			}
		}
	}
	if d.Hold, err = s.Store.Hold(ctx, id); err != nil && fault.KindOf(err) != fault.NotFound {
		return nil, err
	}
	if d.Entries, err = s.Store.Ledger(ctx, record.LedgerFilter{Project: who.Project, Jobs: []int64{id}}); err != nil {
		return nil, err
	}
	if d.Events, err = s.Store.Events(ctx, record.EventFilter{Project: who.Project, Job: id}); err != nil {
		return nil, err
	}
	if n := len(d.Attempts); n > 0 {
		d.Samples, err = s.Store.Samples(ctx, d.Attempts[n-1].ID)
	}
	return d, err
}

// Version is that of the newest change of the state: when it has grown, a
// watcher asks again for what it watches. It costs microseconds.
func (s *Service) Version(ctx context.Context) (int64, error) { return s.Store.Version(ctx) }

// Attempts lists the tries of a job, oldest first.
func (s *Service) Attempts(ctx context.Context, who tenant.Who, id int64) ([]*machine.Attempt, error) {
	if err := who.May(tenant.ReadJobs); err != nil {
		return nil, err
	}
	all, err := s.Store.Attempts(ctx, id)
	return slices.DeleteFunc(all, func(a *machine.Attempt) bool { return a.Project != who.Project }), err
}

// On says which jobs have an attempt on which machines now.
func (s *Service) On(ctx context.Context, who tenant.Who) (map[string][]int64, error) {
	if err := who.May(tenant.ReadMachines); err != nil {
		return nil, err
	}
	d, err := s.Store.Changed(ctx, 0)
	if err != nil {
		return nil, err
	}
	out := map[string][]int64{}
	for _, a := range d.Attempts {
		for i := range a.Tasks {
			if a.Project == who.Project {
				out[a.Tasks[i].Machine] = append(out[a.Tasks[i].Machine], a.Job)
			}
		}
	}
	return out, nil
}

// Acting says which process looks after this state; empty: none does.
func (s *Service) Acting(ctx context.Context) (string, error) {
	l, err := s.Store.Holder(ctx)
	if err != nil || !s.Now().Before(l.Expires) {
		return "", err
	}
	return l.Holder, nil
}

// Stop ends jobs. It is final, and returns when it is written down.
func (s *Service) Stop(ctx context.Context, who tenant.Who, ids []int64, reason string) error {
	if err := who.May(tenant.StopOwn); err != nil {
		return err
	}
	if reason == "" {
		reason = "stopped by " + who.Member
	}
	for {
		jobs, err := s.Store.Jobs(ctx, record.JobFilter{Project: who.Project, IDs: ids})
		if err != nil {
			return err
		}
		c := &record.Changes{}
		for _, j := range jobs {
			if j.State.Ended() || j.Stop != "" {
				continue
			}
			if j.Member != who.Member {
				if err := who.May(tenant.StopAny); err != nil {
					return err
				}
			}
			x := *j
			x.Stop = reason
			if x.State != job.Waiting {
				x.State = job.Stopping
			}
			c.Jobs = append(c.Jobs, &x)
			c.Events = append(c.Events, tenant.Event{At: s.Now(), Project: who.Project, Member: who.Member, Job: j.ID, What: "stop", Detail: reason})
		}
		if c.Empty() {
			return nil
		}
		if err = s.Store.Apply(ctx, 0, c); fault.KindOf(err) != fault.Conflict {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
}

// Log reads a part of a task's log as far as it is here.
func (s *Service) Log(_ context.Context, who tenant.Who, a *machine.Attempt, rank int, offset int64, most int) ([]byte, error) {
	if err := who.May(tenant.ReadJobs); err != nil {
		return nil, err
	}
	if a.Project != who.Project {
		return nil, fault.New(fault.NotFound, "no attempt %s", a.ID)
	}
	f, err := os.Open(s.Files.Log(a.Job, a.ID, rank))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "reading the log")
	}
	defer f.Close()
	b := make([]byte, most)
	n, err := f.ReadAt(b, offset)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fault.Wrap(fault.Internal, err, "reading the log")
	}
	return b[:n], nil
}

// Outputs opens the tar.gz of what one rank of a job brought back; nil when
// there is nothing.
func (s *Service) Outputs(_ context.Context, who tenant.Who, j *job.Job, rank int) (io.ReadCloser, error) {
	if err := who.May(tenant.ReadJobs); err != nil {
		return nil, err
	}
	f, err := os.Open(s.Files.Outputs(j.ID, rank))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return f, err
}

// Machines lists machines: those that may cost, or all that ever were.
func (s *Service) Machines(ctx context.Context, who tenant.Who, all bool) ([]*machine.Machine, error) {
	if err := who.May(tenant.ReadMachines); err != nil {
		return nil, err
	}
	return s.Store.Machines(ctx, who.Project, all)
}

// EndMachine decides the end of a machine; what runs on it is stopped first and
// tried elsewhere. A quarantined one is ended too: a person's word is enough.
func (s *Service) EndMachine(ctx context.Context, who tenant.Who, id, reason string) error {
	if err := who.May(tenant.EndMachine); err != nil {
		return err
	}
	for ctx.Err() == nil {
		m, err := s.Store.Machine(ctx, id)
		if err != nil || m.Project != who.Project {
			return fault.New(fault.NotFound, "no machine %q", id).Hint("`destajo machines` lists them")
		}
		if m.State == machine.Gone || m.State == machine.Ending {
			return nil
		}
		x := *m
		x.State, x.Reason, x.Ending = machine.Ending, reason, s.Now()
		if plane, err := s.Store.Plane(ctx); err == nil {
			x.Epoch = plane.Epoch
		}
		err = s.Store.Apply(ctx, 0, &record.Changes{Machines: []*machine.Machine{&x},
			Events: []tenant.Event{{At: s.Now(), Project: who.Project, Member: who.Member, Machine: id, What: "end", Detail: reason}}})
		if fault.KindOf(err) != fault.Conflict {
			return err
		}
	}
	return ctx.Err()
}

// AdoptMachine takes a quarantined machine back: jobs may use it, and it is
// released when it is idle. It must be in the rows with what it costs.
func (s *Service) AdoptMachine(ctx context.Context, who tenant.Who, id string) error {
	if err := who.May(tenant.EndMachine); err != nil {
		return err
	}
	for ctx.Err() == nil {
		m, err := s.Store.Machine(ctx, id)
		if err != nil || m.Project != who.Project {
			return fault.New(fault.NotFound, "no machine %q", id).Hint("`destajo machines` lists them")
		}
		switch {
		case m.State != machine.Quarantined:
			return fault.New(fault.Conflict, "machine %s is %s, not quarantined", id, m.State)
		case m.Terms.OfferID == "" || m.Host == nil:
			return fault.New(fault.Conflict, "nothing is known of machine %s but that it is there: not what it costs, nor how it is reached", id).Hint("`destajo machines end %s` ends it", id)
		}
		plane, err := s.Store.Plane(ctx)
		if err != nil {
			return err
		}
		x := *m
		now := s.Now()
		x.State, x.Reason, x.Epoch, x.Heard, x.Used = machine.Ready, "", plane.Epoch, now, now
		err = s.Store.Apply(ctx, 0, &record.Changes{Machines: []*machine.Machine{&x},
			Events: []tenant.Event{{At: now, Project: who.Project, Member: who.Member, Machine: id, What: "adopted"}}})
		if fault.KindOf(err) != fault.Conflict {
			return err
		}
	}
	return ctx.Err()
}

// PutSource adds a source of machines, changes it, or takes it away.
func (s *Service) PutSource(ctx context.Context, who tenant.Who, x *record.Source) error {
	if err := who.May(tenant.AddMachine); err != nil {
		return err
	}
	x.Project, x.Member = who.Project, who.Member
	if x.Made.IsZero() {
		x.Made = s.Now()
	}
	what := "added"
	if x.Removed {
		what = "removed"
	}
	return s.Store.Apply(ctx, 0, &record.Changes{Sources: []*record.Source{x},
		Events: []tenant.Event{{At: s.Now(), Project: who.Project, Member: who.Member, What: "source " + what, Detail: x.ID}}})
}

// Sources lists the sources of machines.
func (s *Service) Sources(ctx context.Context, who tenant.Who) ([]*record.Source, error) {
	if err := who.May(tenant.ReadMachines); err != nil {
		return nil, err
	}
	d, err := s.Store.Changed(ctx, 0)
	if err != nil {
		return nil, err
	}
	var out []*record.Source
	for _, x := range d.Sources {
		if x.Project == who.Project && !x.Removed {
			out = append(out, x)
		}
	}
	return out, nil
}

// Places says what can be launched now, and which sources do not answer.
func (s *Service) Places(ctx context.Context, who tenant.Who) ([]Ready, []string, error) {
	if err := who.May(tenant.ReadMachines); err != nil {
		return nil, nil, err
	}
	all, err := s.Backends(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer closeAll(all)
	out, failed := ready(ctx, all)
	return out, failed, nil
}

// Ledger lists usage with its charges, oldest first.
func (s *Service) Ledger(ctx context.Context, who tenant.Who, f record.LedgerFilter) ([]record.Entry, error) {
	if err := who.May(tenant.ReadCost); err != nil {
		return nil, err
	}
	f.Project = who.Project
	return s.Store.Ledger(ctx, f)
}

var _ = ledger.Run // rows of Entry

// Enter opens a way into a running job: a client of its agent and the name of
// its task there. The client is to be closed.
func (s *Service) Enter(ctx context.Context, who tenant.Who, id int64, rank int) (*wire.Client, string, error) {
	if err := who.May(tenant.Enter); err != nil {
		return nil, "", err
	}
	d, err := s.Job(ctx, who, id)
	if err != nil {
		return nil, "", err
	}
	for i := len(d.Attempts) - 1; i >= 0; i-- {
		a := d.Attempts[i]
		if a.State != machine.Started && a.State != machine.Leaving {
			continue
		}
		if rank >= len(a.Tasks) {
			return nil, "", fault.New(fault.NotFound, "job %d has %d ranks, there is no %d", id, len(a.Tasks), rank).Hint("write --rank 0")
		}
		m := d.Machines[a.Tasks[rank].Machine]
		all, err := s.Backends(ctx)
		if err != nil {
			return nil, "", err
		}
		b := all[m.Backend]
		if b == nil {
			closeAll(all)
			return nil, "", fault.New(fault.NotFound, "machine %s is of %s, which is not configured here", m.ID, m.Backend)
		}
		return wire.NewClient(func(ctx context.Context) (net.Conn, error) { return b.Dial(ctx, m) }), machine.TaskID(a.ID, rank), nil
	}
	return nil, "", fault.New(fault.Conflict, "job %d does not run: it is %s", id, d.Job.State).Hint("%s", orElse(d.Job.Reason, "`destajo jobs` shows what runs"))
}

func orElse(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
