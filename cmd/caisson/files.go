package main

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// filesCmd contains the commands that use the files of a sandbox.
type filesCmd struct {
	Ls    filesLsCmd    `cmd:"" help:"List a directory."`
	Cat   filesCatCmd   `cmd:"" help:"Print a file."`
	Write filesWriteCmd `cmd:"" help:"Replace a file with standard input, atomically."`
	Stat  filesStatCmd  `cmd:"" help:"Describe a file."`
	Mkdir filesMkdirCmd `cmd:"" help:"Make a directory."`
	Mv    filesMvCmd    `cmd:"" help:"Move a file."`
	Rm    filesRmCmd    `cmd:"" help:"Remove files."`
	Watch filesWatchCmd `cmd:"" help:"Follow changes below a directory."`
}

// sandboxPath is SANDBOX:PATH: the id or name of a sandbox, and an absolute path in it.
type sandboxPath struct{ sandbox, path string }

// parseSandboxPath parses SANDBOX:PATH. ok is false if s does not have this form and so is a path of this machine. A string that
// begins with a slash or a dot is always a path of this machine, even with colons.
func parseSandboxPath(s string) (p sandboxPath, ok bool, err error) {
	ref, file, found := strings.Cut(s, ":")
	if !found || s[0] == '/' || s[0] == '.' || strings.Contains(ref, "/") {
		return sandboxPath{}, false, nil
	}
	if ref == "" {
		return sandboxPath{}, false, caisson.Invalidf("path", "%.80q names no sandbox; write SANDBOX:PATH", s)
	}
	if err := checkPath(file); err != nil {
		return sandboxPath{}, false, err
	}
	return sandboxPath{ref, path.Clean(file)}, true, nil
}

// checkPath returns Invalid unless file can be a path in a sandbox: it must be absolute and contain no zero byte.
func checkPath(file string) error {
	if !path.IsAbs(file) || strings.ContainsRune(file, 0) {
		return caisson.Invalidf("path", "%.80q is not an absolute path inside the sandbox", file)
	}
	return nil
}

// requireSandboxPath parses SANDBOX:PATH. It returns Invalid if s is a path of this machine.
func requireSandboxPath(s string) (sandboxPath, error) {
	p, ok, err := parseSandboxPath(s)
	if err == nil && !ok {
		err = caisson.Invalidf("path", "%.80q is not SANDBOX:PATH", s)
	}
	return p, err
}

// fileArg is the argument that identifies a file in a sandbox.
type fileArg struct {
	Path string `arg:"" name:"sandbox:path" help:"Absolute path inside." complete:"sandbox"`
}

// ProvidePath parses the argument SANDBOX:PATH.
func (f *fileArg) ProvidePath() (sandboxPath, error) { return requireSandboxPath(f.Path) }

// filesLsCmd lists a directory.
type filesLsCmd struct{ fileArg }

func (c *filesLsCmd) Help() string { return examples("caisson sandbox files ls web:/etc") }

func (c *filesLsCmd) Run(ctx context.Context, a *app, p sandboxPath, api api) error {
	return asList(a, []column[caisson.FileInfo]{
		{name: "TYPE", value: func(f caisson.FileInfo) string { return f.Type }},
		{name: "MODE", value: func(f caisson.FileInfo) string { return f.Mode }},
		{name: "OWNER", value: func(f caisson.FileInfo) string { return strconv.Itoa(f.UID) + ":" + strconv.Itoa(f.GID) }},
		{name: "SIZE", value: func(f caisson.FileInfo) string { return strconv.FormatInt(f.Size, 10) }},
		{name: "MODIFIED", value: func(f caisson.FileInfo) string { return formatTime(f.ModTime) }},
		{name: "NAME", id: func(f caisson.FileInfo) string { return f.Name }, value: func(f caisson.FileInfo) string {
			if f.Type == "symlink" {
				return f.Name + " -> " + f.Target
			}
			return f.Name
		}},
	})(api.ListFiles(ctx, p.sandbox, p.path))
}

// filesCatCmd prints a file.
type filesCatCmd struct {
	fileArg
	Offset int64        `help:"Start at this offset." placeholder:"BYTES"`
	Limit  caisson.Size `positive:"" help:"At most this much." placeholder:"SIZE"`
}

func (c *filesCatCmd) Help() string {
	return examples("caisson sandbox files cat web:/etc/os-release", "caisson sandbox files cat --limit 1M web:/var/log/app.log")
}

// ProvidePath checks that --offset is not negative, and parses the argument SANDBOX:PATH.
func (c *filesCatCmd) ProvidePath() (sandboxPath, error) {
	if c.Offset < 0 {
		return sandboxPath{}, caisson.Invalidf("offset", "%d is negative", c.Offset)
	}
	return c.fileArg.ProvidePath()
}

func (c *filesCatCmd) Run(ctx context.Context, a *app, p sandboxPath, api api) error {
	return asLog(a)(api.ReadFile(ctx, p.sandbox, p.path, c.Offset, int64(c.Limit)))
}

// filesWriteCmd writes a file.
type filesWriteCmd struct {
	fileArg
	Mode string `help:"Permission bits in octal; the default is those of the replaced file, or 0644." placeholder:"MODE"`
}

func (c *filesWriteCmd) Help() string {
	return examples("caisson sandbox files write web:/etc/motd < motd", "echo 1 | caisson sandbox files write --mode 0600 web:/root/x")
}

