package caisson

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{
		"0": 0, "1": 1, "512M": 512 << 20, "512mb": 512 << 20, "2GiB": 2 << 30, "1.5g": 3 << 29, " 10 k ": 10 << 10, "1t": 1 << 40,
	} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "M", "-1", "+1", "1e3", "0x10", "1_000", "9999999999T", "1 q", "1.2.3", "NaN", "Inf"} {
		if got, err := ParseSize(in); err == nil || KindOf(err) != Invalid {
			t.Errorf("ParseSize(%q) = %d, %v, want an Invalid error", in, got, err)
		}
	}
}

func TestSizeText(t *testing.T) {
	for in, want := range map[Size]string{0: "0B", 1023: "1023B", 1 << 10: "1KiB", 3 << 29: "1.5GiB", 2 << 40: "2TiB"} {
		if got := in.String(); got != want {
			t.Errorf("Size(%d).String() = %q, want %q", in, got, want)
		}
	}
}

func TestDuration(t *testing.T) {
	for d, want := range map[Duration]string{536335995: "536ms", 24957: "25µs", 90e9: "1m30s", 2074345958: "2.074s", 0: "0s"} {
		if got := d.String(); got != want {
			t.Errorf("%d is %s, want %s", d, got, want)
		}
	}
	for in, want := range map[string]time.Duration{"90s": 90 * time.Second, "1h30m": 90 * time.Minute, "7d": 7 * 24 * time.Hour, "0s": 0} {
		if got, err := ParseDuration(in); err != nil || time.Duration(got) != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "5", "-1s", "d", "1.5d", "99999d", "1y"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("ParseDuration(%q) = %v, want an error", in, got)
		}
	}
}

func FuzzUnits(f *testing.F) {
	for _, s := range []string{"512M", "1.5GiB", "", "-1", "7d", "1h", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := ParseSize(s); err == nil {
			if n < 0 {
				t.Errorf("ParseSize(%q) = %d", s, n)
			}
			data, err := json.Marshal(n)
			var back Size
			if err != nil || json.Unmarshal(data, &back) != nil || back != n {
				t.Errorf("size %d does not survive JSON: %s", n, data)
			}
		}
		if d, err := ParseDuration(s); err == nil {
			text, _ := d.MarshalText()
			back, err := ParseDuration(string(text))
			if d < 0 || err != nil || back != d {
				t.Errorf("duration %q: %v does not survive its own text: %v, %v", s, d, back, err)
			}
		}
	})
}

// TestZeroLimits: 0 is rejected where it would mean the default, in JSON and YAML, and is 0 everywhere else.
func TestZeroLimits(t *testing.T) {
	for _, tt := range []struct{ json, field string }{
		{`{}`, ""},
		{`{"cost": 0, "tokens": 0, "calls": 0, "runs": 0, "memory": 1024}`, ""},
		{`{"memory": 0}`, "memory"},
		{`{"memory": "0"}`, "memory"},
		{`{"memory": 0, "calls": 0}`, "memory"},
		{`{"time": "0s"}`, "time"},
		{`{"cpus": 0.0}`, "cpus"},
		{`{"disk": 0}`, "disk"},
		{`{"pids": 0}`, "pids"},
		{`{"output": 0}`, "output"},
	} {
		var fromJSON, fromYAML AgentLimits
		errs := []error{json.Unmarshal([]byte(tt.json), &fromJSON), yaml.Unmarshal([]byte(tt.json), &fromYAML)}
		for _, err := range errs {
			if FieldOf(err) != tt.field || (err == nil) != (tt.field == "") {
				t.Errorf("%s: %v", tt.json, err)
			}
		}
		if strings.Contains(tt.json, "cost") && (fromJSON.Cost == nil || fromYAML.Calls == nil || *fromYAML.Cost != 0 || *fromJSON.Runs != 0) {
			t.Errorf("%s: %+v, %+v", tt.json, fromJSON, fromYAML)
		}
		if tt.field == "" || tt.field == "time" || tt.field == "output" {
			continue
		}
		var r Resources
		if err := json.Unmarshal([]byte(tt.json), &r); FieldOf(err) != tt.field {
			t.Errorf("resources %s: %v", tt.json, err)
		}
	}
}
