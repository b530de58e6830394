package drive

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// maxRead is the maximum size of a file that an agent can read through its client, in bytes.
const maxRead = 8 << 20

// permission answers the agent's request for permission to call a tool. The task's rule for tools decides. An empty rule allows
// all calls, because the sandbox isolates the agent.
func (c *acpClient) permission(params json.RawMessage) (any, error) {
	var p struct {
		Tool    acpTool `json:"toolCall"`
		Options []struct {
			ID   string `json:"optionId"`
			Kind string `json:"kind"`
		} `json:"options"`
	}
	if err := json.Unmarshal(params, &p); err != nil {
		return nil, &rpcError{Code: rpcBadParams, Message: err.Error()}
	}
	tool := &p.Tool
	if call := c.call(tool); call != nil {
		c.begin(call)
		tool = &call.acpTool
	}
	allowed := permitted(c.t.Tools, tool.Name, tool.Sort)
	wanted, said, phase := []string{"reject_once", "reject_always"}, "denied: ", "warning"
	if allowed {
		wanted, said, phase = []string{"allow_once", "allow_always"}, "allowed: ", "tool_use"
	}
	c.state.out.Status(phase, said+tool.displayName())
	for _, kind := range wanted {
		for _, o := range p.Options {
			if o.Kind == kind {
				return map[string]any{"outcome": map[string]string{"outcome": "selected", "optionId": o.ID}}, nil
			}
		}
	}
	return map[string]any{"outcome": map[string]string{"outcome": "cancelled"}}, nil
}

// permitted reports whether a rule allows a tool that has several names: it must not deny any of the names, and if it lists
// allowed tools, it must allow at least one of the names.
func permitted(rule caisson.ToolRule, names ...string) bool {
	in := func(list []string) bool {
		return slices.ContainsFunc(list, func(entry string) bool {
			return slices.ContainsFunc(names, func(name string) bool { return name != "" && strings.EqualFold(entry, name) }) || entry == "*"
		})
	}
	return !in(rule.Deny) && (len(rule.Allow) == 0 || in(rule.Allow))
}

// acpFile has the parameters of an agent's request to read or write a file.
type acpFile struct {
	Path    string `json:"path"`    // absolute path of the file
	Line    int    `json:"line"`    // number of the first line to read, counted from 1
	Limit   int    `json:"limit"`   // maximum number of lines to read; 0 means no limit
	Content string `json:"content"` // content to write to the file
}

// file decodes a request to read or write a file. It returns an error if the path is relative, or if the task's rule does not
// allow the tool that has these names.
func (c *acpClient) file(params json.RawMessage, names ...string) (*acpFile, error) {
	f := &acpFile{}
	if err := json.Unmarshal(params, f); err != nil {
		return nil, &rpcError{Code: rpcBadParams, Message: err.Error()}
	}
	if !filepath.IsAbs(f.Path) {
		return nil, &rpcError{Code: rpcBadParams, Message: fmt.Sprintf("%.100q is not an absolute path", f.Path)}
	}
	if !permitted(c.t.Tools, names...) {
		c.state.out.Status("warning", "denied: "+names[0])
		return nil, &rpcError{Code: rpcInternal, Message: names[0] + " is denied to this agent"}
	}
	return f, nil
}

// readFile executes the agent's request to read a file, or some of its lines.
func (c *acpClient) readFile(params json.RawMessage) (any, error) {
	f, err := c.file(params, "fs/read_text_file", "read")
	if err != nil {
		return nil, err
	}
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	if info, err := file.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is no regular file", f.Path))
	}
	data, err := io.ReadAll(io.LimitReader(file, maxRead+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxRead {
		return nil, fmt.Errorf("%s has more than %d bytes", f.Path, maxRead)
	}
	text := string(data)
	if f.Line > 1 || f.Limit > 0 {
		lines := strings.SplitAfter(text, "\n")
		from := min(max(f.Line-1, 0), len(lines))
		to := len(lines)
		if f.Limit > 0 {
			to = min(to, from+f.Limit)
		}
		text = strings.Join(lines[from:to], "")
	}
	return map[string]string{"content": text}, nil
}

// writeFile executes the agent's request to write a file.
func (c *acpClient) writeFile(params json.RawMessage) (any, error) {
	f, err := c.file(params, "fs/write_text_file", "edit")
	if err != nil {
		return nil, err
	}
	mode := os.FileMode(0o644)
	if info, err := os.Stat(f.Path); err == nil {
		if !info.Mode().IsRegular() {
			return nil, fmt.Errorf("%s is no regular file", f.Path)
		}
		mode = info.Mode().Perm()
	}
	// If the path is a symbolic link, its target is replaced, as by editors.
	return struct{}{}, writeFile(resolveLinks(f.Path), f.Content, mode)
}
