package cli

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/internal/catalog"
	"github.com/destajo/destajo/offer"
)

func (a *app) catalogCommand() *cobra.Command {
	c := parent(&cobra.Command{Use: "catalog", GroupID: "know", Short: "Import price lists and show what is known"})
	c.AddCommand(a.importCommand(), a.statusCommand(), &cobra.Command{
		Use: "schema", Short: "Show the columns of the offer file", Args: nothing,
		RunE: func(*cobra.Command, []string) error {
			l := listing{header: []string{"COLUMN", "TYPE", "UNIT", "NEEDED", "MEANING"}, shrink: 4}
			for _, s := range catalog.Schema() {
				l.rows = append(l.rows, []string{s.Name, s.Type, s.Unit, map[bool]string{true: "yes"}[s.Required], s.Meaning})
			}
			l.foot = []string{"CSV with a header; columns in any order; a point for decimals, no separators; an empty cell is unknown."}
			return a.print(l, catalog.Schema())
		},
	})
	return c
}

type importOptions struct {
	format, provider, asOf string
	force, verbose         bool
}

func (a *app) importCommand() *cobra.Command {
	var o importOptions
	c := &cobra.Command{
		Use:   "import PATH",
		Short: "Import a price list",
		Long: `Import a price list. The format is recognised by the header; --format insists on
one of:
  ` + strings.Join(catalog.Formats(), "\n  ") + `

Imported offers take the place of those with the same id; the history of prices
grows. An import that would lose a provider or more than 30 % of its offers is
refused, and the last good one stays.`,
		Example: "  destajo catalog import prices.csv\n  destajo catalog import --format skypilot catalogs/v8/lambda/vms.csv",
		Args:    exactly(1, "one file"),
		RunE:    func(_ *cobra.Command, args []string) error { return a.importList(args[0], o) },
	}
	f := c.Flags()
	f.StringVar(&o.format, "format", "", "format of the list (default: recognised by its header)")
	f.StringVar(&o.provider, "provider", "", "provider, where the format names none")
	f.StringVar(&o.asOf, "as-of", "", "day of the prices, where the format has none (default: the file's date)")
	f.BoolVar(&o.force, "force", false, "import although offers would be lost")
	f.BoolVar(&o.verbose, "verbose", false, "list every dropped row")
	return c
}

func (a *app) importList(path string, o importOptions) error {
	data, err := a.readFile(path)
	if err != nil {
		return err
	}
	from := catalog.Origin{Provider: o.provider, AsOf: offer.Date(o.asOf)}
	if o.asOf != "" {
		if _, ok := from.AsOf.Time(); !ok {
			return fault.New(fault.Invalid, "--as-of %q is no date", o.asOf).Hint("write it as 2026-07-01")
		}
	} else if info, err := os.Stat(path); err == nil {
		from.AsOf = offer.Date(info.ModTime().UTC().Format("2006-01-02"))
	}
	im, err := catalog.Read(o.format, path, data, from)
	if err != nil {
		return err
	}
	if len(im.Offers) == 0 {
		return fault.New(fault.Invalid, "none of the %d rows of %s is an offer: %s", im.Rows, path, im.Dropped[0].Reason).Hint("--verbose lists every row; nothing was imported")
	}
	if err := a.local().Import(im, path, a.Now(), o.force); err != nil {
		return err
	}
	type count struct {
		Provider string `json:"provider"`
		Offers   int    `json:"offers"`
	}
	type reason struct {
		Reason string `json:"reason"`
		Rows   int    `json:"rows"`
		Such   string `json:"such_as"`
		Line   int    `json:"line"`
	}
	by := map[string]int{}
	var result struct {
		Format    string            `json:"format"`
		Rows      int               `json:"rows"`
		Imported  int               `json:"imported_rows"`
		Offers    int               `json:"offers"`
		Providers []count           `json:"providers"`
		Dropped   []reason          `json:"dropped"`
		Lines     []catalog.Dropped `json:"lines,omitempty"`
	}
	result.Format, result.Rows, result.Imported, result.Offers = im.Format, im.Rows, im.Used, len(im.Offers)
	result.Dropped = []reason{}
	for _, x := range im.Offers {
		by[x.Provider]++
	}
	for p, n := range by {
		result.Providers = append(result.Providers, count{p, n})
	}
	slices.SortFunc(result.Providers, func(x, y count) int { return strings.Compare(x.Provider, y.Provider) })
	at := map[string]int{}
	for _, d := range im.Dropped {
		if _, ok := at[d.Reason]; !ok {
			at[d.Reason] = len(result.Dropped)
			result.Dropped = append(result.Dropped, reason{Reason: d.Reason, Such: d.Name, Line: d.Line})
		}
		result.Dropped[at[d.Reason]].Rows++
	}
	if o.verbose {
		result.Lines = im.Dropped
	}
	l := listing{header: []string{"PROVIDER", "OFFERS"}, right: map[int]bool{1: true}}
	for _, c := range result.Providers {
		l.rows = append(l.rows, []string{c.Provider, strconv.Itoa(c.Offers)})
	}
	l.foot = append(l.foot, fmt.Sprintf("%s: %d of %d rows imported as %d offers (format %s), %d dropped", path, im.Used, im.Rows, len(im.Offers), im.Format, len(im.Dropped)))
	for _, d := range result.Dropped {
		l.foot = append(l.foot, fmt.Sprintf("  %d rows, such as line %d (%s): %s", d.Rows, d.Line, d.Such, d.Reason))
	}
	if o.verbose {
		for _, d := range im.Dropped {
			l.foot = append(l.foot, fmt.Sprintf("  line %d: %s: %s", d.Line, d.Name, d.Reason))
		}
	}
	return a.print(l, result)
}

func (a *app) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show offers, age and gaps of each provider", Args: nothing,
		RunE: func(*cobra.Command, []string) error {
			offers, err := a.local().Offers()
			if err != nil {
				return err
			}
			all := catalog.StatusOf(offers, a.Now())
			l := listing{header: []string{"PROVIDER", "OFFERS", "OLD", "OLDEST", "NEWEST", "UNKNOWN OR WHY UNPRICED"}, right: map[int]bool{1: true, 2: true}, shrink: 5}
			type row struct {
				Provider string     `json:"provider"`
				Offers   int        `json:"offers"`
				Stale    int        `json:"stale"`
				Oldest   offer.Date `json:"oldest"`
				Newest   offer.Date `json:"newest"`
				Gaps     []string   `json:"gaps"`
				Unpriced string     `json:"unpriced,omitempty"`
			}
			var data struct {
				Offers    int   `json:"offers"`
				Providers int   `json:"providers"`
				Rows      []row `json:"by_provider"`
			}
			for _, s := range all {
				why := strings.Join(s.Gaps, ", ")
				n := strconv.Itoa(s.Offers)
				if s.Unpriced != "" {
					why, n = s.Unpriced, "unpriced"
				} else {
					data.Providers++
				}
				data.Offers += s.Offers
				l.rows = append(l.rows, []string{s.Provider, n, strconv.Itoa(s.Stale), string(s.Oldest), string(s.Newest), why})
				data.Rows = append(data.Rows, row{s.Provider, s.Offers, s.Stale, s.Oldest, s.Newest, append([]string{}, s.Gaps...), s.Unpriced})
			}
			l.foot = append(l.foot, fmt.Sprintf("%d offers of %d providers; old: over 180 days, on marketplaces over 7", data.Offers, data.Providers))
			return a.print(l, data)
		},
	}
}
