package coder

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxResult is the maximum length of the result of a tool call, in bytes.
const maxResult = 32 << 10

// tool is a tool that the model can call.
type tool struct {
	name   string                                             // name with which the model calls the tool
	about  string                                             // description of the tool for the model
	schema string                                             // JSON schema of the tool's arguments
	run    func(ctx context.Context, arguments []byte) result // executes a call; arguments are JSON, as written by the model
}

// result is the result of a tool call.
type result struct {
	text    string // result or error message, for the model
	failed  bool   // the call has failed, for the reason in text
	changed bool   // the call may have changed files, or anything else
}

// failedResult returns the result of a tool call that has failed. The formatted text is the reason, for the model.
func failedResult(format string, args ...any) result {
	return result{text: fmt.Sprintf(format, args...), failed: true}
}

// toolbox has the tools that the model may call.
type toolbox struct {
	tools []tool // the tools that the model may call
	shell *shell // the tool shell, whose background processes are killed at the end of the task
}

// newToolbox returns the tools that the configuration allows.
func newToolbox(c *config) (*toolbox, error) {
	dir := workspace(c.workspace)
	b := &toolbox{shell: &shell{dir: c.workspace}}
	b.tools = []tool{b.shell.tool(), dir.readTool(), dir.writeTool(), dir.editTool(), dir.listTool(), dir.searchTool()}
	var at server
	if c.toolsURL != "" {
		var err error
		if at, err = parseServer(c.toolsURL); err != nil {
			return nil, invalidArg("--tools-url", err)
		}
	}
	runs := runTools(at)
	names := func() (all []string) {
		for _, t := range slices.Concat(b.tools, runs) {
			all = append(all, t.name)
		}
		return all
	}()
	allow, err := toolNames("--allow", c.allow, names)
	if err != nil {
		return nil, err
	}
	deny, err := toolNames("--deny", c.deny, names)
	if err != nil {
		return nil, err
	}
	if c.toolsURL != "" {
		b.tools = append(b.tools, runs...)
	}
	b.tools = slices.DeleteFunc(b.tools, func(t tool) bool {
		return slices.Contains(deny, t.name) || len(allow) > 0 && !slices.Contains(allow, t.name)
	})
	return b, nil
}

// toolNames parses a comma-separated list of names of known tools, the value of a command-line flag. An unknown name is an error,
// because otherwise a misspelled name would have no effect unnoticed.
func toolNames(flag, list string, known []string) ([]string, error) {
	var names []string
	for name := range strings.SplitSeq(list, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		if !slices.Contains(known, name) {
			return nil, invalidArg(flag, fmt.Errorf("there is no tool %.40q; the tools are %s", name, strings.Join(known, ", ")))
		}
		names = append(names, name)
	}
	return names, nil
}

// hasTool reports whether there is a tool with this name.
func (b *toolbox) hasTool(name string) bool {
	return slices.ContainsFunc(b.tools, func(t tool) bool { return t.name == name })
}

// definitions returns the descriptions of the tools that are sent to models; nil if there are no tools.
func (b *toolbox) definitions() (all []definition) {
	for _, t := range b.tools {
		all = append(all, definition{t.name, t.about, raw(t.schema)})
	}
	return all
}

// call executes a tool call. Errors are returned as results for the model.
func (b *toolbox) call(ctx context.Context, f function) result {
	var object map[string]raw
	if err := json.Unmarshal([]byte(f.Arguments), &object); err != nil || object == nil {
		return failedResult("The arguments of %s are no JSON object: %v. Call it again with a whole one; split what is too long for one call.", f.Name, err)
	}
	for _, t := range b.tools {
		if t.name == f.Name {
			r := t.run(ctx, []byte(f.Arguments))
			r.text = truncateMiddle(clean(r.text), maxResult)
			return r
		}
	}
	var names []string
	for _, t := range b.tools {
		names = append(names, t.name)
	}
	if len(names) == 0 {
		return failedResult("There is no tool %.40q, nor any other.", f.Name)
	}
	return failedResult("There is no tool %.40q. There are: %s.", f.Name, strings.Join(names, ", "))
}

// truncateMiddle returns about n bytes of s: its beginning and its end, with a note of how much is missing between them.
func truncateMiddle(s string, n int) string {
	if len(s) <= n {
		return s
	}
	half := (n - 80) / 2
	return clip(s, half) + fmt.Sprintf("\n[%d bytes left out]\n", len(s)-2*half) + clipEnd(s, half)
}

// decodeArguments decodes the arguments of a call. The error is a message for the model.
func decodeArguments(data []byte, to any) error {
	if err := json.Unmarshal(data, to); err != nil {
		return fmt.Errorf("the arguments are not as they should be: %w", err)
	}
	return nil
}

// number is an integer in the arguments of a tool call. Models also write integers as a string or with a decimal point.
type number int64

// UnmarshalJSON implements [json.Unmarshaler].
func (n *number) UnmarshalJSON(b []byte) error {
	b = bytes.Trim(b, `"`)
	if string(b) == "null" || len(b) == 0 {
		return nil
	}
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || f != f || f < -1e15 || f > 1e15 {
		return fmt.Errorf("%.40q is no number", b)
	}
	*n = number(f)
	return nil
}
