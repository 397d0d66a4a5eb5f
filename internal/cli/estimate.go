package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/gpu"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/plan"
	"github.com/destajo/destajo/plan/estimate"
)

func (a *app) estimateCommand() *cobra.Command {
	var card, model, provider string
	c := &cobra.Command{
		Use:     "estimate JOB",
		GroupID: "decide",
		Short:   "Explain how long a job takes and whether it fits",
		Long: `Estimate a job's memory, rate and hours on the GPUs that it asks for. With --gpu
one estimate is explained: the terms of the formula, what measurements taught,
and the nearest measured rows. With --gguf the model's numbers come from the
header of a GGUF file, whose first megabytes are enough.`,
		Example: "  destajo estimate examples/batch-70b.yml\n  destajo estimate job.yml --gpu H100-SXM:2\n  destajo estimate job.yml --gguf model-Q4_K_M.gguf --gpu RTX4090",
		Args:    exactly(1, "one job file"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.estimate(args[0], model, card, provider) },
	}
	c.Flags().StringVar(&card, "gpu", "", "explain the estimate on this GPU, such as H100-SXM:2")
	c.Flags().StringVar(&provider, "provider", "", "explain it at this provider, as far as measurements of your own say that it differs")
	c.Flags().StringVar(&model, "gguf", "", ggufHelp)
	c.AddCommand(a.scoreCommand(), a.calibrateCommand())
	return c
}

// estimated reads a job and prepares its work.
func (a *app) estimated(path, model string) (*job.Spec, *estimate.Job, error) {
	data, err := a.readFile(path)
	if err != nil {
		return nil, nil, err
	}
	j, err := job.Parse(path, data)
	if err == nil && model != "" {
		err = ofGGUF(j, model)
	}
	if err != nil {
		return nil, nil, err
	}
	measured, own, err := a.measured()
	if err != nil {
		return nil, nil, err
	}
	k, err := plan.ModelWork(j, measured, own)
	if err != nil {
		return nil, nil, err
	}
	if k == nil {
		return nil, nil, fault.New(fault.Invalid, "job %q names no model: its hours are stated or counted", j.Name).
			Hint("estimates are for work: finetune, train, generate, images and traffic")
	}
	return j, k, nil
}

type estimateRow struct {
	GPU      string            `json:"gpu"`
	Count    int               `json:"gpu_count"`
	Verdict  estimate.Verdict  `json:"verdict"`
	NeedGB   float64           `json:"need_gb"`
	HaveGB   float64           `json:"have_gb"`
	Unit     string            `json:"unit"`
	Rate     quantiles         `json:"rate_per_second"`
	Hours    quantiles         `json:"hours"`
	Evidence estimate.Evidence `json:"evidence"`
}

type quantiles struct {
	P10      float64 `json:"p10"`
	P50      float64 `json:"p50"`
	P90      float64 `json:"p90"`
	Expected float64 `json:"expected"`
}

func (a *app) estimate(path, model, card, provider string) error {
	j, k, err := a.estimated(path, model)
	if err != nil {
		return err
	}
	if provider != "" {
		if card == "" {
			return fault.New(fault.Invalid, "--provider needs --gpu").Hint("write --gpu RTX4090 --provider %s", provider)
		}
		k = k.At(provider)
	}
	if card != "" {
		return a.explainEstimate(k, card)
	}
	requests := j.Resources.GPUs
	if len(requests) == 0 {
		requests = []gpu.Request{gpu.Any()}
	}
	rows := []estimateRow{}
	seen := map[string]bool{}
	for _, r := range requests {
		for _, m := range r.Models() {
			n := max(1, r.Count)
			key := m.ID + ":" + strconv.Itoa(n)
			e, err := k.On(m, n, r.Partition)
			if seen[key] || err != nil {
				continue
			}
			seen[key] = true
			rows = append(rows, estimateRow{m.Name, n, e.Fit.Verdict, e.Fit.NeedGB, e.Fit.HaveGB, e.Unit, quantiles(e.Rate), quantiles(e.Hours), e.Evidence})
		}
	}
	slices.SortStableFunc(rows, func(x, y estimateRow) int {
		switch {
		case x.Hours.P50 < y.Hours.P50:
			return -1
		case x.Hours.P50 > y.Hours.P50:
			return 1
		}
		return 0
	})
	l := listing{header: []string{"GPU", "NEEDS GB", "HAS GB", "FIT", "PER SECOND", "HOURS", "P10", "P90", "EVIDENCE"}, right: map[int]bool{1: true, 2: true, 4: true, 5: true, 6: true, 7: true}}
	short := func(x float64) string { return strconv.FormatFloat(x, 'g', 3, 64) }
	for _, r := range rows {
		name := r.GPU
		if r.Count > 1 {
			name = strconv.Itoa(r.Count) + "x " + name
		}
		l.rows = append(l.rows, []string{name, fmt.Sprintf("%.1f", r.NeedGB), fmt.Sprintf("%.1f", r.HaveGB), string(r.Verdict), short(r.Rate.P50), short(r.Hours.Expected), short(r.Hours.P10), short(r.Hours.P90), string(r.Evidence)})
	}
	l.foot = []string{"--gpu GPU explains one of them."}
	return a.print(l, rows)
}

