package drive

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent/task"
)

// placeholder stands for the prompt, or for the path of a file with it, in a command.
const placeholder = "{prompt}"

// notes is a directory below the working directory for what agents are to read. Its changes are not reported.
const notes = ".caisson"

// command returns t's command with the prompt in it, what is written to its standard input, and what removes the prompt's file if it has one.
func command(t *task.Task) (args []string, stdin string, remove func(), err error) {
	remove = func() {}
	if strings.IndexByte(t.Prompt, 0) >= 0 && t.By != caisson.PromptStdin {
		return nil, "", remove, errors.New("the prompt has a NUL byte")
	}
	value := t.Prompt
	switch t.By {
	case "", caisson.PromptArgument:
	case caisson.PromptStdin:
		return t.Command, t.Prompt, remove, nil
	case caisson.PromptFile:
		if value, err = promptFile(t.Prompt); err != nil {
			return nil, "", remove, fmt.Errorf("write the prompt to a file: %w", err)
		}
		remove = func() { os.Remove(value) }
	default:
		return nil, "", remove, fmt.Errorf("an agent cannot get its prompt by %.40q; write argument, stdin or file", t.By)
	}
	found := false
	for _, arg := range t.Command {
		found = found || strings.Contains(arg, placeholder)
		args = append(args, strings.ReplaceAll(arg, placeholder, value))
	}
	if !found {
		args = append(args, value)
	}
	return args, "", remove, nil
}

// promptFile writes the prompt where only this user can read it. An image need not have a directory for temporary files.
func promptFile(prompt string) (string, error) {
	if err := os.MkdirAll(os.TempDir(), 0o777|os.ModeSticky); err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "prompt-")
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(prompt)
	if err = errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}

// recall writes what was said before where an agent without memory can read it, and tells it so.
func recall(t *task.Task) error {
	if len(t.History) == 0 {
		return nil
	}
	messages, err := json.MarshalIndent(t.History, "", "  ")
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, m := range t.History {
		fmt.Fprintf(&text, "## %s\n\n%s\n\n", m.Role, strings.TrimSpace(m.Content))
	}
	dir := filepath.Join(t.Workdir, notes)
	if info, err := os.Lstat(dir); err == nil && !info.IsDir() {
		return fmt.Errorf("%s is no directory; remove it, the conversation so far belongs there", dir)
	}
	for name, data := range map[string]string{"conversation.md": text.String(), "messages.json": string(messages) + "\n"} {
		if err := writeFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	t.Prompt = "What was said before in this conversation is in " + notes + "/conversation.md (as JSON in " + notes +
		"/messages.json): read it first.\n\n" + t.Prompt
	return nil
}
