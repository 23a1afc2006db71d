// Score records with a release of somebody else's model, in Go: no Python, no dependency.
//
//	go run examples/score.go release.json < records.jsonl
//
// A release is a JSON message on the output topic of the service, or what `stream-dppca run` prints.
// Each line of the input is a record, a JSON object with a number for each feature. For each there is
// a line with its scores, SPE, T2 and flag: true if one of the two exceeds the limit that 1 % of the
// records exceed, null if that cannot be told. A record that lacks a feature has no scores.
// stream_dppca/scores.py explains the formulas.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
)

const (
	rate    = 0.01  // of the limits
	largest = 1e150 // values beyond this are taken to be this large
)

type limit struct{ Rate, Value float64 }

// Release has the fields that scoring needs; null where a method has no such number.
type Release struct {
	Features                           []string
	Components                         [][]float64
	Center, Scale, Clamp, Mean, Spread []float64
	Deviation                          []float64
	Limits                             map[string][]limit
}

type result struct {
	Scores []*float64 `json:"scores"`
	SPE    *float64   `json:"spe"`
	T2     *float64   `json:"t2"`
	Flag   *bool      `json:"flag"`
}

// at is a number of a feature, or what takes its place if the release has none.
func at(values []float64, i int, otherwise float64) float64 {
	if values == nil {
		return otherwise
	}
	return values[i]
}

// grown is z within the clamp, and grows with the logarithm beyond it.
func grown(z, clamp float64) float64 {
	size := math.Min(math.Abs(z), largest)
	if size > clamp {
		size = clamp * (1 + math.Log(math.Max(size/clamp, 1)))
	}
	return math.Copysign(size, z)
}

// number reads a value as the service does: anything but a number or a truth value is missing.
func number(value any) float64 {
	switch v := value.(type) {
	case float64:
		return v
	case bool:
		if v {
			return 1
		}
		return 0
	}
	return math.NaN()
}

// standardised has each feature in standard deviations from its mean; nil if the record lacks one.
func (r *Release) standardised(record map[string]any) []float64 {
	u := make([]float64, len(r.Features))
	for i, name := range r.Features {
		deviation := at(r.Deviation, i, 1)
		if !(deviation > 0) {
			continue
		}
		x := number(record[name])
		if math.IsNaN(x) {
			return nil
		}
		z := (x - at(r.Center, i, 0)) / at(r.Scale, i, 1)
		u[i] = (grown(z, at(r.Clamp, i, math.Inf(1))) - at(r.Mean, i, 0)) / deviation
	}
	return u
}

// limitOf is the score that 1 % of the records exceed; NaN if it is not known.
func (r *Release) limitOf(score string) float64 {
	for _, found := range r.Limits[score] {
		if found.Rate == rate {
			return found.Value
		}
	}
	return math.NaN()
}

func (r *Release) score(record map[string]any) result {
	out := result{Scores: make([]*float64, len(r.Components))}
	u := r.standardised(record)
	if u == nil {
		return out
	}
	spe, t2, varies, spread := 0.0, 0.0, false, 0
	rest := append([]float64{}, u...)
	for a, w := range r.Components {
		t := 0.0
		for i := range u {
			t += w[i] * u[i]
		}
		for i := range u {
			rest[i] -= t * w[i]
		}
		out.Scores[a] = &t
		if v := at(r.Spread, a, math.NaN()); v > 0 {
			t2 += t * t / v
			varies = true
		}
	}
	for i := range u {
		spe += rest[i] * rest[i]
		if at(r.Deviation, i, 1) > 0 {
			spread++
		}
	}
	beyond, judged := false, true
	judge := func(known bool, name string, value float64) *float64 {
		if !known {
			return nil
		}
		allowed := r.limitOf(name)
		beyond = beyond || value > allowed
		judged = judged && !math.IsNaN(allowed)
		return &value
	}
	out.SPE = judge(len(r.Components) < spread, "spe", spe)
	out.T2 = judge(varies, "t2", t2)
	if beyond || judged {
		out.Flag = &beyond
	}
	return out
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run score.go release.json < records.jsonl")
		os.Exit(2)
	}
	bytes, err := os.ReadFile(os.Args[1])
	var release Release
	if err == nil {
		err = json.Unmarshal(bytes, &release)
	}
	if err != nil || len(release.Components) == 0 {
		fmt.Fprintln(os.Stderr, "no release with components:", err)
		os.Exit(1)
	}
	lines, out := bufio.NewScanner(os.Stdin), json.NewEncoder(os.Stdout)
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var record map[string]any // stays empty if the line is not an object: no scores
		_ = json.Unmarshal(lines.Bytes(), &record)
		if err := out.Encode(release.score(record)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}
