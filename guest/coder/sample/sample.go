// Package sample contains a small repository with a failing test, and a script with the answers of a model that fixes it. It is
// used for demonstrations and tests of the built-in agent, and requires only a shell.
package sample

import (
	"embed"
	"io/fs"
	"os"
	"path/filepath"
)

// Prompt is the prompt to which Script has the answers.
const Prompt = "Fix the failing test."

// Answer is a text that the final answer of Script contains if the model has fixed the test.
const Answer = "now passes"

// Script is the script with the model's answers, for the scripted model.
//
//go:embed script.yaml
var Script string

//go:embed repo
var repo embed.FS // the repository, in the directory "repo"

// Write writes the files of the repository with the failing test into the directory dir, which is created if necessary.
func Write(dir string) error {
	files, err := fs.Sub(repo, "repo")
	if err != nil {
		return err
	}
	return fs.WalkDir(files, ".", func(name string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		to := filepath.Join(dir, filepath.FromSlash(name))
		if e.IsDir() {
			return os.MkdirAll(to, 0o755)
		}
		data, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		return os.WriteFile(to, data, 0o644)
	})
}
