package store

import (
	"encoding/json"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/destajo/destajo/job"
	"github.com/destajo/destajo/money"
)

// drawJob draws a job with every field in use.
func drawJob(t *rapid.T) *job.Job {
	number := func(name string) int { return rapid.IntRange(-1<<40, 1<<40).Draw(t, name) }
	text := func(name string) string { return rapid.String().Draw(t, name) }
	moment := func(name string) time.Time {
		return rapid.SampledFrom([]time.Time{{}, time.Unix(1_800_000_000, 123_456_789).UTC(), time.Unix(1_800_000_000, 0).In(time.FixedZone("", 3600))}).Draw(t, name)
	}
	amount := func(name string) money.Amount { return money.Amount(rapid.Int64().Draw(t, name)) }
	real := func(name string) float64 { return rapid.Float64().Draw(t, name) }
	j := &job.Job{ID: int64(number("id")), Version: int64(number("version")), Project: text("project"), Member: text("member"), Name: text("name"), Kind: job.Kind(text("kind")), Array: int64(number("array")), Index: number("index"),
		Text: text("text"), Dir: text("dir"), Bundle: text("bundle"), Priority: number("priority"), State: job.State(text("state")), Reason: text("reason"), Missed: text("missed"), Stop: text("stop"),
		Submitted: moment("submitted"), Deadline: moment("deadline"), NotBefore: moment("not before"), Started: moment("started"), Ended: moment("ended"),
		Attempts: number("attempts"), Failures: number("failures"), Unstarted: number("unstarted"), Progress: time.Duration(number("progress")), ExitCode: number("exit code"),
		Env:   rapid.OneOf(rapid.Just(map[string]string(nil)), rapid.MapOf(rapid.StringMatching(`[A-Z_]*`), rapid.String())).Draw(t, "env"),
		After: rapid.OneOf(rapid.Just([]int64(nil)), rapid.SliceOf(rapid.Int64())).Draw(t, "after")}
	if rapid.Bool().Draw(t, "estimate") {
		j.Estimate = &job.Estimate{Offer: text("offer"), Currency: text("currency"), Known: rapid.Bool().Draw(t, "known"), Cost: amount("cost"), CostP90: amount("p90"), PriceHour: amount("price"), Hours: real("hours"), WallHours: real("wall"),
			StartupHours: real("startup"), Parts: rapid.MapOf(rapid.StringMatching(`[a-z]*`), rapid.Just(amount("part"))).Draw(t, "parts"), EnergyKWh: real("energy"), Evidence: text("evidence")}
		if rapid.Bool().Draw(t, "co2") {
			x := real("kg")
			j.Estimate.CO2Kg = &x
		}
	}
	return j
}

// TestReadJob reads jobs as encoding/json does, and by itself.
func TestReadJob(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text, err := json.Marshal(drawJob(t))
		if err != nil {
			t.Fatal(err)
		}
		want, got := job.Job{}, job.Job{}
		if err := json.Unmarshal(text, &want); err != nil {
			t.Fatal(err)
		}
		d := decoder{rest: text, known: map[string]string{}}
		if d.job(&got); d.failed || len(d.rest) > 0 {
			t.Fatalf("it gave up at %.60q of %s", d.rest, text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
	})
}

// TestOtherFields reads fields that a later or earlier destajo wrote.
func TestOtherFields(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		`{"ID":7,"Later":{"a":["]}\"",{"b":-1.5e3}],"c":null},"Name":"x"}`,
		`{"ID":7,"Later":[],"priority":3,"Estimate":{"cost":"1.5","later":true,"hours":2},"Name":"x"}`,
	} {
		want, got := job.Job{}, job.Job{}
		if err := json.Unmarshal([]byte(text), &want); err != nil {
			t.Fatal(err)
		}
		d := decoder{rest: []byte(text), known: map[string]string{}}
		if d.job(&got); d.failed {
			t.Errorf("it gave up at %q", d.rest)
		}
		if diff := cmp.Diff(want, got); diff != "" || got.Name != "x" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	}
	if err := jobReader()([]byte(`{"ID":"7"}`), &job.Job{}); err == nil {
		t.Error("a text is read as a number")
	}
}

// FuzzReadJob reads what nobody wrote as encoding/json does.
func FuzzReadJob(f *testing.F) {
	for _, text := range []string{`{"ID":1,"Name":"a\u00e9\n\\","Env":{"A":"b"},"After":[1,2]}`, `{"ID":1,"ID":2,"Estimate":{"known":true,"cost":"1.5","parts":null,"co2_kg":null}}`, `{"Name":"\ud83d\ude00","new":1}`, ` {}`, `{"ID":01}`, `{"Name":"\`, `{`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !utf8.Valid(text) { // nothing writes that
			t.Skip()
		}
		want, got := job.Job{}, job.Job{}
		wrong := json.Unmarshal(text, &want)
		if err := jobReader()(text, &got); wrong == nil && err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if diff := cmp.Diff(want, got); wrong == nil && diff != "" {
			t.Fatalf("%q (-want +got)\n%s", text, diff)
		}
	})
}
