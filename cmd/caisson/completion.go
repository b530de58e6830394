package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// completionScripts are the completion scripts by the name of the shell. They run the program itself to get the possible
// completions, so that scripts remain correct when commands change. A line ":file" in the program's output stands for the names
// of files.
var completionScripts = map[string]string{
	"bash": `# bash completion for caisson: source <(caisson completion bash)
_caisson() {
    local cur="${COMP_WORDS[COMP_CWORD]}" line
    local -a words=("${COMP_WORDS[@]:1:COMP_CWORD}")
    COMPREPLY=()
    while IFS= read -r line; do
        if [[ "$line" == ":file" ]]; then
            compopt -o filenames
            while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen -f -- "$cur")
        else
            COMPREPLY+=("${line%%$'\t'*}")
        fi
    done < <("${COMP_WORDS[0]}" __complete -- "${words[@]}" 2>/dev/null)
}
complete -F _caisson caisson
`,
	"zsh": `#compdef caisson
# zsh completion for caisson: source <(caisson completion zsh)
_caisson() {
    local line
    local -a answers
    for line in "${(@f)$("${words[1]}" __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
        if [[ "$line" == ":file" ]]; then
            _files
        elif [[ -n "$line" ]]; then
            answers+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
        fi
    done
    (( $#answers )) && _describe caisson answers
}
if [[ "$funcstack[1]" == "_caisson" ]]; then _caisson "$@"; else compdef _caisson caisson; fi
`,
	"fish": `# fish completion for caisson: caisson completion fish | source
function __caisson_complete
    set -l words (commandline -opc) (commandline -ct)
    for line in (command $words[1] __complete -- $words[2..-1] 2>/dev/null)
        if test "$line" = ":file"
            __fish_complete_path (commandline -ct)
        else
            printf '%s\n' $line
        end
    end
end
complete -c caisson -f -a '(__caisson_complete)'
`,
}

// completionCmd prints the completion script for a shell.
type completionCmd struct {
	Shell string `arg:"" help:"bash, zsh or fish." enum:"bash,zsh,fish"`
}

func (c *completionCmd) Help() string {
	return examples("source <(caisson completion bash)", "caisson completion zsh > ~/.zfunc/_caisson",
		"caisson completion fish > ~/.config/fish/completions/caisson.fish")
}

func (c *completionCmd) Run(a *app) error {
	_, err := fmt.Fprint(a.out, completionScripts[c.Shell])
	return err
}

// completeTimeout is the time limit for requests to the daemon while completions are computed, because the shell waits for them.
const completeTimeout = time.Second

