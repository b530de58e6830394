package prepare

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// PullText has the data for the text of a pull request. In a template its fields are .Title, .Answer and so on. Template syntax
// in the values of fields is not interpreted.
type PullText struct {
	Title    string   // title of the pull request
	Answer   string   // final answer of the agent; "" if there is none
	Run      string   // id of the run, or of the sandbox if there was no run
	Agent    string   // agent of the run; "" if no agent was used
	Branch   string   // branch with the commits
	Base     string   // target branch
	Delivery string   // id of the delivery
	Commits  []string // subjects, oldest first; at most 200
}

// pullFields are the fields of PullText that templates of pull requests may use.
var pullFields = []string{"Title", "Answer", "Run", "Agent", "Branch", "Base", "Delivery", "Commits"}

// pullFuncs are the functions of package template that templates of pull requests may use. None of them creates text, so the size
// of the output is bounded by the size of the input times the number of references to it.
var pullFuncs = []string{"and", "or", "not", "len", "eq", "ne", "lt", "le", "gt", "ge"}

// defaultPullTemplate is the template of pull requests for repositories without a template.
const defaultPullTemplate = `{{with .Answer}}{{.}}

{{end}}---
Caisson run {{.Run}}, delivery {{.Delivery}}
`

// Limits of the text of a pull request.
const (
	maxPullTemplate = 16 << 10 // bytes of a template
	maxPullText     = 60_000   // bytes of the text; forges accept that much
	maxPullTitle    = 256      // bytes of the title
	maxPullCommits  = 200      // subjects of commits that templates can use
)

// templateName is the name of templates in errors of package template.
const templateName = "pull"

// CheckPullTemplate returns an Invalid error with the reason and the line number if a template cannot be used. "" stands for the
// default template.
func CheckPullTemplate(text string) error {
	t, err := parsePullTemplate(text)
	if err != nil {
		return err
	}
	full := PullText{
		Title: "T", Answer: "A", Run: "rn-a", Agent: "a", Branch: "b", Base: "main", Delivery: "dl-a", Commits: []string{"one", "two"},
	}
	for _, v := range []PullText{full, {}} { // the template must also work if the optional fields are empty
		if _, err := v.render(t); err != nil {
			return err
		}
	}
	return nil
}

// parsePullTemplate parses a template and refuses constructs that could run or grow without bound: functions that are not in
// pullFuncs, templates defined within the template, and all loops except loops over the commits.
func parsePullTemplate(text string) (*template.Template, error) {
	if text == "" {
		text = defaultPullTemplate
	}
	if len(text) > maxPullTemplate {
		return nil, caisson.Invalidf("pullBody", "the template has more than %v; make it shorter", caisson.Size(maxPullTemplate))
	}
	t, err := template.New(templateName).Parse(text)
	if err != nil {
		return nil, templateError(err)
	}
	if len(t.Templates()) > 1 {
		return nil, caisson.Invalidf("pullBody", "the template defines another one; write it out instead")
	}
	if t.Tree == nil {
		return nil, caisson.Invalidf("pullBody", "the template is empty; leave it out for the default")
	}
	w := &templateChecker{tree: t.Tree}
	w.checkList(t.Root)
	return t, w.err
}

// A templateChecker validates the nodes of a template. It records the first error.
type templateChecker struct {
	tree   *parse.Tree
	inLoop bool  // whether the current node is inside a range
	err    error // the first error
}

// refuse records why the node n is not allowed, unless another error was recorded before.
func (w *templateChecker) refuse(n parse.Node, why string) {
	if w.err == nil {
		place, _ := w.tree.ErrorContext(n)
		w.err = templateError(errors.New("template: " + place + ": " + why))
	}
}

// checkList checks the nodes of a list, which may be nil.
func (w *templateChecker) checkList(l *parse.ListNode) {
	if l == nil {
		return
	}
	for _, n := range l.Nodes {
		w.checkNode(n)
	}
}

// checkNode checks one node and the nodes below it.
func (w *templateChecker) checkNode(n parse.Node) {
	switch n := n.(type) {
	case *parse.TextNode, *parse.CommentNode, *parse.BreakNode, *parse.ContinueNode:
	case *parse.ActionNode:
		w.checkPipe(n.Pipe)
	case *parse.IfNode:
		w.checkBranch(&n.BranchNode)
	case *parse.WithNode:
		w.checkBranch(&n.BranchNode)
	case *parse.RangeNode:
		if w.inLoop || !overCommits(n.Pipe) {
			w.refuse(n, "range goes over .Commits or $.Commits only, and not within another one")
			return
		}
		w.inLoop = true
		w.checkList(n.List)
		w.inLoop = false
		w.checkList(n.ElseList)
	default:
		w.refuse(n, "only fields, if, with and range are of use here")
	}
}

