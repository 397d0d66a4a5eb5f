package control

import (
	"context"
	"errors"
	"os"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/internal/wire"
	"github.com/destajo/destajo/machine"
)

// chunk is how much of a log is asked for at once, in bytes.
const chunk = 4 << 20

// sampled is what an agent measured.
type sampled struct{ samples []record.Sample }

func (sampled) String() string { return "samples" }
func (sampled) apply(*draft)   {}

// fetch brings logs, checkpoints and outputs here while the machine is ready.
func (k *keeper) fetch(ctx context.Context) {
	keeps := map[string]*keep{}
	whole := map[string]bool{} // of what everything is here: what orders say of it may be older
	var sampleCursor int64
	var sampledAt time.Time
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-k.ship:
		case <-tick.C:
		}
		report := k.report.Load()
		if report == nil {
			continue
		}
		now := k.loop.Now()
		o := k.orders.Load()
		for i := range report.Tasks {
			if t := find(o, report.Tasks[i].ID); t != nil && !whole[t.id] {
				var err error
				if whole[t.id], err = k.bring(ctx, t, &report.Tasks[i], keeps, now); err != nil && ctx.Err() == nil {
					k.loop.Log.Warn("fetching", "task", t.id, "err", err)
					if fault.KindOf(err) == fault.Internal {
						sleep(ctx, time.Second) // our own disk: the node keeps everything until there is room
					}
				}
			}
		}
		if now.Sub(sampledAt) >= 10*time.Second && len(o.tasks) > 0 {
			sampledAt = now
			if x, err := k.client.Samples(ctx, sampleCursor); err == nil && len(x.Samples) > 0 {
				sampleCursor = x.Next
				k.loop.inbox.put(sampled{x.Samples})
			}
		}
	}
}

// keep is the state of one task's checkpoint.
type keep struct {
	at   time.Time
	etag string
}

func find(o *orders, id string) *ordered {
	for i := range o.tasks {
		if o.tasks[i].id == id {
			return &o.tasks[i]
		}
	}
	return nil
}

// bring fetches what is new of one task, and says whether that is the last.
func (k *keeper) bring(ctx context.Context, t *ordered, s *wire.Status, keeps map[string]*keep, now time.Time) (bool, error) {
	shipped, err := k.bringLog(ctx, t, s.Log)
	if err != nil {
		return false, err
	}
	if t.spec.Checkpoint != nil && t.spec.Checkpoint.Dir != "" && (s.Kept || s.State == machine.TaskRunning) {
		x := keeps[t.id]
		if x == nil {
			x = &keep{at: now}
			keeps[t.id] = x
		}
		every := time.Minute
		if e := t.spec.Checkpoint.Every; e != nil {
			every = max(*e/2, 10*time.Second)
		}
		ended := s.State == machine.TaskEnded
		if ended || now.Sub(x.at) >= every {
			if err := k.bringKeep(ctx, t, s, x, now); err != nil && (ended || fault.KindOf(err) == fault.Internal) {
				return false, err
			}
		}
	}
	if s.State != machine.TaskEnded || t.attempt.Tasks[t.rank].Fetched || t.attempt.Tasks[t.rank].State != machine.TaskEnded {
		return false, nil
	}
	var outputs int64
	if s.Outputs {
		r, err := k.client.Outputs(ctx, t.id)
		if err != nil {
			return false, err
		}
		if r != nil {
			err = errors.Join(k.loop.Files.Replace(k.loop.Files.Outputs(t.job.ID, t.rank), r, k.loop.holds), r.Close())
			if err != nil {
				return false, err
			}
			outputs = k.loop.Files.Size(k.loop.Files.Outputs(t.job.ID, t.rank))
		}
	}
	delete(keeps, t.id)
	k.loop.inbox.put(fetched{t.attempt.ID, t.rank, shipped, outputs})
	return true, nil
}

// bringLog appends what is new of a task's log.
func (k *keeper) bringLog(ctx context.Context, t *ordered, size int64) (int64, error) {
	if size == 0 {
		return 0, nil
	}
	path := k.loop.Files.Log(t.job.ID, t.attempt.ID, t.rank)
	at := k.loop.Files.Size(path)
	for at < size {
		data, err := k.client.Log(ctx, t.id, at, chunk)
		if err != nil {
			return at, err
		}
		if len(data) == 0 {
			return at, nil
		}
		if err := k.loop.Files.Append(path, at, data); err != nil {
			return at, err
		}
		at += int64(len(data))
	}
	return at, nil
}

// bringKeep fetches the checkpoint folder when it changed.
func (k *keeper) bringKeep(ctx context.Context, t *ordered, s *wire.Status, x *keep, now time.Time) error {
	r, etag, err := k.client.Keep(ctx, t.id, x.etag)
	if err != nil || r == nil {
		x.at = now
		return err
	}
	err = errors.Join(k.loop.Files.Replace(k.loop.Files.Checkpoint(t.job.ID, t.rank), r, k.loop.holds), r.Close())
	if err != nil {
		return err
	}
	x.at, x.etag = now, etag
	useful := s.Ran
	if useful == 0 && !s.Started.IsZero() {
		useful = k.report.Load().Now.Sub(s.Started)
	}
	if t.rank == 0 {
		k.loop.inbox.put(kept{t.attempt.ID, useful})
	}
	return nil
}

// supply brings the files of a task to its node before it starts there.
func (k *keeper) supply(ctx context.Context, t *wire.Task) error {
	for _, name := range []string{t.Bundle, t.Keep} {
		if name == "" {
			continue
		}
		if there, err := k.client.HasBlob(ctx, name); err != nil || there {
			if err != nil {
				return err
			}
			continue
		}
		path := k.loop.Files.Blob(name)
		if name == t.Keep {
			path = k.loop.Files.Checkpoint(t.Job, rankOf(t.ID))
		}
		file, err := os.Open(path)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "the stored files of job %d are gone", t.Job)
		}
		info, err := file.Stat()
		if err == nil {
			k.loop.inbox.put(said{t.Job, "sending " + bytes(info.Size()) + " to the machine"})
			err = k.client.PutBlob(ctx, name, file, info.Size())
		}
		_ = file.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// said tells how far a starting job is.
type said struct {
	job   int64
	words string
}

func (x said) String() string { return x.words }

func (x said) apply(d *draft) {
	if j := d.job(x.job); j != nil && !j.State.Ended() && j.Reason != x.words {
		d.editJob(x.job).Reason = x.words
	}
}

func rankOf(task string) int {
	_, rank, _ := machine.ParseTask(task)
	return rank
}
