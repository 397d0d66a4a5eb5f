package control

import (
	"fmt"
	"maps"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/machine"
)

// orders gathers what a keeper must know of its machine.
func (l *Loop) orders(m *machine.Machine, attempts []*machine.Attempt) *orders {
	o := &orders{machine: m, attempts: attempts}
	for _, a := range attempts {
		j := l.snap.Jobs[a.Job]
		if j == nil {
			continue
		}
		for i := range a.Tasks {
			if a.Tasks[i].Machine == m.ID {
				t := ordered{id: machine.TaskID(a.ID, i), rank: i, attempt: a, job: j, spec: l.snap.Specs[specOf(j)]}
				if t.hosts, t.ready = l.gang(a); len(a.Tasks) > 1 && t.hosts == nil && a.State != machine.Leaving {
					continue // a gang is told to start once all of its machines are known
				}
				o.tasks = append(o.tasks, t)
			}
		}
	}
	return o
}

// gang gives the addresses of an attempt's machines, nil as long as one is not
// known, and says whether all of its tasks are prepared.
func (l *Loop) gang(a *machine.Attempt) (hosts []string, ready bool) {
	ready = true
	for i := range a.Tasks {
		t := &a.Tasks[i]
		m := l.snap.Machines[t.Machine]
		if m == nil || m.Host == nil {
			return nil, false
		}
		address := m.Host.Address
		if address == "" {
			address = m.Host.Name
		}
		hosts = append(hosts, address)
		ready = ready && (t.State == machine.TaskPrepared || t.State == machine.TaskRunning)
	}
	return hosts, ready
}

// masterPort is where rank 0 of a gang listens, unless the job says otherwise.
const masterPort = 29400

// task makes what the agent is told to run.
func (l *Loop) task(t *ordered) wire.Task {
	s, a := t.spec, t.attempt
	x := wire.Task{ID: t.id, Job: t.job.ID, Kind: string(t.job.Kind), Image: s.Image, Setup: s.Setup, Run: s.Run, Bundle: t.job.Bundle,
		Outputs: s.Outputs, Ports: s.Ports, Restart: s.Restart, Needs: a.Needs, Gang: len(a.Tasks) > 1, Deadline: t.job.Deadline, Grace: l.Settings.Grace}
	if x.Bundle != "" {
		for i, m := range s.Mounts {
			x.Mounts = append(x.Mounts, wire.Mount{Bundle: MountPath(i), To: m.To})
		}
	}
	if c := s.Checkpoint; c != nil && c.Dir != "" {
		x.KeepDir = c.Dir
		if name, err := l.Files.Hash(l.Files.Checkpoint(t.job.ID, t.rank)); err == nil {
			x.Keep = name
		}
	}
	if h := s.Health; h != nil {
		x.Health = &wire.Health{Port: h.Port, Path: h.Path, Every: h.Every, Start: h.Start}
	}
	if d := s.Limits.Duration; d != nil {
		x.Duration = *d
	}
	if d := s.Limits.Idle; d != nil {
		x.Idle = *d
	} else if t.job.Kind == job.Notebook && !s.Limits.IdleOff {
		x.Idle = time.Hour // a notebook that nobody uses ends
	}
	x.Env = l.environment(t)
	if x.Gang {
		x.Run = hostFile(t.hosts, max(1, a.Needs.GPUs)) + x.Run
	}
	return x
}

// MountPath is where the i-th mount of a job lies in its bundle.
func MountPath(i int) string { return path.Join(".destajo-mounts", strconv.Itoa(i)) }

// environment is what a task finds in its environment: our own names, and those
// that torchrun, MPI, DeepSpeed and array jobs of Slurm read.
func (l *Loop) environment(t *ordered) map[string]string {
	a, j := t.attempt, t.job
	env := map[string]string{
		"DESTAJO_JOB": strconv.FormatInt(j.ID, 10), "DESTAJO_NAME": j.Name, "DESTAJO_PROJECT": j.Project,
		"DESTAJO_ATTEMPT": strconv.Itoa(a.Number), "DESTAJO_TASK": t.id, "DESTAJO_MACHINE": a.Tasks[t.rank].Machine,
		"DESTAJO_NODES": strconv.Itoa(len(a.Tasks)), "DESTAJO_NODE_RANK": strconv.Itoa(t.rank), "DESTAJO_GPUS_PER_NODE": strconv.Itoa(a.Needs.GPUs),
	}
	if j.Array != 0 {
		env["DESTAJO_ARRAY"] = strconv.FormatInt(j.Array, 10)
		env["DESTAJO_ARRAY_INDEX"], env["DESTAJO_ARRAY_COUNT"] = strconv.Itoa(j.Index), strconv.Itoa(t.spec.Array)
	}
	if n := len(t.hosts); n > 0 {
		env["DESTAJO_HOSTS"], env["DESTAJO_MASTER"] = strings.Join(t.hosts, ","), t.hosts[0]
		env["MASTER_ADDR"], env["MASTER_PORT"] = t.hosts[0], strconv.Itoa(masterPort)
		if n > 1 {
			procs := strconv.Itoa(max(1, a.Needs.GPUs))
			maps.Copy(env, map[string]string{
				"NNODES": strconv.Itoa(n), "NODE_RANK": strconv.Itoa(t.rank),
				"PET_NNODES": strconv.Itoa(n), "PET_NODE_RANK": strconv.Itoa(t.rank), "PET_NPROC_PER_NODE": procs, // torchrun
				"PET_MASTER_ADDR": t.hosts[0], "PET_MASTER_PORT": strconv.Itoa(masterPort),
				"DLTS_NUM_WORKER": strconv.Itoa(n), "DLTS_ROLE_RANK": strconv.Itoa(t.rank), // DeepSpeed's launcher on managed clusters
			})
		}
	}
	maps.Copy(env, t.spec.Env)
	maps.Copy(env, j.Env)
	return env
}

// hostFile writes the gang's hosts where mpirun, horovodrun and deepspeed
// find them: HOST slots=N, a line each.
func hostFile(hosts []string, slots int) string {
	var b strings.Builder
	b.WriteString("DESTAJO_HOSTFILE=\"$PWD/.destajo-hosts\"; export DESTAJO_HOSTFILE OMPI_MCA_orte_default_hostfile=\"$DESTAJO_HOSTFILE\"\n")
	b.WriteString("cat > \"$DESTAJO_HOSTFILE\" <<'END_OF_HOSTS'\n")
	for _, h := range hosts {
		fmt.Fprintf(&b, "%s slots=%d\n", h, slots)
	}
	b.WriteString("END_OF_HOSTS\n")
	return b.String()
}