// checkBranch checks an if or with node.
func (w *templateChecker) checkBranch(b *parse.BranchNode) {
	w.checkPipe(b.Pipe)
	w.checkList(b.List)
	w.checkList(b.ElseList)
}

// overCommits reports whether a loop iterates over the commits.
func overCommits(p *parse.PipeNode) bool {
	if len(p.Cmds) != 1 || len(p.Cmds[0].Args) != 1 {
		return false
	}
	switch n := p.Cmds[0].Args[0].(type) {
	case *parse.FieldNode:
		return slices.Equal(n.Ident, []string{"Commits"})
	case *parse.VariableNode:
		return slices.Equal(n.Ident, []string{"$", "Commits"})
	}
	return false
}

// checkPipe checks the arguments of all commands of a pipeline.
func (w *templateChecker) checkPipe(p *parse.PipeNode) {
	for _, c := range p.Cmds {
		for _, arg := range c.Args {
			w.checkArg(arg)
		}
	}
}

// checkArg checks an argument of a command: templates must be allowed to use its fields and functions.
func (w *templateChecker) checkArg(n parse.Node) {
	known := func(fields []string) {
		if len(fields) > 1 || len(fields) == 1 && !slices.Contains(pullFields, fields[0]) {
			w.refuse(n, "there is no field ."+strings.Join(fields, ".")+"; there are ."+strings.Join(pullFields, ", ."))
		}
	}
	switch n := n.(type) {
	case *parse.DotNode, *parse.BoolNode, *parse.NumberNode, *parse.StringNode:
	case *parse.FieldNode:
		known(n.Ident)
	case *parse.VariableNode:
		known(n.Ident[1:])
	case *parse.PipeNode:
		w.checkPipe(n)
	case *parse.IdentifierNode:
		if !slices.Contains(pullFuncs, n.Ident) {
			w.refuse(n, "there is no function "+n.Ident+"; there are "+strings.Join(pullFuncs, ", "))
		}
	default:
		w.refuse(n, "only fields, variables, numbers and strings are of use here")
	}
}

// templateErrorPrefix matches the beginning of an error message of package template.
var templateErrorPrefix = regexp.MustCompile(`^template: ` + templateName + `:([0-9]+)(?::[0-9]+)?: (?:executing "` + templateName + `" at )?`)

// templateError converts an error of package template to an Invalid error.
func templateError(err error) error {
	said := err.Error()
	if m := templateErrorPrefix.FindStringSubmatch(said); m != nil {
		said = "line " + m[1] + ": " + said[len(m[0]):]
	}
	return caisson.Invalidf("pullBody", "%s", git.OneLine(said, 300))
}

// errPullTextTooLong ends the rendering of a text that is longer than 60,000 bytes; the text is then truncated.
var errPullTextTooLong = errors.New("the text is as long as it may be")

// pullBuffer stores the maximum length of a text and one character more, so that a truncation can be detected.
type pullBuffer struct{ text []byte }

// Write returns errPullTextTooLong if there is no room for all of p.
func (b *pullBuffer) Write(p []byte) (int, error) {
	room := maxPullText + utf8.UTFMax - len(b.text)
	b.text = append(b.text, p[:min(len(p), room)]...)
	if len(p) > room {
		return room, errPullTextTooLong
	}
	return len(p), nil
}

// text renders the template tmpl with p.
func (p PullText) text(tmpl string) (string, error) {
	t, err := parsePullTemplate(tmpl)
	if err != nil {
		return "", err
	}
	return p.render(t)
}

// render returns the text of a pull request without invisible characters, truncated to 60,000 bytes.
func (p PullText) render(t *template.Template) (string, error) {
	var b pullBuffer
	if err := t.Execute(&b, p); err != nil && !errors.Is(err, errPullTextTooLong) {
		return "", templateError(err)
	}
	return plainPullText(string(b.text)), nil
}

// plainPullText returns s without invisible characters and space around it, truncated to 60,000 bytes.
func plainPullText(s string) string {
	return strings.TrimSpace(safetext.Short(safetext.Lines(s), maxPullText))
}

// withSubjects returns p with the subjects of commits and a title.
func (p PullText) withSubjects(subjects []string) PullText {
	p.Commits = subjects[:min(len(subjects), maxPullCommits)]
	if p.Title == "" && len(subjects) > 0 {
		p.Title = subjects[0]
	}
	p.Title = git.OneLine(cmp.Or(p.Title, "Changes by "+p.Run), maxPullTitle)
	return p
}
