package agent

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// What a task that does nothing uses at most.
const (
	idleGPU = 5.0  // percent of a GPU
	idleCPU = 0.02 // cores
)

// sampleEvery is how often tasks are measured; kept is how many samples wait
// for the control plane.
const (
	sampleEvery = 10 * time.Second
	kept        = 20_000
)

// samples measures the tasks of an agent.
type samples struct {
	agent *Agent
	next  int64 // number of the next sample
	first int64 // of all[0]
	all   []record.Sample
	last  time.Time
	busy  atomic.Bool // it looks just now
	file  *os.File
	lines int                // in the file
	cpu   map[string]float64 // seconds of CPU at the last look, by task
}

// spooled is one line of the file of samples.
type spooled struct {
	Number int64         `json:"n"`
	Sample record.Sample `json:"s"`
}

// newSamples takes up the samples of a former life.
func newSamples(a *Agent) *samples {
	s := &samples{agent: a, cpu: map[string]float64{}}
	if f, err := os.Open(a.path("samples")); err == nil {
		for d := json.NewDecoder(f); ; s.lines++ {
			var x spooled
			if d.Decode(&x) != nil { // the end, or a line that was being written
				break
			}
			if x.Number != s.next { // the first, or some are missing before it
				s.first, s.all = x.Number, s.all[:0]
			}
			s.all, s.next = append(s.all, x.Sample), x.Number+1
		}
		_ = f.Close()
	}
	if s.next == 0 {
		s.next = time.Now().UnixMicro() // larger than any number of an agent that was here before
		s.first = s.next
	}
	s.trim()
	s.rewrite()
	return s
}

// trim forgets the oldest samples when there are too many.
func (s *samples) trim() {
	if n := len(s.all) - kept; n > 0 {
		s.all = slices.Delete(s.all, 0, n)
		s.first += int64(n)
	}
}

// add keeps a sample; the caller holds the agent's lock.
func (s *samples) add(x record.Sample) {
	s.all = append(s.all, x)
	s.trim()
	if s.lines++; s.lines > 2*kept {
		s.rewrite()
	} else if s.file != nil {
		if line, err := json.Marshal(spooled{s.next, x}); err == nil {
			_, _ = s.file.Write(append(line, '\n'))
		}
	}
	s.next++
}

// rewrite makes the file anew from what is in memory. Without room on the disk
// samples are kept in memory only.
func (s *samples) rewrite() {
	if s.file != nil {
		_ = s.file.Close()
	}
	path := s.agent.path("samples")
	f, err := os.Create(path + ".new")
	if err != nil {
		s.file = nil
		return
	}
	w := bufio.NewWriter(f)
	e := json.NewEncoder(w)
	for i := range s.all {
		_ = e.Encode(spooled{s.first + int64(i), s.all[i]})
	}
	_ = w.Flush()
	_ = os.Rename(path+".new", path)
	s.file, s.lines = f, len(s.all)
}

// since gives what was measured from a cursor on.
func (s *samples) since(after int64) wire.Samples {
	s.agent.mu.Lock()
	defer s.agent.mu.Unlock()
	from := min(max(after-s.first, 0), int64(len(s.all)))
	return wire.Samples{Next: s.next, Samples: slices.Clone(s.all[from:])}
}

// look measures when it is time: every ten seconds, and every second where a
// task is stopped after a short idle time.
func (s *samples) look(ctx context.Context, now time.Time) {
	a := s.agent
	type subject struct {
		task *task
		id   string
		use  usage
	}
	var all []subject
	every := sampleEvery
	a.mu.Lock()
	for _, id := range a.order {
		t := a.tasks[id]
		if t.state.State != machine.TaskRunning && t.state.State != machine.TaskStopping {
			delete(s.cpu, id)
			continue
		}
		if t.spec.Idle > 0 && t.spec.Idle < time.Minute {
			every = time.Second
		}
		all = append(all, subject{t, id, usage{session: t.state.PID, notice: t.notice()}})
	}
	a.mu.Unlock()
	passed := now.Sub(s.last)
	if passed < every || len(all) == 0 {
		return
	}
	s.last = now
	var gpus map[string]machine.Device
	if len(a.slots.units) > 0 {
		if list, err := a.c.Finder.Use(ctx); err == nil {
			gpus = map[string]machine.Device{}
			for _, d := range list {
				gpus[named(d.UUID, d.Vendor, d.Index)] = d
			}
		}
	}
	var here []*usage
	for i := range all {
		if x := &all[i]; x.task.spec.Image == "" {
			here = append(here, &x.use)
		}
	}
	if len(here) > 0 {
		measure(here)
	}
	for _, x := range all {
		cpu, memory := x.use.cpu, x.use.memory
		if x.task.spec.Image != "" {
			cpu, memory = a.engine.usage(ctx, x.task)
		}
		before, seen := s.cpu[x.id]
		s.cpu[x.id] = cpu
		cores := 0.0
		if seen && cpu >= before {
			cores = (cpu - before) / passed.Seconds()
		}
		attempt, rank, _ := machine.ParseTask(x.id)
		sample := record.Sample{Job: x.task.spec.Job, Attempt: attempt, Rank: rank, At: now, CPU: cores, Memory: memory}
		busy := cores > idleCPU
		a.mu.Lock()
		held := x.task.state.Devices
		if len(held) > 0 {
			busy = false
		}
		watts := 0.0
		for _, uuid := range held {
			d, ok := gpus[uuid]
			use := record.GPUUse{UUID: uuid}
			if ok {
				use.Utilization, use.Memory, use.Watts, use.Celsius = d.Utilization, d.MemoryUsed, d.PowerWatts, d.Temperature
			}
			if use.Watts != nil {
				watts += *use.Watts
			}
			// What the driver does not say counts as work: nothing is stopped by mistake.
			busy = busy || use.Utilization == nil || *use.Utilization >= idleGPU
			sample.GPUs = append(sample.GPUs, use)
		}
		if busy || !seen || cpu < before { // less than before: some process of it has ended
			x.task.active = now
		}
		if passed < time.Minute {
			x.task.state.Joules += watts * passed.Seconds()
		}
		x.task.state.PeakMem = max(x.task.state.PeakMem, memory, a.limits.peak(x.task))
		if every == sampleEvery || now.Unix()%10 == 0 {
			s.add(sample)
		}
		a.mu.Unlock()
	}
}
