package agent

import (
	"context"
	"slices"
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
	cpu   map[string]float64 // seconds of CPU at the last look, by task
}

func newSamples(a *Agent) *samples {
	start := time.Now().UnixMicro() // grows over restarts
	return &samples{agent: a, next: start, first: start, cpu: map[string]float64{}}
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
		pid  int
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
		all = append(all, subject{t, id, t.state.PID})
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
	for _, x := range all {
		var cpu float64
		var memory int64
		if x.task.spec.Image != "" && a.engine != nil {
			cpu, memory = a.engine.usage(ctx, x.task)
		} else if x.pid != 0 {
			cpu, memory = usageOf(members(x.pid, x.task.notice()))
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
		if busy || !seen {
			x.task.active = now
		}
		if passed < time.Minute {
			x.task.state.Joules += watts * passed.Seconds()
		}
		x.task.state.PeakMem = max(x.task.state.PeakMem, memory)
		if every == sampleEvery || now.Unix()%10 == 0 {
			s.all = append(s.all, sample)
			s.next++
			if n := len(s.all) - kept; n > 0 {
				s.all = slices.Delete(s.all, 0, n)
				s.first += int64(n)
			}
		}
		a.mu.Unlock()
	}
}