func oneCard(text string) (*gpu.Model, int, gpu.Partition, error) {
	r, err := gpu.ParseRequest(text)
	if err != nil {
		return nil, 0, gpu.Partition{}, err
	}
	if m, err := gpu.Resolve(r.Text, 0, ""); err == nil {
		return m, max(1, r.Count), r.Partition, nil
	}
	all := r.Models()
	if len(all) == 0 {
		return nil, 0, gpu.Partition{}, fault.New(fault.Invalid, "%q names no GPU", text).Hint("write a card, such as H100-SXM")
	}
	if len(all) > 1 {
		var names []string
		for _, m := range all {
			names = append(names, m.Name)
		}
		return nil, 0, gpu.Partition{}, fault.New(fault.Invalid, "%q is several cards", text).Hint("name one of %v", names)
	}
	return all[0], max(1, r.Count), r.Partition, nil
}

func (a *app) explainEstimate(k *estimate.Job, card string) error {
	m, n, cut, err := oneCard(card)
	if err != nil {
		return err
	}
	x, err := k.Explain(m, n, cut)
	if err != nil {
		return err
	}
	if a.output == "json" {
		return a.printJSON(x)
	}
	line := func(name, format string, args ...any) {
		fmt.Fprintln(a.Out, wrap(fmt.Sprintf("  %-12s ", name)+fmt.Sprintf(format, args...), a.columns()))
	}
	e := x.Estimate
	fmt.Fprintln(a.Out, a.bold(fmt.Sprintf("%d x %s", n, m.Name)))
	if x.Provider != nil {
		line("provider", "%s", x.Provider)
	}
	line("memory", "needs %.1f GB, has %.1f GB: %s", e.Fit.NeedGB, e.Fit.HaveGB, e.Fit.Verdict)
	for _, t := range e.Fit.Parts {
		line("", "%s %.2f GB", t.Name, t.Value)
	}
	line("rate", "%.4g %ss/s (p10 %.3g, p90 %.3g), %s", e.Rate.P50, e.Unit, e.Rate.P10, e.Rate.P90, e.Evidence)
	line("hours", "%.4g expected (p10 %.3g, p50 %.3g, p90 %.3g)", e.Hours.Expected, e.Hours.P10, e.Hours.P50, e.Hours.P90)
	for _, p := range x.Parts {
		line(p.Regime, "formula %.4g %ss/s from these seconds:", p.Formula.Rate, p.Formula.Unit)
		for _, t := range p.Formula.Seconds {
			line("", "  %.3g %s", t.Value, t.Name)
		}
		line("", "times %.3g, learnt from measurements", p.Learnt)
		for _, f := range p.Factors {
			if math.Abs(f.Value-1) >= 0.005 { // the others say nothing
				line("", "  %.3g %s", f.Value, f.Name)
			}
		}
		for _, b := range p.Nearest {
			r := b.Row
			line("nearest", "%d x %s, %s %s on %s: %.4g %s, %.2f of the formula (%.0f %% alike, %s)", r.Count, r.GPU, r.Model, r.Precision, r.Engine, r.Value, r.Metric, b.Ratio, 100*b.Alike, r.AsOf)
		}
	}
	return nil
}

