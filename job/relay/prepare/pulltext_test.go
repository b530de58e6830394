package prepare

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/relaytest"
)

func TestPullTemplates(t *testing.T) {
	pull := PullText{
		Title: "T", Answer: "{{.Title}} {{range 1000000000}}x{{end}}", Run: "rn-1", Agent: "caisson", Branch: "b", Base: "main", Delivery: "dl-1",
		Commits: []string{"one", "two {{.}}"},
	}
	for tmpl, want := range map[string]string{
		"":             pull.Answer + "\n\n---\nCaisson run rn-1, delivery dl-1",
		"text":         "text",
		"{{.Answer}}":  pull.Answer,
		"{{/* no */}}": "",
		"{{.Title}} by {{.Agent}} on {{.Branch}} for {{.Base}}, {{len .Commits}} commits":              "T by caisson on b for main, 2 commits",
		"{{range .Commits}}- {{.}}\n{{end}}":                                                           "- one\n- two {{.}}",
		"{{range $i, $c := .Commits}}{{$i}}{{$c}}{{$.Base}} {{else}}none{{end}}":                       "0onemain 1two {{.}}main",
		`{{if and (eq .Base "main") (gt (len .Commits) 1)}}yes{{else}}no{{end}}`:                       "yes",
		`{{with .Agent}}{{.}}{{end}}{{$x := .Run}}{{if not $x}}by hand{{else if lt 1 2}}{{$x}}{{end}}`: "caissonrn-1",
		"a\u202eb\x1b":                        "ab",
		"{{range .Commits}}{{break}}{{end}}x": "x",
	} {
		if err := CheckPullTemplate(tmpl); err != nil {
			t.Errorf("%q: %v", tmpl, err)
		}
		if got, err := pull.text(tmpl); err != nil || got != want {
			t.Errorf("%q is %q, %v; want %q", tmpl, got, err, want)
		}
	}
	if got, err := (PullText{Run: "sb-1", Delivery: "dl-1"}).text(""); err != nil || got != "---\nCaisson run sb-1, delivery dl-1" {
		t.Errorf("without an answer: %q, %v", got, err)
	}
}

// TestPullTemplatesRefused checks that templates that could run or grow without bound, or use unknown names, are refused, and
// that the error has the line.
func TestPullTemplatesRefused(t *testing.T) {
	for tmpl, want := range map[string]string{
		"a\nb {{.Nothing}}":                   "line 2: there is no field .Nothing",
		"{{.Answer.X}}":                       "line 1: there is no field .Answer.X",
		"{{with .Answer}}\n{{.Title}}{{end}}": "line 2: ",
		"{{$.Secret}}":                        "no field .Secret",
		"a\n\n{{":                             "line 3: ",
		"{{nothing}}":                         "line 1: ",
		"{{if .Title}}":                       "line 1: ",
		`{{printf "%1000000d" 1}}`:            "there is no function printf",
		"{{print .Answer .Answer}}":           "there is no function print",
		"{{.Answer | html}}":                  "there is no function html",
		"{{call .Answer}}":                    "there is no function call",
		"{{index .Commits 7}}":                "there is no function index",
		"{{slice .Answer 9 10}}":              "there is no function slice",
		"{{range 1000000000}}{{end}}":         "range goes over .Commits",
		"{{range .Answer}}{{end}}":            "range goes over .Commits",
		"{{$x := 9}}{{range $x}}{{end}}":      "range goes over .Commits",
		"{{range .Commits}}{{range $.Commits}}{{end}}{{end}}":                    "range goes over .Commits",
		"{{range .Commits}}{{with 1}}\n{{range $.Commits}}{{end}}{{end}}{{end}}": "line 2: range goes over .Commits",
		`{{define "x"}}{{template "x"}}{{end}}`:                                  "defines another one",
		`{{block "x" .}}{{end}}`:                                                 "defines another one",
		`{{template "pull" .}}`:                                                  "only fields",
		"{{(.Answer).Title}}":                                                    "line 1: ",
		"{{.Title.Reveal}}":                                                      "no field",
		"{{eq .Commits 1}}":                                                      "line 1: ",
		"{{if .Run}}{{lt .Run 1}}{{end}}":                                        "line 1: ",
		"{{if not .Run}}\n{{lt 1 .Title}}{{end}}":                                "line 2: ",
		"{{.Title}}{{nil}}":                                                      "line 1: ",
		strings.Repeat("x", maxPullTemplate+1):                                   "has more than",
	} {
		err := CheckPullTemplate(tmpl)
		if e, ok := err.(*caisson.Error); !ok || e.Kind != caisson.Invalid || e.Field != "pullBody" || !strings.Contains(e.Msg, want) || strings.Contains(e.Msg, "\n") {
			t.Errorf("%.80q: %v, want %q", tmpl, err, want)
		}
	}
}

// TestPullTextBounds checks that long answers and many commits do not exceed the limits of forges.
func TestPullTextBounds(t *testing.T) {
	long := PullText{Answer: strings.Repeat("ü", 16<<10)}.withSubjects(make([]string, maxPrepared))
	for _, tmpl := range []string{strings.Repeat("{{.Answer}}", 1000), "{{range .Commits}}{{$.Answer}}{{end}}", strings.Repeat("{{range .Commits}}{{len .}}{{end}}", 400)} {
		got, err := long.text(tmpl)
		if err != nil || len(got) > maxPullText+len("…") || len(got) < maxPullText-3 || !strings.HasSuffix(got, "…") {
			t.Errorf("%.40q: %d bytes, %v", tmpl, len(got), err)
		}
	}
	if n := len(long.Commits); n != maxPullCommits {
		t.Errorf("there are %d commits", n)
	}
}

// TestPreparePull checks that the text has the subjects, that a secret in it yields a finding, and that a failing template is
// replaced by the default.
func TestPreparePull(t *testing.T) {
	q := relaytest.New(t)
	q.Write("a", "1\n")
	q.Commit("one {{.Answer}}\n\nbody")
	q.Write("a", "2\n")
	q.Commit("two")
	tip := q.Pushed()
	p := preparedOf(q, Request{Commit: tip, Pull: PullText{Answer: "A", Run: "rn-1"}, Template: "{{.Title}}:{{range .Commits}}\n- {{.}}{{end}}"})
	if p.Title != "one {{.Answer}}" || p.Text != "one {{.Answer}}:\n- one {{.Answer}}\n- two" || len(p.Findings) != 0 {
		t.Errorf("%+v", p)
	}
	p = preparedOf(q, Request{Commit: tip, Pull: PullText{Title: relaytest.Token()[:20], Answer: relaytest.Token()[20:]}, Template: "{{.Title}}{{.Answer}}"})
	if len(p.Findings) != 1 || p.Findings[0].Verdict != caisson.VerdictAsk || !strings.Contains(p.Findings[0].Message, "text of the pull request") {
		t.Errorf("a secret that the template puts together: %+v", p.Findings)
	}
	p = preparedOf(q, Request{Commit: tip, Pull: PullText{Run: "rn-1", Delivery: "dl-1"}, Template: "{{.Nothing}}"})
	if p.Text != "---\nCaisson run rn-1, delivery dl-1" || len(p.Findings) != 1 || p.Findings[0].Verdict != caisson.VerdictAsk || !strings.Contains(p.Findings[0].Message, "line 1") {
		t.Errorf("a template that fails: %+v", p)
	}
}
