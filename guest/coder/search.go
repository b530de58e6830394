package coder

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// Limits of one call of the tool search, which finds the lines of files that match a regular expression.
const (
	maxPattern   = 2000             // maximum length of a pattern, in bytes
	maxSearched  = 8 << 20          // maximum size of a file that is searched, in bytes
	maxSearchAll = 512 << 20        // maximum size of all searched files together, in bytes
	searchTime   = 30 * time.Second // maximum duration of a search
	maxHits      = 200              // maximum number of matching lines in all files together
	maxHitsFile  = 30               // maximum number of matching lines in one file
	maxHitLine   = 300              // number of bytes of a matching line that the result contains
)

// searchTool returns the tool search.
func (w workspace) searchTool() tool {
	return tool{
		name: "search",
		about: "Search the lines of text files with a regular expression (RE2 syntax) and return path:line: text. " +
			"What list hides is not searched, nor are binary files.",
		schema: `{"type":"object","properties":{"pattern":{"type":"string"},"path":{"type":"string","description":"directory or file; default: the workspace"},"glob":{"type":"string","description":"only files whose name or path matches, as *.go"},"ignore_case":{"type":"boolean"}},"required":["pattern"]}`,
		run:    w.search,
	}
}

// search is the state of one call of the tool search, which finds the lines of files that match a regular expression.
type search struct {
	pattern      *regexp.Regexp  // regular expression that the lines are compared with
	glob         *regexp.Regexp  // matches the paths or names of the files to search; nil means all files
	deadline     time.Time       // time at which the search ends even if it is not complete
	left         int64           // number of bytes that may still be read
	hits         int             // number of matching lines found so far
	out          strings.Builder // text of the tool result
	skippedLarge int             // number of files that were skipped because they are too large
}

// search executes a call of the tool search.
func (w workspace) search(ctx context.Context, args []byte) result {
	var in struct {
		Pattern, Path, Glob string
		IgnoreCase          bool `json:"ignore_case"`
	}
	if err := decodeArguments(args, &in); err != nil {
		return failedResult("%v", err)
	}
	if in.Path == "" {
		in.Path = "."
	}
	root, err := w.path(in.Path)
	if err != nil {
		return failedResult("%v", err)
	}
	s, err := newSearch(in.Pattern, in.Glob, in.IgnoreCase)
	if err != nil {
		return failedResult("%v", err)
	}
	info, err := os.Stat(root)
	if err != nil {
		return failedResult("%v", err)
	}
	whole := true
	if info.IsDir() {
		whole = walkTree(ctx, root, s.limitReached, func(name string, e fs.DirEntry) bool {
			if e.Type().IsRegular() && s.matchesGlob(name) {
				s.searchFile(filepath.Join(root, name), filepath.Join(in.Path, name))
			}
			return true
		})
	} else {
		s.searchFile(root, in.Path)
	}
	return s.result(whole)
}

// newSearch returns a search for the regular expression pattern in the files that match the glob name; "" means all files.
func newSearch(pattern, name string, ignoreCase bool) (*search, error) {
	s := &search{deadline: time.Now().Add(searchTime), left: maxSearchAll}
	if pattern == "" || len(pattern) > maxPattern || len(name) > maxPattern {
		return nil, fmt.Errorf("a pattern has from 1 to %d bytes", maxPattern)
	}
	if ignoreCase {
		pattern = "(?i)" + pattern
	}
	var err error
	if s.pattern, err = regexp.Compile(pattern); err != nil {
		return nil, fmt.Errorf("the pattern is not valid: %w", err)
	}
	if name != "" {
		if s.glob, err = glob(name); err != nil {
			return nil, fmt.Errorf("the glob is not valid: %w", err)
		}
	}
	return s, nil
}

// limitReached reports whether the search must end early because of a limit on hits, bytes, output or time.
func (s *search) limitReached() bool {
	return s.hits >= maxHits || s.left <= 0 || s.out.Len() > maxResult-2048 || time.Now().After(s.deadline)
}

// matchesGlob reports whether the file with this path is to be searched according to the glob.
func (s *search) matchesGlob(name string) bool {
	return s.glob == nil || s.glob.MatchString(name) || s.glob.MatchString(path.Base(name))
}

// searchFile searches the file at the path name. shown is its path in the tool result. A file that cannot be read is skipped.
func (s *search) searchFile(name, shown string) {
	f, info, err := openRegular(name, os.O_RDONLY, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if info.Size() > maxSearched {
		s.skippedLarge++
		return
	}
	r := bufio.NewReaderSize(io.LimitReader(f, maxSearched), 64<<10)
	if probe, _ := r.Peek(binaryProbe); bytes.IndexByte(probe, 0) >= 0 {
		return
	}
	b, err := io.ReadAll(r)
	s.left -= int64(len(b))
	if err != nil {
		return
	}
	hits, n := 0, 0
	for line := range bytes.Lines(b) {
		n++
		line = bytes.TrimRight(line, "\r\n")
		if !s.pattern.Match(line) {
			continue
		}
		if hits++; hits > maxHitsFile || s.limitReached() {
			fmt.Fprintf(&s.out, "%s: [there are more in this file]\n", clean(shown))
			return
		}
		s.hits++
		fmt.Fprintf(&s.out, "%s:%d: %s\n", clean(shown), n, clean(clip(string(line), maxHitLine)))
	}
}

// result returns the tool result. whole reports whether all files were visited.
func (s *search) result(whole bool) result {
	if s.hits == 0 {
		s.out.WriteString("[nothing found]\n")
	}
	if !whole {
		s.out.WriteString("[not everything was searched; narrow it with path or glob]\n")
	}
	if s.skippedLarge > 0 {
		fmt.Fprintf(&s.out, "[%d files of more than %d MiB were not searched]\n", s.skippedLarge, maxSearched>>20)
	}
	return result{text: s.out.String()}
}
