package storetest

import (
	"fmt"
	"time"

	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/ledger"
	"github.com/destajo/destajo/machine"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/tenant"
)

// noon is the moment from which the rows count. Its microseconds are odd, so
// that a row which loses them is seen.
var noon = time.Date(2026, 12, 1, 12, 0, 0, 123457000, time.UTC)

// Job is a waiting job of ordinary size.
func Job(id int64) *job.Job {
	grams := 1.25
	return &job.Job{ID: id, Project: tenant.DefaultProject, Member: tenant.DefaultMember, Name: fmt.Sprint("sweep-", id), Kind: job.Task, Array: 1, Index: int(id - 1),
		Text: "name: sweep\nrun: python train.py --seed $DESTAJO_ARRAY_INDEX\nresources: {gpus: H100, memory: 64GB}\nwork: {hours: {H100: 2}}\nlimits: {cost: 10 USD}\n",
		Env:  map[string]string{"DESTAJO_ARRAY_INDEX": fmt.Sprint(id - 1), "SEED": fmt.Sprint(id)}, Dir: "/home/someone/sweep", Bundle: "0f343b0931126a20f133d67c2b018a3b",
		State: job.Waiting, Reason: "waits for a machine", Submitted: noon, ExitCode: -1,
		Estimate: &job.Estimate{Offer: "some-provider/eu-west/h100-1/spot", Currency: "USD", Known: true, Cost: 4_123_456_789, CostP90: 5 * money.Unit, PriceHour: 2 * money.Unit, Hours: 2, WallHours: 2.1,
			StartupHours: 0.1, Parts: map[string]money.Amount{"compute": 4 * money.Unit, "startup": 123_456_789}, EnergyKWh: 1.4, CO2Kg: &grams, Evidence: "stated"}}
}

// Attempt is an attempt of a job on one machine.
func Attempt(jobID int64, number int, state machine.AttemptState) *machine.Attempt {
	return &machine.Attempt{ID: machine.AttemptID(jobID, number), Job: jobID, Number: number, Project: tenant.DefaultProject, Member: tenant.DefaultMember, State: state,
		Tasks: []machine.Task{{Machine: fmt.Sprint("machine-", jobID), State: machine.TaskRunning, Held: noon, Started: noon.Add(time.Second), Log: 4096, Shipped: 4000, Healthy: true, Devices: []string{"GPU-1f2e3d4c"}}},
		Needs: machine.Needs{CPUs: 8, Memory: 64e9, GPUs: 1, GPU: "H100-SXM", Share: 1}, Grace: 30 * time.Second, Made: noon, Started: noon.Add(time.Second), Billed: noon.Add(time.Minute), Useful: 59 * time.Second}
}

// Machine is a machine that is ready.
func Machine(id string) *machine.Machine {
	gram := 30.0
	return &machine.Machine{ID: id, Project: tenant.DefaultProject, Member: tenant.DefaultMember, Epoch: 1, Backend: "fake", Handle: "i-" + id, State: machine.Ready, Asked: noon, Booted: noon.Add(time.Minute),
		Terms: machine.Terms{OfferID: "some-provider/eu-west/h100-1/spot", Provider: "some-provider", Currency: "USD", PriceHour: 2 * money.Unit, Increment: time.Second, GridGrams: &gram},
		Host:  &machine.Host{Name: id, OS: "linux/amd64", CPUs: 8, Devices: []machine.Device{{UUID: "GPU-1f2e3d4c", GPU: "H100-SXM"}}}}
}

// Usage is a minute of a job on a machine, and its charge.
func Usage(key string, id int64, minute int) (ledger.Usage, ledger.Charge) {
	from := noon.Add(time.Duration(minute) * time.Minute)
	u := ledger.Usage{Key: key, Project: tenant.DefaultProject, Member: tenant.DefaultMember, Job: id, Attempt: machine.AttemptID(id, 1), Machine: fmt.Sprint("machine-", id), Provider: "some-provider",
		Kind: ledger.Run, Origin: noon, From: from, To: from.Add(time.Minute), Share: ledger.Whole}
	return u, ledger.Charge{Project: tenant.DefaultProject, Member: tenant.DefaultMember, Key: key, Amount: u.Time(2 * money.Unit), Known: true, Currency: "USD", Price: 2 * money.Unit, Assumed: true, Source: "a price list", AsOf: "2026-11-30"}
}

func hold(id int64) *tenant.Hold {
	return &tenant.Hold{Job: id, Project: tenant.DefaultProject, Member: tenant.DefaultMember, Currency: "USD", Amount: 5 * money.Unit, Committed: 1, Limit: 10 * money.Unit}
}

func source(id string) *record.Source {
	return &record.Source{ID: id, Project: tenant.DefaultProject, Backend: "ssh", Config: `{"host":"gpu1"}`, Made: noon}
}

func place(id string) *record.Place {
	return &record.Place{Offer: id, Failed: noon, Failures: 2, Why: "no capacity", Interruptions: 1, Hours: 3.5, Startups: 2, StartupHours: 0.05}
}
