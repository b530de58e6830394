package drive

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rogpeppe/go-internal/diff"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/guest/task"
)

// isPatchText reports whether data is text that can be part of a patch: UTF-8 without control characters except \n, \t and \r.
func isPatchText(data []byte) bool {
	return utf8.Valid(data) && !bytes.ContainsFunc(data, func(r rune) bool { return task.IsControl(r) && r != '\n' && r != '\t' && r != '\r' })
}

// diffManifests returns the changes of files between two manifests, sorted by path, and a patch with the changes of text files.
// The patch omits files with which it would be larger than permitted; a note at its beginning lists what is omitted.
func diffManifests(before, after *manifest) ([]caisson.FileChange, string) {
	var all []caisson.FileChange
	var patch strings.Builder
	cut := append(slices.Clone(before.missing), after.missing...)
	// If entries are missing, a file that only one of the manifests contains may have existed at both times.
	partial := before.partial || after.partial
	for _, name := range mergedPaths(before, after) {
		was, is := before.entries[name], after.entries[name]
		change := caisson.FileChange{Path: safePath(name)}
		switch {
		case was == nil && !partial:
			change.Kind = "added"
		case is == nil && !partial:
			change.Kind = "removed"
		case was != nil && is != nil && was != is && was.differsFrom(is):
			change.Kind = "modified"
		case was == nil && is.change.After(before.began):
			change.Kind = "added"
		default:
			continue
		}
		if change.Path == "" {
			continue // the change cannot be reported, because the name is not a valid relative path
		}
		if len(all) == task.MaxChanges {
			cut = append(cut, "more changes")
			break
		}
		text, added, removed := fileDiff(change.Path, was, is)
		change.Added, change.Removed = added, removed
		all = append(all, change)
		switch {
		case text == "":
		case patch.Len()+len(text) > task.MaxPatch-1024:
			cut = append(cut, "the patch of "+truncate(change.Path, 100, "…"))
		default:
			patch.WriteString(text)
		}
	}
	if len(cut) == 0 {
		return all, patch.String()
	}
	slices.Sort(cut)
	note := strings.Join(slices.Compact(cut), ", ")
	return all, "# not shown: " + truncate(note, 900, "…") + "\n" + patch.String()
}

// mergedPaths returns the paths that are in at least one of two manifests, sorted.
func mergedPaths(a, b *manifest) []string {
	names := slices.Collect(maps.Keys(a.entries))
	for name := range b.entries {
		if a.entries[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// safePath returns a path with control characters replaced by U+FFFD, or "" if the result is not a valid relative path.
func safePath(name string) string {
	name = strings.Map(func(r rune) rune {
		if task.IsControl(r) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(name, string(utf8.RuneError)))
	if len(name) > 4<<10 || path.Clean(name) != name || path.IsAbs(name) || strings.HasPrefix(name, "..") {
		return ""
	}
	return name
}

// fileDiff returns the diff of two versions of a file in git's format, and the numbers of added and removed lines. A version that
// is nil does not exist. The diff is "" if an existing version is not text.
func fileDiff(name string, was, is *entry) (text string, added, removed int) {
	oldName, newName := "a/"+name, "b/"+name
	var from, to string
	switch {
	case was == nil:
		oldName = "/dev/null"
	case !was.isText:
		return "", 0, 0
	default:
		from = was.text
	}
	switch {
	case is == nil:
		newName = "/dev/null"
	case !is.isText:
		return "", 0, 0
	default:
		to = is.text
	}
	var head strings.Builder
	fmt.Fprintf(&head, "diff --git a/%s b/%s\n", name, name)
	switch {
	case was == nil:
		fmt.Fprintf(&head, "new file mode %s\n", gitMode(is.mode))
	case is == nil:
		fmt.Fprintf(&head, "deleted file mode %s\n", gitMode(was.mode))
	case gitMode(was.mode) != gitMode(is.mode):
		fmt.Fprintf(&head, "old mode %s\nnew mode %s\n", gitMode(was.mode), gitMode(is.mode))
	}
	body := diff.Diff(oldName, []byte(from), newName, []byte(to))
	if len(body) == 0 {
		return head.String(), 0, 0
	}
	_, body, _ = bytes.Cut(body, []byte("\n")) // remove the first line, which package diff adds
	for i, line := range bytes.Split(body, []byte("\n")) {
		switch {
		case i < 2 || len(line) == 0: // the first two lines have the file names, and the last line is empty
		case line[0] == '+':
			added++
		case line[0] == '-':
			removed++
		}
	}
	return head.String() + string(body), added, removed
}

// gitMode returns the mode of a file in the form that git uses, such as 100644.
func gitMode(m fs.FileMode) string {
	switch {
	case m.Type() == fs.ModeSymlink:
		return "120000"
	case m.Perm()&0o111 != 0:
		return "100755"
	}
	return "100644"
}