// ProvideMode parses the permission bits; it returns 0 if the flag was not given.
func (c *filesWriteCmd) ProvideMode() (uint32, error) {
	if c.Mode == "" {
		return 0, nil
	}
	mode, err := strconv.ParseUint(c.Mode, 8, 12)
	if err != nil {
		return 0, caisson.Invalidf("mode", "%.40q is not a mode in octal, like 0644", c.Mode)
	}
	return uint32(mode), nil
}

func (c *filesWriteCmd) Run(ctx context.Context, a *app, mode uint32, p sandboxPath, api api) error {
	f, err := api.WriteFile(ctx, p.sandbox, p.path, mode, a.in)
	if err != nil || a.globals.Output == "table" {
		return err
	}
	return a.encode(f)
}

// filesStatCmd describes a file.
type filesStatCmd struct {
	Path string `arg:"" name:"sandbox:path" help:"Absolute path inside; a symlink is not followed." complete:"sandbox"`
}

func (c *filesStatCmd) Help() string { return examples("caisson sandbox files stat web:/etc/passwd") }

// ProvidePath parses the argument SANDBOX:PATH.
func (c *filesStatCmd) ProvidePath() (sandboxPath, error) { return requireSandboxPath(c.Path) }

func (c *filesStatCmd) Run(ctx context.Context, a *app, p sandboxPath, api api) error {
	path := func(f *caisson.FileInfo) string { return f.Path }
	return asOne(a, path, func(f *caisson.FileInfo) [][2]string {
		return [][2]string{
			{"Path", f.Path}, {"Type", f.Type}, {"Target", f.Target}, {"Size", strconv.FormatInt(f.Size, 10)}, {"Mode", f.Mode},
			{"Owner", fmt.Sprintf("%d:%d", f.UID, f.GID)}, {"Modified", formatTime(f.ModTime)},
		}
	})(api.StatFile(ctx, p.sandbox, p.path))
}

// filesMkdirCmd creates a directory in a sandbox.
type filesMkdirCmd struct {
	fileArg
	Parents bool `help:"Also create missing parents, and do not fail if it exists." short:"p"`
}

func (c *filesMkdirCmd) Help() string { return examples("caisson sandbox files mkdir -p web:/srv/a/b") }

func (c *filesMkdirCmd) Run(ctx context.Context, a *app, p sandboxPath, api api) error {
	return api.MakeDir(ctx, p.sandbox, p.path, c.Parents)
}

// filesMvCmd moves a file within a sandbox.
type filesMvCmd struct {
	From string `arg:"" name:"sandbox:path" help:"Absolute path inside." complete:"sandbox"`
	To   string `arg:"" name:"path" help:"New path in the same sandbox; the prefix SANDBOX: is optional."`
}

func (c *filesMvCmd) Help() string { return examples("caisson sandbox files mv web:/srv/a /srv/b") }

// ProvidePaths parses the arguments, which must be paths in the same sandbox.
func (c *filesMvCmd) ProvidePaths() (places [2]sandboxPath, err error) {
	from, err := requireSandboxPath(c.From)
	if err != nil {
		return places, err
	}
	to, ok, err := parseSandboxPath(c.To)
	switch {
	case err != nil:
		return places, err
	case ok && to.sandbox != from.sandbox:
		return places, caisson.Invalidf("path", "cannot move between sandboxes; use cp twice")
	case !ok:
		to, err = sandboxPath{from.sandbox, path.Clean(c.To)}, checkPath(c.To)
	}
	return [2]sandboxPath{from, to}, err
}

func (c *filesMvCmd) Run(ctx context.Context, a *app, places [2]sandboxPath, api api) error {
	return api.MoveFile(ctx, places[0].sandbox, places[0].path, places[1].path)
}

// filesRmCmd removes files in sandboxes.
type filesRmCmd struct {
	Path      []string `arg:"" name:"sandbox:path" help:"Absolute paths inside." complete:"sandbox"`
	Recursive bool     `help:"Directories with everything in them." short:"r"`
}

func (c *filesRmCmd) Help() string { return examples("caisson sandbox files rm -r web:/srv/a") }

// ProvidePaths parses the arguments SANDBOX:PATH. Kong calls methods with a name of the form Provide… to get the parameters of
// Run that have the types of their results.
func (c *filesRmCmd) ProvidePaths() (places []sandboxPath, err error) {
	for _, s := range c.Path {
		p, err := requireSandboxPath(s)
		if err != nil {
			return nil, err
		}
		places = append(places, p)
	}
	return places, nil
}

func (c *filesRmCmd) Run(ctx context.Context, places []sandboxPath, api api) error {
	for _, p := range places {
		if err := api.RemoveFile(ctx, p.sandbox, p.path, c.Recursive); err != nil {
			return err
		}
	}
	return nil
}

// filesWatchCmd prints changes of files in a directory of a sandbox as they happen.
type filesWatchCmd struct {
	fileArg
	Recursive bool `help:"Also watch directories below." short:"r"`
	Count     int  `help:"Exit after this number of events." short:"n" placeholder:"N"`
}

func (c *filesWatchCmd) Help() string { return examples("caisson sandbox files watch -r web:/srv") }

func (c *filesWatchCmd) Run(ctx context.Context, a *app, p sandboxPath, api api) error {
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	events, err := api.WatchFiles(watch, p.sandbox, p.path, c.Recursive)
	if err != nil {
		return err
	}
	n := 0
	for e := range events {
		if a.globals.Output == "table" {
			_, err = fmt.Fprintf(a.out, "%-8s %s\n", safetext.Escape(e.Op), safetext.Escape(e.Path))
		} else {
			err = a.encodeLine(e)
		}
		if err != nil {
			return err
		}
		if n++; n == c.Count {
			return nil
		}
	}
	return ctx.Err()
}
