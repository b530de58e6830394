package drive

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// placeholder is replaced in a command by the prompt, or by the path of a file with the prompt.
const placeholder = "{prompt}"

// notesDir returns the directory for files that agents read, and for state that is kept between the turns of a conversation. It
// is in the home directory of the agent's user, which exists as long as the sandbox. If the home directory is not writable, or is
// in the working directory, where all files count as the agent's work, it is in the directory for temporary files.
func notesDir(t *task.Task) (string, error) {
	const name = ".caisson"
	if home, err := os.UserHomeDir(); err == nil && filepath.IsAbs(home) && !isBelow(home, t.Workdir) {
		dir := filepath.Join(home, name)
		if err := os.MkdirAll(dir, 0o700); err == nil && unix.Access(dir, unix.W_OK) == nil {
			return dir, checkDir(dir)
		}
	}
	dir := filepath.Join(os.TempDir(), name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, checkDir(dir)
}

// checkDir returns an error if dir is not a directory. A symbolic link is an error too: it may lead to another directory.
func checkDir(dir string) error {
	info, err := os.Lstat(dir)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no directory; remove it, what belongs to the conversation is kept there", dir)
	}
	return err
}

// isBelow reports whether path is dir or below it, with symbolic links resolved.
func isBelow(path, dir string) bool {
	rel, err := filepath.Rel(resolveLinks(dir), resolveLinks(path))
	return err == nil && filepath.IsLocal(rel)
}

// CommandWithPrompt returns t's command with the prompt in it, the standard input for it, and a function that removes the file
// with the prompt, if one was written.
func CommandWithPrompt(t *task.Task) (args []string, stdin string, remove func(), err error) {
	remove = func() {}
	value := t.Prompt
	switch t.PromptMode {
	case "", caisson.PromptArgument:
		if strings.IndexByte(t.Prompt, 0) >= 0 {
			return nil, "", remove, errors.New("the prompt has a NUL byte, which an argument cannot have")
		}
	case caisson.PromptStdin:
		return t.Command, t.Prompt, remove, nil
	case caisson.PromptFile:
		if value, err = promptFile(t.Prompt); err != nil {
			return nil, "", remove, fmt.Errorf("write the prompt to a file: %w", err)
		}
		remove = func() { os.Remove(value) }
	default:
		return nil, "", remove, fmt.Errorf("an agent cannot get its prompt by %.40q; write argument, stdin or file", t.PromptMode)
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

// promptFile writes the prompt to a temporary file that only this user can read, and returns its path. It creates the directory
// for temporary files, which an image may lack.
func promptFile(prompt string) (string, error) {
	if err := os.MkdirAll(os.TempDir(), 0o777|os.ModeSticky); err != nil {
		return "", err
	}
	f, err := os.CreateTemp("", "prompt-*.txt")
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

// writeHistory writes the earlier messages to files, for an agent that stores none, and adds a reference to them to the prompt.
func writeHistory(t *task.Task) error {
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
	dir, err := notesDir(t)
	if err != nil {
		return err
	}
	for name, data := range map[string]string{"conversation.md": text.String(), "messages.json": string(messages) + "\n"} {
		if err := writeFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	t.Prompt = "What was said before in this conversation is in " + dir + "/conversation.md (as JSON in " + dir +
		"/messages.json): read it first.\n\n" + t.Prompt
	return nil
}
