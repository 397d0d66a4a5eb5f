// Command fit learns the coefficients of package estimate from a file of
// measured rates and writes them into that package.
//
//	go run ./tools/fit measured.csv          fit, print the cross-validation, write
//	go run ./tools/fit -cv measured.csv      print the cross-validation only
//	go run ./tools/fit -tune 6 measured.csv  search better covariances first (minutes)
//
// The file has the columns that estimate.ParseRows reads. Several files may be
// given: the rows of all are fitted together.
package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/destajo/destajo/fault"
	"github.com/destajo/destajo/plan/estimate"
)

func main() {
	only := flag.Bool("cv", false, "print the cross-validation, write nothing")
	tune := flag.Int("tune", 0, "search better covariances first, with so many passes (6 takes some minutes)")
	neutral := flag.Bool("neutral", false, "with -tune: begin from nothing, not from the coefficients that are there")
	nested := flag.Int("nested", 0, "judge the procedure itself in so many parts, each with its own search (with -tune, slow); write nothing")
	dir := flag.String("o", "plan/estimate", "folder of the package, from which settings are read and to which the fit is written")
	flag.Parse()
	if err := run(flag.Args(), *dir, *only, *tune, *nested, *neutral); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if h := fault.HintOf(err); h != "" {
			fmt.Fprintln(os.Stderr, h)
		}
		os.Exit(1)
	}
}

func run(files []string, dir string, only bool, tune, nested int, neutral bool) error {
	if len(files) == 0 {
		return fault.New(fault.Invalid, "no file of measurements").Hint("go run ./tools/fit measured.csv")
	}
	var rows []estimate.Row
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			return err
		}
		more, err := estimate.ParseRows(f, data)
		if err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	if nested > 0 {
		result, err := estimate.Nested(rows, nested, max(1, tune), func(part int, regime string, pass int, loss float64) {
			fmt.Fprintf(os.Stderr, "part %d %s pass %d: %.4f\n", part+1, regime, pass+1, loss)
		})
		if err != nil {
			return err
		}
		table("nested, groups left out", result)
		return nil
	}
	settings := &estimate.Coefficients{}
	data, err := os.ReadFile(filepath.Join(dir, "coefficients.json"))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, settings); err != nil {
		return err
	}
	if neutral {
		settings = estimate.Neutral()
	}
	if tune > 0 {
		settings, err = estimate.Tune(rows, settings, tune, func(regime string, pass int, loss float64) {
			fmt.Fprintf(os.Stderr, "%s pass %d: %.4f\n", regime, pass+1, loss)
		})
		if err != nil {
			return err
		}
	}
	fitted, report, err := estimate.Learn(rows, settings, time.Now().UTC().Format(time.DateOnly))
	if err != nil {
		return err
	}
	show(report)
	if only {
		return nil
	}
	measured, sources, err := fitted.Encode()
	if err != nil {
		return err
	}
	data, err = json.MarshalIndent(fitted, "", " ")
	if err != nil {
		return err
	}
	for name, text := range map[string]string{"measured.csv": measured, "sources.txt": sources, "coefficients.json": string(data) + "\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// show prints a report as Markdown.
func show(r *estimate.Report) {
	table("groups left out", r.Groups)
	head("cards left out")
	for _, k := range sorted(r.Cards) {
		line(k, r.Cards[k].Overall)
	}
	head("source left out")
	names := sorted(r.Sources)
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(r.Sources[b].Overall.Rows, r.Sources[a].Overall.Rows) })
	for _, k := range names {
		line(k, r.Sources[k].Overall)
	}
}

func table(what string, r estimate.Result) {
	head(what)
	line("overall", r.Overall)
	for _, k := range sorted(r.Workloads) {
		line(k, r.Workloads[k])
	}
}

func head(what string) {
	fmt.Printf("\n| %s | rows | groups | row median | row p90 | group median | group p90 | inside 80 %% range |\n| --- | --- | --- | --- | --- | --- | --- | --- |\n", what)
}

func line(name string, s estimate.Score) {
	fmt.Printf("| %s | %d | %d | %.3f | %.3f | %.3f | %.3f | %.2f |\n", name, s.Rows, s.Groups, s.RowMedian, s.RowP90, s.GroupMedian, s.GroupP90, s.Coverage80)
}

func sorted[V any](m map[string]V) []string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}
