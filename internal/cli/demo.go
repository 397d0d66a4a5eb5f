package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/backend/fake"
	"github.com/destajo/destajo/internal/backend/local"
	"github.com/destajo/destajo/internal/record"
	"github.com/destajo/destajo/money"
)

func (a *app) demoCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "demo",
		GroupID: "other",
		Short:   "The whole story in under a minute: a fake provider, real processes",
		Long: `Show the whole story in under a minute, in a state of its own that is deleted at the
end: a provider that is faked (its machines are processes of this computer) sells
GPUs on spot and on demand, has no capacity at first, and takes a machine away;
the job is planned, run, moved with its checkpoint, stopped and accounted for. Then
a job runs on this machine itself. No account and no GPU is needed.`,
		Example: "  destajo demo",
		Args:    nothing,
		RunE:    func(*cobra.Command, []string) error { return a.demo() },
	}
}

const demoJob = `name: train
run: |
  mkdir -p ckpt; step=$(cat ckpt/step 2>/dev/null || echo 0)
  echo "starting at step $step on $DESTAJO_MACHINE"
  trap 'echo "asked to stop: $(tail -1 $DESTAJO_NOTICE)"; exit 1' TERM
  while [ $step -lt 12 ]; do
    sleep 0.5; step=$((step+1)); echo $step > ckpt/step; echo "step $step of 12"
  done
  echo trained > model.txt
outputs: [model.txt]
resources: {gpus: [H100, "A100-80GB"]}
work: {hours: {H100: 0.002, "A100-80GB": 0.004}}
startup: 1s
checkpoint: {dir: ckpt, every: 20s, write: 1s, restart: 1s}
limits: {cost: 1 USD}
place: {terms: [spot, on-demand]}
`

func (a *app) demo() error {
	dir, err := os.MkdirTemp("", "destajo-demo-")
	if err != nil {
		return fault.Wrap(fault.Internal, err, "a folder for the demo")
	}
	defer os.RemoveAll(dir)
	amount := func(s string) money.Amount { m, _ := money.Parse(s); return m } // constants below
	folder := filepath.Join(dir, "provider")
	script := fake.Script{Seed: 1, Offers: []fake.Sale{
		{ID: "fake/full/h100", Provider: "fake", Region: "full", GPU: "H100-SXM", GPUs: 1, VCPUs: 16, MemoryGB: 200, Terms: "spot", PriceHour: amount("0.90"), Boot: fake.Duration(300 * time.Millisecond), NoCapacity: 1},
		{ID: "fake/west/h100-spot", Provider: "fake", Region: "west", GPU: "H100-SXM", GPUs: 1, VCPUs: 16, MemoryGB: 200, Terms: "spot", PriceHour: amount("1.20"), Boot: fake.Duration(700 * time.Millisecond),
			ReclaimAfter: fake.Duration(4 * time.Second), Notice: fake.Duration(2 * time.Second)},
		{ID: "fake/west/h100", Provider: "fake", Region: "west", GPU: "H100-SXM", GPUs: 1, VCPUs: 16, MemoryGB: 200, PriceHour: amount("2.90"), Boot: fake.Duration(700 * time.Millisecond)},
		{ID: "fake/east/a100", Provider: "fake", Region: "east", GPU: "A100-SXM4-80GB", GPUs: 1, VCPUs: 16, MemoryGB: 200, PriceHour: amount("1.90"), Boot: fake.Duration(700 * time.Millisecond)},
	}}
	if err := fake.Write(folder, script); err != nil {
		return err
	}
	inner := *a
	inner.Getenv = func(name string) string {
		switch name {
		case "DESTAJO_HOME":
			return dir
		case "DESTAJO_SERVER":
			return ""
		case "DESTAJO_GRACE":
			return "2s"
		case "DESTAJO_SWEEP":
			return "500ms"
		}
		return a.Getenv(name)
	}
	ctx := context.Background()
	h, err := inner.open(ctx)
	if err != nil {
		return err
	}
	defer h.close()
	config, err := json.Marshal(fakeConfig{Folder: folder})
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the demo's provider")
	}
	for _, s := range []record.Source{{ID: "fake", Backend: fake.Name, Config: string(config)}, {ID: local.Name, Backend: local.Name, Config: `{"off": true}`}} {
		if err := h.PutSource(ctx, h.who, &s); err != nil {
			return err
		}
	}
	say := func(text string) { fmt.Fprintf(a.Err, "\n%s\n", a.bold("== "+text)) }
	say("Four offers of a provider that does not exist: where does training cost least when it is finished?")
	failed := make(chan error, 1)
	loopContext, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := h.loop("run", 0, inner.logger()).Run(loopContext); err != nil {
			failed <- err
		}
	}()
	end := func() { stop(); <-done }
	defer end()
	placed, err := h.submit(ctx, "train.yml", converted{text: []byte(demoJob), dir: dir}, nil)
	if err != nil {
		return err
	}
	for i := range placed.Choice.Candidates {
		c := &placed.Choice.Candidates[i]
		fmt.Fprintf(a.Err, "%d. %-22s %-10s %s USD/h, finished for about %s USD\n", i+1, c.Terms.OfferID, c.Terms.Terms, price(c.Estimate.PriceHour), price(c.Estimate.Cost))
	}
	say("The best has no capacity, the next is spot and will be taken away: the job moves, with its checkpoint.")
	if err := h.follow(ctx, placed, failed); err != nil {
		return err
	}
	say("What happened, from the trail:")
	d, err := h.Job(ctx, h.who, placed.Jobs[0].ID)
	if err != nil {
		return err
	}
	for _, e := range d.Events {
		fmt.Fprintf(a.Err, "%s  %-24s %s\n", e.At.UTC().Format("15:04:05.0"), e.What, e.Detail)
	}
	say("No machine is left, and jobs and idle time are what the machines cost, to the last nano-dollar:")
	if err := inner.machines(true); err != nil {
		return err
	}
	if err := inner.cost("machine", "", ""); err != nil {
		return err
	}
	if bill, err := fake.Bill(folder, a.Now()); err == nil {
		total := money.Amount(0)
		for _, l := range bill {
			total += l.Cost
		}
		fmt.Fprintf(a.Err, "the provider's own bill: %s USD\n", price(total))
	}
	say("And a job on this machine itself:")
	if err := h.PutSource(ctx, h.who, &record.Source{ID: local.Name, Backend: local.Name, Config: "{}", Version: 1}); err != nil {
		return err
	}
	hello := "name: hello\nrun: echo Hello from $(hostname)\nresources: {gpus: 0}\n"
	if placed, err = h.submit(ctx, "hello.yml", converted{text: []byte(hello), dir: dir}, nil); err != nil {
		return err
	}
	inner.sayPlaced(placed)
	if err := h.follow(ctx, placed, failed); err != nil {
		return err
	}
	say("Now your own: destajo run examples/hello.yml")
	return nil
}
