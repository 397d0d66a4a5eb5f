package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/catalog"
	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
	"github.com/destajo/destajo/plan"
)

type planOptions struct {
	by, offers, why, currency, rates, gguf string
	top                                    int
	marginal                               bool
}

func (a *app) planCommand() *cobra.Command {
	var o planOptions
	c := &cobra.Command{
		Use:     "plan JOB",
		GroupID: "decide",
		Short:   "Rank all offers by what the finished job costs",
		Long: `Rank all offers by what the job costs when it is finished, with the cost in
parts and a reason for each offer that cannot run it. JOB is a job file; - reads
standard input. Exit code 3 when nothing fits.`,
		Example: "  destajo plan examples/lora-7b.yml\n  destajo plan job.yml --by time --top 5\n  destajo plan job.yml --offers prices.csv -o json\n  destajo plan job.yml --why verda/fin-03/1h100.80s.32v/h100-sxmx1/on-demand",
		Args:    exactly(1, "one job file"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.plan(args[0], o) },
	}
	f := c.Flags()
	f.StringVar(&o.by, "by", "cost", "rank by cost, time, price or work (per unit of money)")
	f.StringVar(&o.offers, "offers", "", "use only the offers of this file, whose columns catalog schema shows")
	f.IntVar(&o.top, "top", 0, "show at most this many options (default: 10 in tables, all in JSON)")
	f.StringVar(&o.why, "why", "", "explain one offer line by line; an id or a part of it")
	f.StringVar(&o.gguf, "gguf", "", ggufHelp)
	f.StringVar(&o.currency, "currency", "USD", "currency of the plan")
	f.StringVar(&o.rates, "rates", "", "table of exchange rates: currency,usd_per_unit,date,source")
	f.BoolVar(&o.marginal, "marginal", false, "rank own hardware by what running now adds (power), not by its full cost")
	return c
}

func (a *app) plan(path string, o planOptions) error {
	p, err := a.makePlan(path, o)
	if err != nil {
		return err
	}
	switch {
	case o.why != "":
		return a.why(p, o.why)
	case a.output == "json":
		if err := a.printJSON(p.Document(o.top)); err != nil {
			return err
		}
	default:
		if err := a.print(a.planTable(p, o), nil); err != nil {
			return err
		}
	}
	if len(p.Options) == 0 {
		return a.quietly(fault.NothingFits)
	}
	return nil
}

func (a *app) makePlan(path string, o planOptions) (*plan.Plan, error) {
	if !slices.Contains(plan.Orders(), plan.Order(o.by)) {
		return nil, fault.New(fault.Invalid, "cannot rank by %q", o.by).Hint("--by takes cost, time, price or work")
	}
	if o.top < 0 {
		return nil, fault.New(fault.Invalid, "--top %d is negative", o.top).Hint("write a number from 1")
	}
	data, err := a.readFile(path)
	if err != nil {
		return nil, err
	}
	j, err := job.Parse(path, data)
	if err == nil && o.gguf != "" {
		err = ofGGUF(j, o.gguf)
	}
	if err != nil {
		return nil, err
	}
	now := a.Now()
	if err := j.Check(now); err != nil {
		return nil, err
	}
	offers, err := a.offers(o.offers)
	if err != nil {
		return nil, err
	}
	exchange, err := a.exchange(o.rates)
	if err != nil {
		return nil, err
	}
	in := plan.Input{Job: j, Offers: offers, Now: now, Currency: strings.ToUpper(o.currency), Exchange: exchange, By: plan.Order(o.by), Marginal: o.marginal}
	in.World.Transfer, in.World.GridGrams, in.World.PowerPrice = catalog.Transfer, catalog.GridGrams, catalog.PowerPrice
	if w := j.Work; w != nil && (w.Generate != nil || w.Traffic != nil) {
		in.World.Tokens = catalog.Tokens()
	}
	if in.World.Measured, in.World.Own, err = a.measured(); err != nil {
		return nil, err
	}
	return plan.Rank(in)
}

// offers gives the offers of a file, or those of the catalogue.
func (a *app) offers(file string) ([]*offer.Offer, error) {
	if file == "" {
		return a.local().Offers()
	}
	data, err := a.readFile(file)
	if err != nil {
		return nil, err
	}
	return catalog.ReadOffers(file, data)
}

func (a *app) exchange(file string) (money.Exchange, error) {
	if file == "" {
		return catalog.Exchange()
	}
	data, err := a.readFile(file)
	if err != nil {
		return money.Exchange{}, err
	}
	return catalog.ReadExchange(file, data)
}

// group is a number of options that differ by their place alone.
type group struct {
	*plan.Option
	more int
}

