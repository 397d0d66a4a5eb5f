package spot

import (
	"fmt"
	"strings"
)

// Plot draws one run as SVG: availability, mode by tick, and progress against
// the line of uniform progress to the deadline.
func Plot(t *Trace, start int, j Job, o Outcome, title string) []byte {
	const width, height, left, top = 900, 260, 60, 30
	ticks := max(len(o.Modes), int(j.Deadline/j.Gap))
	x := func(tick float64) float64 { return left + tick*(width-left-20)/float64(ticks) }
	y := func(work float64) float64 { return top + 40 + (height-top-70)*(1-work/j.Work) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", width, height)
	clean := strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="18" font-size="13">%s</text>`+"\n", left, clean.Replace(title))
	bar := func(tick, row int, colour string) {
		fmt.Fprintf(&b, `<rect x="%.1f" y="%d" width="%.2f" height="12" fill="%s"/>`+"\n", x(float64(tick)), top+row*16, x(1)-x(0)+0.2, colour)
	}
	for tick := range ticks {
		if at := start + tick; at < len(t.Available) && t.Available[at] {
			bar(tick, 0, "#9bd0a5")
		}
	}
	for tick, m := range o.Modes {
		switch m {
		case Spot:
			bar(tick, 1, "#2e8b57")
		case OnDemand:
			bar(tick, 1, "#d98200")
		}
	}
	fmt.Fprintf(&b, `<text x="4" y="%d">spot there</text><text x="4" y="%d">mode</text><text x="4" y="%d">progress</text>`+"\n", top+10, top+26, top+60)
	fmt.Fprintf(&b, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="#999" stroke-dasharray="4"/>`+"\n", x(0), y(0), x(j.Deadline/j.Gap), y(j.Work))
	fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#c00"/>`+"\n", x(j.Deadline/j.Gap), top, x(j.Deadline/j.Gap), height-20)
	b.WriteString(`<polyline fill="none" stroke="#1f5fa8" stroke-width="1.5" points="`)
	for tick, done := range o.Progress {
		fmt.Fprintf(&b, "%.1f,%.1f ", x(float64(tick)), y(done))
	}
	fmt.Fprintf(&b, `%.1f,%.1f"/>`+"\n", x(o.End/j.Gap), y(j.Work))
	fmt.Fprintf(&b, `<text x="%d" y="%d">green spot, orange on-demand; dashed: uniform progress; red: deadline (%.1f h); cost %.2f, %d changeovers</text></svg>`+"\n",
		left, height-6, j.Deadline/3600, o.Cost, o.Changeovers)
	return []byte(b.String())
}
