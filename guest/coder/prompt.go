package coder

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// maxNotes is the maximum number of bytes that are read of a file with instructions, such as AGENTS.md.
const maxNotes = 16 << 10

// programs are looked up on PATH and listed in the system prompt, so that the model need not look for them.
var programs = []string{"git", "python3", "node", "npm", "go", "cargo", "java", "make", "gcc", "curl"}

const basePrompt = `You are Caisson's coding agent. You work on a task on your own, inside a sandbox; nobody can answer questions before you have finished.

- Look before you change anything: read the files that matter, and find out how the project is built and tested.
- Make the smallest change that does the task well, in the style of what is there. Leave alone what is none of the task.
- Check your work: run the tests, or at least the program. Read what failed before you try again, and try something else rather than the same.
- You may do anything inside the sandbox that the task needs. The network reaches only what is granted; if something cannot be reached, say so rather than look for ways around it.
- When you are done, say briefly what you did and how you checked it. Say plainly what does not work or was not tried; never claim what you have not seen.`

// systemPrompt returns the text of the system message for an agent that has the tools in box and works in the directory dir.
func systemPrompt(dir string, box *toolbox) string {
	var p strings.Builder
	p.WriteString(basePrompt)
	fmt.Fprintf(&p, "\n\nWorkspace: %s (relative paths are relative to it", dir)
	if _, err := os.Stat(filepath.Join(dir, ".git")); err == nil {
		p.WriteString("; a git repository")
	}
	fmt.Fprintf(&p, ")\nSystem: %s, %s/%s\n", systemName(), runtime.GOOS, runtime.GOARCH)
	if box.hasTool("shell") {
		var found []string
		for _, name := range programs {
			if _, err := exec.LookPath(name); err == nil {
				found = append(found, name)
			}
		}
		if _, err := os.Stat(shellProgram); err != nil {
			p.WriteString("There is no shell in this sandbox; use the other tools.\n")
		} else if len(found) > 0 {
			fmt.Fprintf(&p, "On PATH: %s\n", strings.Join(found, ", "))
		}
	}
	seen := ""
	for _, name := range []string{"AGENTS.md", "CLAUDE.md"} {
		notes := readNotes(filepath.Join(dir, name))
		if notes == "" || notes == seen {
			continue
		}
		seen = notes
		fmt.Fprintf(&p, "\nThe workspace has %s, with notes of the project on how to work in it:\n\n<%s>\n%s\n</%s>\n", name, name, notes, name)
	}
	return p.String()
}

// readNotes returns the text of a file with instructions, such as AGENTS.md; "" if there is no such file.
func readNotes(path string) string {
	f, _, err := openRegular(path, os.O_RDONLY, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, _ := io.ReadAll(io.LimitReader(f, maxNotes+1)) // after a read error, the part that was read is used
	notes := strings.TrimSpace(clean(clip(string(b), maxNotes)))
	if len(b) > maxNotes {
		notes += "\n[cut here; read the file for the rest]"
	}
	return notes
}

// systemName returns the name of the image's Linux distribution, from /etc/os-release.
func systemName() string {
	f, _, err := openRegular("/etc/os-release", os.O_RDONLY, 0)
	if err != nil {
		return "an unknown distribution"
	}
	defer f.Close()
	for s := bufio.NewScanner(io.LimitReader(f, maxNotes)); s.Scan(); {
		if name, ok := strings.CutPrefix(s.Text(), "PRETTY_NAME="); ok {
			return clip(clean(strings.Trim(name, `"'`)), 80)
		}
	}
	return "an unknown distribution"
}