// planTable shows the best options; those that differ by region alone, at the
// same cost, share a row.
func (a *app) planTable(p *plan.Plan, o planOptions) listing {
	top := o.top
	if top == 0 {
		top = 10
	}
	l := listing{header: []string{"#", "COST", "TIME", p.Currency + "/H", "GPU", "PROVIDER", "REGION", "TERMS", "NOTES", "HOURS FROM"},
		right: map[int]bool{0: true, 1: true, 2: true, 3: true}, shrink: 6}
	var groups []group
	at := map[string]int{}
	for i := range p.Options {
		x := p.Options[i]
		key := fmt.Sprint(x.Offer.Provider, x.Offer.InstanceType, x.Offer.GPUName(), x.Offer.GPUCount, x.Offer.Terms, x.Sum.Cost, x.Nodes)
		if g, ok := at[key]; ok {
			groups[g].more++
			continue
		}
		at[key] = len(groups)
		groups = append(groups, group{Option: x})
	}
	letters := map[string]string{}
	var legend []string
	for i, g := range groups {
		if i == top {
			break
		}
		marks := ""
		if g.Pareto && a.tabular() {
			marks = "*"
		}
		for _, w := range g.Warnings() {
			if !a.tabular() { // rows for programs carry the words
				marks = strings.TrimPrefix(marks+"; "+w, "; ")
				continue
			}
			k, ok := letters[w]
			if !ok && len(letters) < 26 {
				k = string(rune('a' + len(letters)))
				letters[w] = k
				legend = append(legend, k+"  "+w)
			}
			marks += k
		}
		region := g.Offer.Region
		if g.more > 0 {
			region += fmt.Sprintf(" +%d", g.more)
		}
		cost := g.Sum.Cost.Fixed(2)
		if g.Cautions() && a.tabular() {
			cost += "+?"
		}
		l.rows = append(l.rows, []string{strconv.Itoa(i + 1), cost, clock(g.Sum.Wall), g.Price.Fixed(2), counted(g.Offer, g.Nodes), g.Offer.Provider, region,
			string(g.Offer.Terms), marks, string(g.Work.Evidence)})
	}
	if !a.tabular() {
		l.header = append(l.header, "ID")
		for i := range l.rows {
			l.rows[i] = append(l.rows[i], groups[i].Offer.ID)
		}
	}
	if len(p.Options) > 0 {
		l.foot = append(l.foot, legend...)
		if slices.ContainsFunc(l.rows, func(r []string) bool { return strings.HasPrefix(r[8], "*") }) {
			l.foot = append(l.foot, "*  no other offer is both cheaper and sooner")
		}
		if hidden := len(groups) - top; hidden > 0 {
			l.foot = append(l.foot, fmt.Sprintf("%d more (--top %d shows them), %d refused; --why ID explains one.", hidden, len(groups), len(p.Refused)))
		}
	}
	l.foot = append(l.foot, a.refusedSummary(p)...)
	for _, alt := range p.Alternatives {
		l.foot = append(l.foot, fmt.Sprintf("Instead: %s, %s %s (%s; %s)", alt.Name, alt.Cost.Fixed(2), p.Currency, alt.Note, alt.AsOf))
	}
	l.foot = append(l.foot, "", p.Advice())
	return l
}

// refusedSummary counts the reasons when there is no option.
func (a *app) refusedSummary(p *plan.Plan) []string {
	if len(p.Options) > 0 {
		return nil
	}
	type tally struct {
		n       int
		example *plan.Refusal
	}
	count := map[plan.RefusalKind]*tally{}
	var kinds []plan.RefusalKind
	for i := range p.Refused {
		r := &p.Refused[i]
		if count[r.Kind] == nil {
			count[r.Kind] = &tally{example: r}
			kinds = append(kinds, r.Kind)
		}
		count[r.Kind].n++
	}
	slices.SortFunc(kinds, func(x, y plan.RefusalKind) int { return count[y].n - count[x].n })
	var out []string
	for _, k := range kinds {
		out = append(out, fmt.Sprintf("refused for %s: %d offers, such as %s: %s", k, count[k].n, count[k].example.Offer.ID, count[k].example.Reason()))
	}
	return out
}

// counted shows nodes, GPUs and card.
func counted(o *offer.Offer, nodes int) string {
	s := o.GPUName()
	if o.GPUCount > 1 {
		s = strconv.Itoa(o.GPUCount) + "x " + s
	}
	if nodes > 1 {
		s = strconv.Itoa(nodes) + "* " + s
	}
	return s
}

