package catalog

import (
	"cmp"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/money"
	"github.com/destajo/destajo/offer"
)

// maxLoss is the share of a provider's offers that an import may lose.
const maxLoss = 0.30

// Local is the catalogue of this machine: the embedded snapshot and what was
// imported over it. An imported offer takes the place of one with its id.
//
// The folder holds one offer file for each format and provider, a list of
// them, and the history of prices, to which every import appends. Files are
// replaced whole, by renaming, so that a crash leaves the last good ones.
type Local struct{ dir string }

// OpenLocal gives the catalogue of a folder, which need not exist yet.
func OpenLocal(dir string) *Local { return &Local{dir} }

// feed is what one import left of one provider.
type feed struct {
	Provider string    `json:"provider"`
	Format   string    `json:"format"`
	Source   string    `json:"source"` // name of the file
	Imported time.Time `json:"imported"`
	Offers   int       `json:"offers"`
	File     string    `json:"file"`
}

func (l *Local) feeds() ([]feed, error) {
	data, err := os.ReadFile(filepath.Join(l.dir, "feeds.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "the list of imports cannot be read")
	}
	var all []feed
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fault.Wrap(fault.Internal, err, "the list of imports in %s is broken", l.dir).Hint("remove the folder and import again")
	}
	return all, nil
}

// Offers gives all offers, filled from their providers' cards.
func (l *Local) Offers() ([]*offer.Offer, error) {
	all, err := Snapshot()
	if err != nil {
		return nil, err
	}
	feeds, err := l.feeds()
	if err != nil || len(feeds) == 0 {
		return all, err
	}
	at := make(map[string]int, len(all))
	for i, o := range all {
		at[o.ID] = i
	}
	slices.SortFunc(feeds, func(a, b feed) int { return a.Imported.Compare(b.Imported) })
	for _, f := range feeds {
		path := filepath.Join(l.dir, f.File)
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, fault.Wrap(fault.Internal, err, "an imported price list cannot be read").Hint("import it again: %s", f.Source)
		}
		offers, err := ReadOffers(path, data)
		if err != nil {
			return nil, err
		}
		for _, o := range offers {
			Fill(o)
			if i, ok := at[o.ID]; !ok {
				at[o.ID] = len(all)
				all = append(all, o)
			} else if all[i].AsOf <= o.AsOf || o.AsOf == "" {
				all[i] = o
			}
		}
	}
	return all, nil
}

// Import takes in what Read gave. An import that would lose a provider, or
// more than 30 % of the offers that the same kind of list gave before, is
// refused unless forced, and the last good one stays.
func (l *Local) Import(im *Imported, source string, now time.Time, force bool) error {
	feeds, err := l.feeds()
	if err != nil {
		return err
	}
	by := map[string][]*offer.Offer{}
	newest := map[string]*offer.Offer{}
	var seen []Observation
	for _, o := range im.Offers {
		if p := o.Prices.Compute; p != nil {
			seen = append(seen, Observation{ID: o.ID, Price: p.Amount, AsOf: o.AsOf, Source: o.Source})
		}
		if old, ok := newest[o.ID]; ok && old.AsOf >= o.AsOf {
			continue
		}
		newest[o.ID] = o
	}
	for _, o := range newest {
		by[o.Provider] = append(by[o.Provider], o)
	}
	if !force {
		if err := gate(feeds, by, im.Format, filepath.Base(source)); err != nil {
			return err
		}
	}
	// A forced import that no longer has a provider takes its offers away.
	feeds = slices.DeleteFunc(feeds, func(f feed) bool {
		return f.Format == im.Format && f.Source == filepath.Base(source) && by[f.Provider] == nil
	})
	if err := os.MkdirAll(l.dir, 0o755); err != nil {
		return fault.Wrap(fault.Internal, err, "the catalogue's folder cannot be made")
	}
	for _, p := range slices.Sorted(maps.Keys(by)) {
		offers := by[p]
		slices.SortFunc(offers, func(a, b *offer.Offer) int { return cmp.Compare(a.ID, b.ID) })
		data, err := WriteOffers(offers)
		if err != nil {
			return fault.Wrap(fault.Internal, err, "the offers cannot be written")
		}
		f := feed{Provider: p, Format: im.Format, Source: filepath.Base(source), Imported: now.UTC(), Offers: len(offers),
			File: im.Format + "-" + fileName(p) + ".csv"}
		if err := replace(filepath.Join(l.dir, f.File), data); err != nil {
			return err
		}
		feeds = slices.DeleteFunc(feeds, func(old feed) bool { return old.File == f.File })
		feeds = append(feeds, f)
	}
	if err := l.appendHistory(seen); err != nil {
		return err
	}
	data, err := json.MarshalIndent(feeds, "", " ")
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the list of imports cannot be written")
	}
	return replace(filepath.Join(l.dir, "feeds.json"), data)
}

func fileName(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' {
			return r
		}
		return '_'
	}, s)
}

func gate(feeds []feed, by map[string][]*offer.Offer, formatName, source string) error {
	for _, f := range feeds {
		if f.Format != formatName {
			continue
		}
		n := len(by[f.Provider])
		switch {
		case n == 0 && f.Source == source:
			return fault.New(fault.Conflict, "the import would lose the provider %s, of which %s gave %d offers before; the last good catalogue stays", f.Provider, source, f.Offers).
				Hint("check the file; --force imports it all the same")
		case n > 0 && float64(n) < (1-maxLoss)*float64(f.Offers):
			return fault.New(fault.Conflict, "the import would leave %d of %d offers of %s; the last good catalogue stays", n, f.Offers, f.Provider).
				Hint("check whether the file is cut off; --force imports it all the same")
		}
	}
	return nil
}

