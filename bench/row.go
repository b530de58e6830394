package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// A Row is one line of the table of results. Measured values have the unit Unit. P50 and P95 are computed from N samples.
type Row struct {
	Name        string  `json:"name"`        // Identifies the row, for example "exec.api".
	Unit        string  `json:"unit"`        // One of ms, µs, MB (10^6 bytes), calls/s, Gbit/s, MB/s.
	N           int     `json:"n"`           // Number of samples.
	P50         float64 `json:"p50"`         // Median of the samples.
	P95         float64 `json:"p95"`         // 95 % of the samples are at most this value, or for speeds at least this value.
	Baseline    string  `json:"baseline"`    // Description of what Caisson is compared with; "" if nothing.
	BaselineP50 float64 `json:"baselineP50"` // Median of the samples of Baseline; 0 without a baseline.
	Ratio       float64 `json:"ratio"`       // P50 divided by BaselineP50; 0 without a baseline.
	Target      string  `json:"target"`      // Descriptions of the targets; "" if there are none.
	Met         bool    `json:"met"`         // Whether all targets are met; true if there are none.
}

// samples are measured values; they are in the unit of the row that is made from them.
type samples []float64

// quantile returns the q-th quantile by nearest rank, or 0 without samples.
func (s samples) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

// newRow returns a row without a target, for which lower values are better. ours are the samples of Caisson, theirs those of
// what baseline describes, with which Caisson is compared.
func newRow(name, unit string, ours samples, baseline string, theirs samples) Row {
	r := Row{
		Name: name, Unit: unit, N: len(ours), P50: round(ours.quantile(0.5)), P95: round(ours.quantile(0.95)),
		Baseline: baseline, BaselineP50: round(theirs.quantile(0.5)), Met: true,
	}
	if by := theirs.quantile(0.5); by > 0 {
		r.Ratio = round(ours.quantile(0.5) / by)
	}
	return r
}

// newSpeed returns a row without a target, for which higher values are better. The arguments are those of newRow.
func newSpeed(name, unit string, ours samples, baseline string, theirs samples) Row {
	r := newRow(name, unit, ours, baseline, theirs)
	r.P95 = round(ours.quantile(0.05))
	return r
}

// round rounds v to three decimals.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

// atMostTimes returns r with a further target: its median is at most factor times that of the samples it is compared with.
func (r Row) atMostTimes(factor float64) Row {
	return r.withTarget(fmt.Sprintf("≤ %g × baseline", factor), r.P50 <= factor*r.BaselineP50)
}

// atLeastTimes returns r with a further target: its median is at least factor times that of the samples it is compared with.
func (r Row) atLeastTimes(factor float64) Row {
	return r.withTarget(fmt.Sprintf("≥ %g × baseline", factor), r.P50 >= factor*r.BaselineP50)
}

// atMostOver returns r with a further target: its median exceeds that of the samples it is compared with by at most limit.
func (r Row) atMostOver(limit float64) Row {
	return r.withTarget(fmt.Sprintf("≤ %g %s over baseline", limit, r.Unit), round(r.P50-r.BaselineP50) <= limit)
}

// under returns r with the further target that its median is less than limit.
func (r Row) under(limit float64) Row {
	return r.withTarget(fmt.Sprintf("< %g %s", limit, r.Unit), r.P50 < limit)
}

// over returns r with the further target that its median is greater than limit.
func (r Row) over(limit float64) Row {
	return r.withTarget(fmt.Sprintf("> %g %s", limit, r.Unit), r.P50 > limit)
}

// withTarget returns r with the further target that target describes. met reports whether the row meets it. A row with several
// targets meets them only if it meets all of them.
func (r Row) withTarget(target string, met bool) Row {
	if r.Target != "" {
		target = r.Target + ", " + target
	}
	r.Target, r.Met = target, r.Met && met
	return r
}

// number formats a value of the row with two decimals, or with three if the medians are times below 2 ms.
func (r Row) number(v float64) string {
	if r.Unit == "ms" && max(r.P50, r.BaselineP50) < 2 {
		return fmt.Sprintf("%.3f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// String returns the row as one line.
func (r Row) String() string {
	s := fmt.Sprintf("%s: %s %s (p95 %s, n %d)", r.Name, r.number(r.P50), r.Unit, r.number(r.P95), r.N)
	if r.Baseline != "" {
		s += fmt.Sprintf("; %s: %s, × %.2f", r.Baseline, r.number(r.BaselineP50), r.Ratio)
	}
	return s
}

// WriteTable prints rows as a Markdown table.
func WriteTable(w io.Writer, rows []Row) error {
	t := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	fmt.Fprintln(t, "| name\t| p50\t| p95\t| n\t| baseline\t| its p50\t| ratio\t| target\t| met\t|")
	fmt.Fprintln(t, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	for _, r := range rows {
		base, ratio, met := "", "", ""
		if r.Baseline != "" {
			base, ratio = r.number(r.BaselineP50), fmt.Sprintf("%.2f", r.Ratio)
		}
		if r.Target != "" {
			met = map[bool]string{true: "yes", false: "no"}[r.Met]
		}
		fmt.Fprintf(t, "| `%s`\t| %s %s\t| %s\t| %d\t| %s\t| %s\t| %s\t| %s\t| %s\t|\n",
			r.Name, r.number(r.P50), r.Unit, r.number(r.P95), r.N, r.Baseline, base, ratio, r.Target, met)
	}
	return t.Flush()
}