// clock shows hours.
func clock(h float64) string {
	d := time.Duration(h * float64(time.Hour)).Round(time.Minute)
	switch {
	case h < 1.0/60:
		return "<1m"
	case h < 1:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case h < 72:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%.1fd", h/24)
}

// why explains one offer line by line.
func (a *app) why(p *plan.Plan, id string) error {
	var names []string
	var option *plan.Option
	var refusal *plan.Refusal
	low := strings.ToLower(id)
	for pass := range 2 { // the exact id first, then a part of one
		fits := func(x string) bool { return x == id || pass == 1 && strings.Contains(strings.ToLower(x), low) }
		for i := range p.Options {
			if option == nil && fits(p.Options[i].Offer.ID) {
				option = p.Options[i]
			}
			if pass == 0 {
				names = append(names, p.Options[i].Offer.ID)
			}
		}
		for i := range p.Refused {
			if option == nil && refusal == nil && fits(p.Refused[i].Offer.ID) {
				refusal = &p.Refused[i]
			}
			if pass == 0 {
				names = append(names, p.Refused[i].Offer.ID)
			}
		}
		if option != nil || refusal != nil {
			break
		}
	}
	switch {
	case option != nil && a.output == "json":
		d := p.Document(0)
		return a.printJSON(d.Options[option.Rank-1])
	case option != nil:
		a.explainOption(p, option)
		return nil
	case refusal != nil:
		fmt.Fprintf(a.Out, "%s is refused for %s: %s\n", refusal.Offer.ID, refusal.Kind, refusal.Reason())
		return nil
	}
	e := fault.New(fault.NotFound, "no offer %q in this plan", id)
	if near := fault.Nearest(id, names); len(near) > 0 {
		return e.Hint("did you mean %s?", near[0])
	}
	return e.Hint("`destajo offers` lists the ids in its JSON and CSV output")
}

func (a *app) explainOption(p *plan.Plan, o *plan.Option) {
	line := func(name, format string, args ...any) {
		fmt.Fprintln(a.Out, wrap(fmt.Sprintf("  %-15s ", name)+fmt.Sprintf(format, args...), a.columns()))
	}
	f := o.Offer
	fmt.Fprintln(a.Out, a.bold(f.ID))
	line("rank", "%d of %d", o.Rank, len(p.Options))
	line("machine", "%s, %s %s, %s", counted(f, o.Nodes), f.Provider, f.InstanceType, f.Terms)
	line("place", "%s %s %s", orUnknown(f.Region), f.Zone, f.Country)
	line("price", "%s %s/h of %s, from %s", o.Price, p.Currency, orUnknown(string(f.AsOf)), orUnknown(f.Source))
	if o.Work.Fit.NeedGB > 0 {
		line("memory", "needs %.1f GB, has %.0f GB: %s", o.Work.Fit.NeedGB, o.Work.Fit.HaveGB, o.Work.Fit.Verdict)
	}
	h := o.Work.Hours
	line("useful hours", "H = %.4g (p10 %.4g, p50 %.4g, p90 %.4g), %s: %s", h.Expected, h.P10, h.P50, h.P90, o.Work.Evidence, o.Work.Basis)
	line("start-up", "S = %.3g h, of which Sb = %.3g h are billed", o.Startup, o.BilledStartup)
	if o.Lambda > 0 {
		line("interruptions", "lambda = %.3g an hour, %.3g h billed and %.3g h waited for each, tau = %.3g h, %.2f attempts expected", o.Lambda, o.Restart, o.Wait, o.Tau, o.Sum.Attempts)
	}
	if q := o.Policy; q != nil {
		line("policy", "%.4g h on spot at %s, %.4g h on on-demand at %s %s/h (%s), %.2f changeovers expected", q.SpotHours, o.Price, q.OnDemandHours, q.OnDemandPrice, p.Currency, q.OnDemand.ID, q.Changeovers)
	}
	line("running", "E = %.4g h; billed %.4g h; finished after %.4g h", o.Sum.Running, o.Sum.Billed, o.Sum.Wall)
	for _, part := range plan.Parts() {
		if x := o.Sum.Parts[part]; x != 0 {
			line(part.String(), "%s %s", x, p.Currency)
		}
	}
	line("expected", "%s %s (p10 %s, p50 %s, p90 %s)", o.Sum.Cost, p.Currency, o.CostP10, o.CostP50, o.CostP90)
	if o.MarginalKnown {
		line("marginal", "%s %s for power", o.Marginal, p.Currency)
	}
	if o.WorkPerDollar > 0 {
		line("work", "%.4g %ss per %s", o.WorkPerDollar, o.Work.Unit, p.Currency)
	}
	if o.Energy > 0 {
		carbon := "CO2 unknown"
		if o.CO2 >= 0 {
			carbon = fmt.Sprintf("%.3g kg CO2", o.CO2)
		}
		line("energy", "%.3g kWh, %s", o.Energy, carbon)
	}
	if o.Late >= 0 {
		line("deadline", "late with %.1f %%", 100*o.Late)
	}
	for _, w := range o.Warnings() {
		line("note", "%s", w)
	}
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}
