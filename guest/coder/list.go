package coder

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	listDepth   = 2   // default number of levels of directories in a listing
	maxListed   = 500 // maximum number of entries in a listing
	maxLinkText = 200 // number of bytes of a symbolic link's target that are shown
)

// listTool returns the tool list.
func (w workspace) listTool() tool {
	return tool{
		name:   "list",
		about:  "List a directory as a tree of paths with sizes, without what .gitignore, .git and the like hide. Directories end with a slash.",
		schema: `{"type":"object","properties":{"path":{"type":"string","description":"default: the workspace"},"depth":{"type":"integer","description":"levels of directories; default 2"}}}`,
		run:    w.list,
	}
}

// list executes a call of the tool list.
func (w workspace) list(ctx context.Context, args []byte) result {
	var in struct {
		Path  string `json:"path"`
		Depth number `json:"depth"`
	}
	if err := decodeArguments(args, &in); err != nil {
		return failedResult("%v", err)
	}
	if in.Path == "" {
		in.Path = "."
	}
	if in.Depth <= 0 {
		in.Depth = listDepth
	}
	path, err := w.path(in.Path)
	if err != nil {
		return failedResult("%v", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return failedResult("%v", err)
	}
	if !info.IsDir() {
		return failedResult("%s is no directory", path)
	}
	// The directory is opened here because walkTree treats a directory that cannot be read like an empty one.
	if d, err := os.Open(path); err != nil {
		return failedResult("%v", err)
	} else {
		d.Close()
	}
	var out strings.Builder
	listed := 0
	full := func() bool { return listed == maxListed || out.Len() > maxResult-1024 }
	whole := walkTree(ctx, path, full, func(name string, e fs.DirEntry) bool {
		listed++
		out.WriteString(clean(describe(filepath.Join(path, name), name, e)) + "\n")
		return pathDepth(name)+1 < int(in.Depth)
	})
	switch {
	case !whole:
		out.WriteString("[there is more; list a directory of these, or use search]\n")
	case listed == 0:
		return result{text: "[nothing here, except for ignored files]"}
	}
	return result{text: out.String()}
}

// describe returns the line of a listing for the entry e, whose path in the listing is name.
func describe(path, name string, e fs.DirEntry) string {
	name = strings.ReplaceAll(name, "\n", "\uFFFD")
	switch {
	case e.IsDir():
		return name + "/"
	case e.Type()&fs.ModeSymlink != 0:
		to, err := os.Readlink(path)
		if err != nil {
			to = "?"
		}
		return name + " -> " + strings.ReplaceAll(clip(to, maxLinkText), "\n", "\uFFFD")
	case !e.Type().IsRegular():
		return name + " (" + describeType(e.Type()) + ")"
	}
	info, err := e.Info()
	if err != nil {
		return name
	}
	return fmt.Sprintf("%s (%d)", name, info.Size())
}
