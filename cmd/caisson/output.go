package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"go.yaml.in/yaml/v3"
	"golang.org/x/term"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// printOne prints one object in the selected format: its properties, only its id (with --quiet), JSON or YAML.
func printOne(a *app, v any, id string, properties [][2]string) error {
	switch {
	case a.globals.Output != "table":
		return a.encode(v)
	case a.globals.Quiet:
		_, err := fmt.Fprintln(a.out, safetext.Escape(id))
		return err
	}
	tw := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	for _, p := range properties {
		if p[1] != "" {
			fmt.Fprintf(tw, "%s:\t%s\n", p[0], safetext.Escape(p[1]))
		}
	}
	return tw.Flush()
}

// printDone prints the result of a command that changes an object: its id, or the whole object as JSON or YAML.
func printDone(a *app, v any, id string) error {
	if a.globals.Output != "table" {
		return a.encode(v)
	}
	_, err := fmt.Fprintln(a.out, safetext.Escape(id))
	return err
}

// encode prints v as JSON or YAML. Deceptive characters in strings are written as escapes, which do not change the values.
func (a *app) encode(v any) error {
	if a.globals.Output == "jsonl" {
		return a.encodeLine(v)
	}
	text, err := plainJSON(v, "  ")
	if err == nil && a.globals.Output == "yaml" {
		text, err = jsonToYAML(text)
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(a.out, safetext.EscapeJSON(text)) // EscapeJSON has no effect on YAML, which jsonToYAML has escaped
	return err
}

// jsonText returns v as JSON with a line break at the end, and with escapes for deceptive characters in strings.
func jsonText(v any) (string, error) {
	text, err := plainJSON(v, "")
	return safetext.EscapeJSON(text), err
}

// plainJSON returns v as JSON with a line break at the end. It writes <, > and & as they are, even if the daemon has sent v as
// JSON in which they are escaped.
func plainJSON(v any, indent string) (string, error) {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", indent)
	if err := enc.Encode(v); err != nil {
		return "", err
	}
	return htmlEscapes.Replace(b.String()), nil
}

// htmlEscapes replaces the escapes that [json.Marshal] writes for <, > and & by these characters. It also matches an escaped
// backslash, so that characters such as u003c after one are kept.
var htmlEscapes = strings.NewReplacer(`\\`, `\\`, `\u003c`, "<", `\u003e`, ">", `\u0026`, "&")

// jsonToYAML converts a JSON text to YAML. The names and the order of keys are kept, so that both outputs have the same schema.
func jsonToYAML(text string) (string, error) {
	var doc yaml.Node
	// JSON is valid YAML except for characters that YAML requires to be escaped.
	if err := yaml.Unmarshal([]byte(safetext.EscapeYAML(text)), &doc); err != nil {
		return "", err
	}
	useYAMLStyles(&doc)
	var b strings.Builder
	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)
	if err := enc.Encode(&doc); err != nil {
		return "", err
	}
	return safetext.EscapeYAML(b.String()), nil
}

// useYAMLStyles removes the styles of n and of all nodes below it, which come from JSON, so that the encoder chooses those of
// YAML. Strings with characters that must be escaped get quotes.
func useYAMLStyles(n *yaml.Node) {
	n.Style = 0
	if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && safetext.Escape(n.Value) != n.Value {
		n.Style = yaml.DoubleQuotedStyle
	}
	for _, c := range n.Content {
		useYAMLStyles(c)
	}
}

// colorize returns s in the colour sgr if on is true, otherwise s unchanged. sgr is the two-digit parameter of an ECMA-48 SGR
// sequence: 01 is bold, 31 red, 32 green, 33 yellow, 35 magenta, 36 cyan and 39 the default colour.
func colorize(on bool, sgr, s string) string {
	if !on {
		return s
	}
	return "\x1b[" + sgr + "m" + s + "\x1b[00m"
}

// colorEnabled reports whether output may have colours: standard output is a terminal that can show them, and the user has not
// turned them off.
func (a *app) colorEnabled() bool {
	return !a.globals.NoColor && a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb" && isTerminal(a.out)
}

// isTerminal reports whether f is a terminal.
func isTerminal(f any) bool {
	file, ok := f.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// stateColor returns the colour of a state of sandboxes, as the parameter of an SGR sequence for the terminal.
func stateColor(s caisson.State) string {
	switch {
	case s == caisson.Running:
		return "32"
	case s == caisson.Failed:
		return "31"
	case s.Transient():
		return "33"
	case s == caisson.Paused, s == caisson.Suspended:
		return "36"
	default:
		return plainColor
	}
}

// age returns the time since t in its largest unit, such as 5m; "" if t is zero.
func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return shortDuration(time.Since(t))
}

// ago returns how long ago t was, "never" if t is nil or zero.
func ago(t *time.Time) string {
	if t == nil || t.IsZero() {
		return "never"
	}
	return age(*t) + " ago"
}

// timeUntil returns the time until t in its largest unit, such as 5m; "" if t is nil.
func timeUntil(t *time.Time) string {
	if t == nil {
		return ""
	}
	return shortDuration(time.Until(*t))
}

// shortDuration formats d as a whole number of seconds, minutes, hours or days. A negative d is formatted as 0.
func shortDuration(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// unlessZero returns text, or "" if n is zero, which means that there is no value or that the default applies.
func unlessZero[T comparable](n T, text string) string {
	if n == *new(T) {
		return ""
	}
	return text
}

// formatNumber formats n, or returns "" if n is zero, which means that there is no value or that the default applies.
func formatNumber[N int | int64](n N) string { return unlessZero(n, strconv.FormatInt(int64(n), 10)) }

// textOrEmpty returns the text of what v points to, or "" if v is nil.
func textOrEmpty[T fmt.Stringer](v *T) string {
	if v == nil {
		return ""
	}
	return (*v).String()
}

// formatTime formats a time for people, in the local time zone; "" if t is zero.
func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Local().Format("2006-01-02 15:04:05 MST")
}
