package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// maxAgents is the maximum number of files in the administrator's directory of agents that are read.
const maxAgents = 256

// A Problem is the reason why a file in the administrator's directory of agents defines no agent.
type Problem struct {
	File string `json:"file"` // path of the file
	Err  error  `json:"-"`
}

// directory reads the agents in the administrator's directory. A file is parsed again if it has changed. Changes are detected
// when agents are read, not with inotify, because agents are read rarely and a check costs little.
type directory struct {
	path     string          // path of the directory
	reserved map[string]bool // ids of built-in agents
	log      *slog.Logger

	mu      sync.Mutex
	files   map[string]*file // files as they were last read, by name; guarded by mu
	readErr error            // error of reading the directory that was last logged, or nil; guarded by mu
}

// file is the state of an agent's file when it was last read, and the result of parsing it.
type file struct {
	size  int64
	mtime time.Time // modification time
	mode  fs.FileMode
	agent *caisson.Agent
	err   error // why the file defines no agent; nil if it does
}

// newDirectory returns a directory for the files at path. An agent in a file must not have an id in reserved.
func newDirectory(path string, reserved map[string]bool, log *slog.Logger) *directory {
	return &directory{path: path, reserved: reserved, log: log, files: map[string]*file{}}
}

// read returns the current agents, sorted by file name, and the errors of the files that define no agent.
func (d *directory) read() (agents []*caisson.Agent, problems []Problem) {
	if d.path == "" {
		return nil, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	names, err := d.names()
	if err != nil {
		if d.readErr == nil || d.readErr.Error() != err.Error() {
			d.log.Warn("the directory of agents cannot be read", "dir", d.path, "error", err)
		}
		problems = append(problems, Problem{d.path, err})
	}
	d.readErr = err
	now := map[string]*file{}
	byID := map[string]string{}
	for _, name := range names {
		f := d.file(name)
		now[name] = f
		err := f.err
		if err == nil && byID[f.agent.ID] != "" {
			err = caisson.Invalidf("id", "%s is that of %s, too; choose another", f.agent.ID, byID[f.agent.ID])
		}
		if err != nil {
			problems = append(problems, Problem{filepath.Join(d.path, name), err})
			continue
		}
		byID[f.agent.ID] = name
		agents = append(agents, shallowCopy(f.agent))
	}
	d.files = now
	return agents, problems
}

// names returns the sorted names of the files in the directory that end in .yaml or .yml, without hidden ones.
func (d *directory) names() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var names []string
	for _, e := range entries {
		if ext := filepath.Ext(e.Name()); (ext == ".yaml" || ext == ".yml") && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	if len(names) > maxAgents {
		return names[:maxAgents], fmt.Errorf("there are %d files, of which the first %d are read; remove some", len(names), maxAgents)
	}
	return names, err
}

// file returns the state of the file with this name in the directory, and parses the file again if it has changed.
func (d *directory) file(name string) *file {
	path := filepath.Join(d.path, name)
	info, err := os.Stat(path)
	if err != nil {
		return d.report(path, d.files[name], &file{err: err})
	}
	old := d.files[name]
	if old != nil && old.size == info.Size() && old.mtime.Equal(info.ModTime()) && old.mode == info.Mode() {
		return old
	}
	f := &file{size: info.Size(), mtime: info.ModTime(), mode: info.Mode()}
	f.agent, f.err = d.parse(path, info)
	return d.report(path, old, f)
}

// report logs the error of f, the new state of the file at path, unless old, the previous state, had the same error. It returns
// f.
func (d *directory) report(path string, old, f *file) *file {
	if f.err != nil && (old == nil || old.err == nil || old.err.Error() != f.err.Error()) {
		d.log.Warn("a file has no agent that can be used", "file", path, "error", f.err)
	}
	return f
}

// parse reads an agent from the file at path, which must not have the id of a built-in agent.
func (d *directory) parse(path string, info fs.FileInfo) (*caisson.Agent, error) {
	if !info.Mode().IsRegular() {
		return nil, caisson.Errorf(caisson.Invalid, "is not a regular file")
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, err
	}
	a, err := Parse(data)
	if err == nil && d.reserved[a.ID] {
		return nil, caisson.Invalidf("id", "%s is built in; choose another", a.ID)
	}
	return a, err
}

// isPath reports whether an image is a path of the host.
func isPath(image string) bool {
	return strings.HasPrefix(image, "dir:") || strings.HasPrefix(image, "tar:")
}