// replace writes a file whole: a reader sees the old one or the new one.
func replace(path string, data []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the catalogue cannot be written")
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the catalogue cannot be written")
	}
	return nil
}

// appendHistory adds prices that are not yet in the history.
func (l *Local) appendHistory(seen []Observation) error {
	known := map[Observation]bool{}
	old, err := l.localHistory()
	if err != nil {
		return err
	}
	for _, o := range old {
		o.Source = ""
		known[o] = true
	}
	clean := strings.NewReplacer("\t", " ", "\n", " ", "\r", " ")
	var b strings.Builder
	for _, o := range seen {
		key := o
		key.Source = ""
		if known[key] {
			continue
		}
		known[key] = true
		b.WriteString(clean.Replace(o.ID) + "\t" + o.Price.String() + "\t" + string(o.AsOf) + "\t" + clean.Replace(o.Source) + "\n")
	}
	f, err := os.OpenFile(filepath.Join(l.dir, "history.tsv"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the history of prices cannot be written")
	}
	// An empty line first: a crash may have cut the last line off, and what is
	// written next must not become part of it. Readers skip empty lines.
	_, err = f.WriteString("\n" + b.String())
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fault.Wrap(fault.Internal, err, "the history of prices cannot be written")
	}
	return nil
}

func (l *Local) localHistory() ([]Observation, error) {
	data, err := os.ReadFile(filepath.Join(l.dir, "history.tsv"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.Wrap(fault.Internal, err, "the history of prices cannot be read")
	}
	var out []Observation
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 4 {
			continue // a line that a crash cut off
		}
		a, err := money.Parse(f[1])
		if err != nil {
			continue
		}
		out = append(out, Observation{ID: f[0], Price: a, AsOf: offer.Date(f[2]), Source: f[3]})
	}
	return out, nil
}

// History gives what the offers cost on each day that is known, oldest first:
// the embedded prices, those of imports, and the present ones.
func (l *Local) History(offers []*offer.Offer) ([]Observation, error) {
	want := map[string]bool{}
	for _, o := range offers {
		want[o.ID] = true
	}
	local, err := l.localHistory()
	if err != nil {
		return nil, err
	}
	var out []Observation
	for _, o := range append(snapshotHistory(), local...) {
		if want[o.ID] {
			out = append(out, o)
		}
	}
	for _, o := range offers {
		if p := o.Prices.Compute; p != nil {
			out = append(out, Observation{ID: o.ID, Price: p.Amount, AsOf: o.AsOf, Source: o.Source})
		}
	}
	slices.SortStableFunc(out, func(a, b Observation) int { return cmp.Or(cmp.Compare(a.ID, b.ID), cmp.Compare(a.AsOf, b.AsOf)) })
	return slices.CompactFunc(out, func(a, b Observation) bool { return a.ID == b.ID && a.AsOf == b.AsOf && a.Price == b.Price }), nil
}

// Status is what the catalogue holds of one provider.
type Status struct {
	Provider string
	Offers   int
	Newest   offer.Date
	Oldest   offer.Date
	Stale    int
	Gaps     []string // what is unknown of it
	Unpriced string   // why there are no offers
}

// StatusOf sums the offers by provider; providers without an offer come with
// the reason.
func StatusOf(offers []*offer.Offer, now time.Time) []Status {
	by := map[string]*Status{}
	type missing struct{ disk, egress, country, startup int }
	gaps := map[string]*missing{}
	for _, o := range offers {
		s := by[o.Provider]
		if s == nil {
			s = &Status{Provider: o.Provider, Newest: o.AsOf, Oldest: o.AsOf}
			by[o.Provider], gaps[o.Provider] = s, &missing{}
		}
		s.Offers++
		s.Newest, s.Oldest = max(s.Newest, o.AsOf), min(s.Oldest, o.AsOf)
		if stale, _ := o.Stale(now); stale {
			s.Stale++
		}
		g := gaps[o.Provider]
		if o.Prices.DiskRunning == nil {
			g.disk++
		}
		if o.Prices.Egress == nil {
			g.egress++
		}
		if o.Country == "" {
			g.country++
		}
		if !o.Startup.Known {
			g.startup++
		}
	}
	for p, s := range by {
		for _, g := range []struct {
			n    int
			name string
		}{{gaps[p].disk, "disk price"}, {gaps[p].egress, "egress price"}, {gaps[p].country, "country"}, {gaps[p].startup, "start-up time"}} {
			switch {
			case g.n == s.Offers:
				s.Gaps = append(s.Gaps, g.name)
			case g.n > 0:
				s.Gaps = append(s.Gaps, g.name+" of some")
			}
		}
	}
	for _, c := range Cards() {
		if by[c.ID] == nil {
			why := c.Unpriced
			if why == "" {
				why = "no dated price in the data"
			}
			by[c.ID] = &Status{Provider: c.ID, Unpriced: why}
		}
	}
	out := make([]Status, 0, len(by))
	for _, s := range by {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b Status) int { return cmp.Compare(a.Provider, b.Provider) })
	return out
}