// completeCmd is the hidden command that completion scripts call: it prints the possible completions of the last word of Words.
// It never starts a daemon, and ignores errors of requests.
type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:""`
}

func (c *completeCmd) Run(ctx context.Context, a *app) error {
	ctx, cancel := context.WithTimeout(ctx, completeTimeout)
	defer cancel()
	k := completer{names: func(kind string) []string { return a.names(ctx, kind) }}
	for _, w := range k.complete(a.parser.Model, trimDashes(c.Words)) {
		if _, err := fmt.Fprintln(a.out, w); err != nil {
			return err
		}
	}
	return nil
}

// completer computes completions from kong's model of the command line.
type completer struct {
	names func(kind string) []string // returns the names of objects of a kind
}

// complete returns the completions of the last of words, each followed by a tab and its description if it has one.
func (k *completer) complete(app *kong.Application, words []string) []string {
	if len(words) == 0 {
		words = []string{""}
	}
	node, args := app.Node, 0
	var wants *kong.Flag // the flag whose value is the next word; nil for none
	for _, w := range words[:len(words)-1] {
		switch {
		case wants != nil:
			wants = nil
		case w == "--":
			return nil // words after -- are the command line of another program
		case strings.HasPrefix(w, "-") && w != "-":
			if f := findFlag(defaultCommand(node), w); f != nil && !f.IsBool() && !strings.Contains(w, "=") {
				wants = f
			}
		default:
			if child := findChild(node, w); child != nil && args == 0 {
				node = child
				continue
			}
			args++
		}
	}
	last := words[len(words)-1]
	var out, children []string
	if args == 0 {
		children = commandCompletions(node)
	}
	node = defaultCommand(node)
	switch flag, _, found := strings.Cut(last, "="); {
	case wants != nil:
		out = k.values(wants.Value)
	case found && strings.HasPrefix(last, "--"):
		if f := findFlag(node, flag); f != nil {
			for _, v := range k.values(f.Value) {
				out = append(out, flag+"="+v)
			}
		}
	case strings.HasPrefix(last, "-"):
		out = flagCompletions(node)
	default:
		out = append(children, k.argumentValues(node, args)...)
	}
	return slices.DeleteFunc(out, func(s string) bool { return s != ":file" && !strings.HasPrefix(s, last) })
}

// defaultCommand returns the default command of node, which is used if no further command is given, or node.
func defaultCommand(node *kong.Node) *kong.Node {
	if node.DefaultCmd != nil {
		return node.DefaultCmd
	}
	return node
}

// findFlag returns the flag of a command, or of its parents, for a word such as --name=value or -n; nil if there is none.
func findFlag(node *kong.Node, word string) *kong.Flag {
	name, _, _ := strings.Cut(word, "=")
	for _, f := range slices.Concat(node.AllFlags(true)...) {
		if name == "--"+f.Name || (f.Short != 0 && name == "-"+string(f.Short)) {
			return f
		}
	}
	return nil
}

// findChild returns the subcommand with this name or alias, nil if there is none.
func findChild(node *kong.Node, name string) *kong.Node {
	for _, c := range node.Children {
		if c.Name == name || slices.Contains(c.Aliases, name) {
			return c
		}
	}
	return nil
}

// commandCompletions returns the completions for the subcommands of node, except hidden ones.
func commandCompletions(node *kong.Node) []string {
	var out []string
	for _, c := range node.Children {
		if !c.Hidden {
			out = append(out, c.Name+"\t"+c.Help)
		}
	}
	return out
}

// flagCompletions returns the completions for the flags of a command and its parents, sorted.
func flagCompletions(node *kong.Node) []string {
	var out []string
	for _, f := range slices.Concat(node.AllFlags(true)...) {
		out = append(out, "--"+f.Name+"\t"+f.Help)
	}
	slices.Sort(out)
	return out
}

// argumentValues returns the possible values of the positional argument with index n; the last argument may be repeatable.
func (k *completer) argumentValues(node *kong.Node, n int) []string {
	args := node.Positional
	if len(args) == 0 {
		return nil
	}
	if n >= len(args) {
		if !args[len(args)-1].IsSlice() {
			return nil
		}
		n = len(args) - 1
	}
	return k.values(args[n])
}

// values returns the possible values of a flag or argument: those of its enum, or those that its struct tag "complete" selects:
// "file" selects names of files, "place" names of files and SANDBOX:/ for each sandbox, any other value the names of objects of
// that kind.
func (k *completer) values(v *kong.Value) []string {
	if v.Enum != "" {
		return strings.Split(v.Enum, ",")
	}
	switch kind := v.Tag.Get("complete"); kind {
	case "":
		return nil
	case "file":
		return []string{":file"}
	case "place":
		var out []string
		for _, s := range k.names("sandbox") {
			out = append(out, s+":/")
		}
		return append(out, ":file")
	default:
		return k.names(kind)
	}
}

// names returns the names of objects of a kind, or of the states of such objects, or nothing if the daemon is not reachable. kind
// is the value of a struct tag complete.
func (a *app) names(ctx context.Context, kind string) []string {
	switch kind {
	case "state":
		return namesOfStates(caisson.States())
	case "runstate":
		return namesOfStates(runStates)
	case "workspacestate":
		return namesOfStates(workspaceStates)
	case "deliverystate":
		return namesOfStates(deliveryStates)
	case "logged":
		return append(a.names(ctx, "run"), a.names(ctx, "sandbox")...)
	}
	api, err := a.connectRunning(ctx)
	if err != nil {
		return nil
	}
	var all caisson.Filter
	switch kind {
	case "sandbox":
		return namesOf(func(s *caisson.Sandbox) string { return s.Name }, sandboxID)(allPages(ctx, all, sandboxID, api.List))
	case "snapshot":
		return namesOf(func(s *caisson.Snapshot) string { return s.Name }, snapshotID)(allPages(ctx, all, snapshotID, api.ListSnapshots))
	case "template":
		return namesOf(templateName)(api.ListTemplates(ctx))
	case "image":
		return namesOf(imageRef)(api.ListImages(ctx))
	case "credential":
		return namesOf(credentialID)(api.ListCredentials(ctx))
	case "agent":
		return namesOf(agentID)(api.ListAgents(ctx))
	case "run":
		return namesOf(runID)(firstPage(api.ListRuns(ctx, caisson.RunFilter{Limit: 50})))
	case "workspace":
		return namesOf(workspaceID)(firstPage(api.ListWorkspaces(ctx, caisson.WorkspaceFilter{Limit: 50})))
	case "receipt":
		return namesOf(receiptID)(firstPage(api.ListReceipts(ctx, caisson.WorkspaceFilter{Limit: 50})))
	case "repo":
		return namesOf(repoName)(api.ListRepos(ctx))
	case "volume":
		return namesOf(volumeName, volumeID)(allPages(ctx, all, volumeID, api.ListVolumes))
	case "route":
		return namesOf(routeName, routeID)(allPages(ctx, all, routeID, api.ListRoutes))
	case "delivery":
		return namesOf(deliveryID)(firstPage(api.ListDeliveries(ctx, caisson.DeliveryFilter{Limit: 50})))
	case "session":
		return namesOf(sessionID)(api.ListSessions(ctx, caisson.SessionFilter{}))
	case "model":
		return namesOf(func(m caisson.GatewayModel) string { return m.Alias })(api.ListModels(ctx))
	case "token":
		return namesOf(tokenID)(api.ListTokens(ctx))
	}
	return nil
}

// namesOf returns a function that takes the result of a request and returns one name of each item: the first one that is not
// empty and contains neither blanks nor characters that are escaped on a terminal. It ignores the error of the request.
func namesOf[T any](names ...func(T) string) func([]T, error) []string {
	return func(items []T, _ error) (out []string) {
		for _, it := range items {
			for _, name := range names {
				if s := name(it); s != "" && safetext.Escape(s) == s && !strings.ContainsAny(s, " \t") {
					out = append(out, s)
					break
				}
			}
		}
		return out
	}
}

// firstPage returns the result of a request for one page without the report whether further pages follow.
func firstPage[T any](items []T, _ bool, err error) ([]T, error) { return items, err }