func (a *app) scoreCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "score FILE",
		Short: "Score the estimator on measured rows",
		Long: `Score the estimator on a CSV file of measured rows. Nothing is fitted on what is
scored; "seen" counts rows that the embedded fit was made of.`,
		Args: exactly(1, "one CSV file"),
		RunE: func(_ *cobra.Command, args []string) error {
			data, err := a.readFile(args[0])
			if err != nil {
				return err
			}
			rows, err := estimate.ParseRows(args[0], data)
			if err != nil {
				return err
			}
			result := estimate.New().Score(rows)
			l := listing{header: []string{"WORKLOAD", "ROWS", "GROUPS", "ROW MEDIAN", "ROW P90", "GROUP MEDIAN", "GROUP P90", "COVERAGE80", "UNESTIMATED"},
				right: map[int]bool{1: true, 2: true, 3: true, 4: true, 5: true, 6: true, 7: true, 8: true}}
			add := func(name string, s estimate.Score) {
				f := func(x float64) string { return strconv.FormatFloat(x, 'f', 3, 64) }
				l.rows = append(l.rows, []string{name, strconv.Itoa(s.Rows), strconv.Itoa(s.Groups), f(s.RowMedian), f(s.RowP90), f(s.GroupMedian), f(s.GroupP90), f(s.Coverage80), strconv.Itoa(s.Unestimated)})
			}
			var names []string
			for n := range result.Workloads {
				names = append(names, n)
			}
			slices.Sort(names)
			for _, n := range names {
				add(n, result.Workloads[n])
			}
			add("overall", result.Overall)
			m := result.Memory
			l.foot = []string{fmt.Sprintf("memory: %d rows said to fit were out of memory, %d that ran were refused; median error %.1f %% of inference, %.1f %% of fine-tuning",
				m.FitsWrong, m.RefusedWrong, 100*m.MedianInference, 100*m.MedianFinetune), fmt.Sprintf("%d rows are among those that the estimator was fitted on", result.Seen)}
			return a.print(l, result)
		},
	}
}

func (a *app) calibrateCommand() *cobra.Command {
	var card, model string
	var rate float64
	var forget bool
	c := &cobra.Command{
		Use:   "calibrate JOB",
		Short: "Correct a job's estimates by one measured rate",
		Long: `Take one measured rate of the job on one GPU: it rescales the estimates on all
others and narrows their range. It is kept on this machine under the job's name.`,
		Example: "  destajo estimate calibrate job.yml --gpu RTX4090 --rate 2400",
		Args:    exactly(1, "one job file"),
		RunE: func(_ *cobra.Command, args []string) error {
			j, k, err := a.estimated(args[0], model)
			if err != nil {
				return err
			}
			all, _, err := a.measured()
			if err != nil {
				return err
			}
			if forget {
				return a.keepMeasured(slices.DeleteFunc(all, func(m plan.Measured) bool { return m.Job == j.Name }))
			}
			if card == "" || rate == 0 {
				return fault.New(fault.Invalid, "--gpu and --rate are needed").Hint("write --gpu RTX4090 --rate 2400, in units of work per second on all GPUs")
			}
			m, n, _, err := oneCard(card)
			if err != nil {
				return err
			}
			before, err := k.On(m, n, gpu.Partition{})
			if err != nil {
				return err
			}
			if _, err := k.Calibrated(m, n, gpu.Partition{}, rate); err != nil {
				return err
			}
			all = slices.DeleteFunc(all, func(o plan.Measured) bool { return o.Job == j.Name && o.GPU == m.ID && o.Count == n })
			all = append(all, plan.Measured{Job: j.Name, GPU: m.ID, Count: n, Rate: rate})
			if err := a.keepMeasured(all); err != nil {
				return err
			}
			fmt.Fprintf(a.Out, "%s on %d x %s: %.4g %ss/s measured, %.4g estimated; kept for plan and estimate\n", j.Name, n, m.Name, rate, before.Unit, before.Rate.P50)
			return nil
		},
	}
	c.Flags().StringVar(&card, "gpu", "", "GPU on which the rate was measured, such as RTX4090 or H100-SXM:8")
	c.Flags().Float64Var(&rate, "rate", 0, "units of work per second on all GPUs, such as tokens")
	c.Flags().StringVar(&model, "gguf", "", ggufHelp)
	c.Flags().BoolVar(&forget, "forget", false, "remove what is kept of the job")
	return c
}

// measured gives the calibrations and the measured rows of this machine's user.
func (a *app) measured() ([]plan.Measured, []estimate.Row, error) {
	var all []plan.Measured
	path := filepath.Join(a.home(), "calibrations.json")
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &all)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, nil, fault.Wrap(fault.Internal, err, "the calibrations cannot be read").Hint("remove %s and calibrate again", path)
	}
	path = filepath.Join(a.home(), "measured.csv")
	data, err = os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return all, nil, nil
	}
	if err != nil {
		return nil, nil, fault.Wrap(fault.Internal, err, "the measured rows cannot be read")
	}
	rows, err := estimate.ParseRows(path, data)
	return all, rows, err
}

func (a *app) keepMeasured(all []plan.Measured) error {
	data, err := json.MarshalIndent(all, "", " ")
	if err == nil {
		err = os.MkdirAll(a.home(), 0o755)
	}
	path := filepath.Join(a.home(), "calibrations.json")
	if err == nil {
		err = os.WriteFile(path+".new", data, 0o644)
	}
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the calibration cannot be kept")
	}
	return nil
}
