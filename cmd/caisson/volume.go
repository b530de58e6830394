package main

import (
	"context"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// volumeCmd contains the commands that manage volumes.
type volumeCmd struct {
	Create volumeCreateCmd `cmd:"" help:"Create an empty volume."`
	Ls     volumeLsCmd     `cmd:"" help:"List volumes."`
	Show   volumeShowCmd   `cmd:"" help:"Show everything about a volume, and count what is in it."`
	Rm     volumeRmCmd     `cmd:"" help:"Remove volumes with all that is in them."`
}

func volumeName(v *caisson.Volume) string { return v.Name }

func volumeID(v *caisson.Volume) string { return string(v.ID) }

// volumeCreateCmd creates a volume.
type volumeCreateCmd struct {
	Name  string   `arg:"" help:"Name of the volume."`
	Label []string `help:"Add a label; may be repeated." short:"l" placeholder:"KEY=VALUE" sep:"none"`
}

func (c *volumeCreateCmd) Help() string {
	return `A volume is a directory that outlives sandboxes. It is attached to at most one sandbox, running or not. It need not be created first:
sandbox create --volume and run --volume make it if there is none of that name.

` + examples("caisson volume create data", "caisson volume create data -l team=a && caisson sandbox create --volume data:/srv/data",
		"caisson run caisson --volume data 'write down what you find'")
}

// ProvideRequest returns the request that the flags specify.
func (c *volumeCreateCmd) ProvideRequest() (req caisson.VolumeRequest, err error) {
	if err := caisson.CheckVolumeName("name", c.Name); err != nil {
		return req, err
	}
	req.Name = c.Name
	req.Labels, err = parseLabels(c.Label)
	return req, err
}

func (c *volumeCreateCmd) Run(ctx context.Context, a *app, req caisson.VolumeRequest, api api) error {
	return asDone(a, volumeName)(api.CreateVolume(ctx, req))
}

// volumeLsCmd lists volumes.
type volumeLsCmd struct{ labelFilter }

func (c *volumeLsCmd) Help() string {
	return "Sizes are those of the last count; volume show counts again.\n\n" +
		examples("caisson volume ls", "caisson volume ls -q", "caisson volume ls -l team=a -o json")
}

func (c *volumeLsCmd) Run(ctx context.Context, a *app, f caisson.Filter, api api) error {
	counted := func(value func(*caisson.Volume) string) func(*caisson.Volume) string {
		return func(v *caisson.Volume) string {
			if v.CountedAt.IsZero() {
				return ""
			}
			return value(v)
		}
	}
	return asList(a, []column[*caisson.Volume]{
		{name: "NAME", value: volumeName},
		{name: "SIZE", value: counted(func(v *caisson.Volume) string { return v.Bytes.String() })},
		{name: "FILES", value: counted(func(v *caisson.Volume) string { return strconv.FormatInt(v.Files, 10) })},
		{name: "SANDBOX", value: func(v *caisson.Volume) string { return string(v.Sandbox) }},
		{name: "USED", value: func(v *caisson.Volume) string { return ago(&v.UsedAt) }},
	})(allPages(ctx, f, volumeID, api.ListVolumes))
}

// volumeShowCmd shows one volume.
type volumeShowCmd struct {
	Volume string `arg:"" help:"Id or name." complete:"volume"`
}

func (c *volumeShowCmd) Help() string {
	return examples("caisson volume show data", "caisson volume show data -o json")
}

func (c *volumeShowCmd) Run(ctx context.Context, a *app, api api) error {
	return asOne(a, volumeName, volumeRows)(api.GetVolume(ctx, c.Volume))
}

// volumeRows returns the properties of a volume, as pairs of a name and a value.
func volumeRows(v *caisson.Volume) [][2]string {
	rows := [][2]string{{"ID", string(v.ID)}, {"Name", v.Name}, {"Account", v.Account}, {"Sandbox", string(v.Sandbox)}, {"Labels", formatPairs(v.Labels)}}
	if !v.CountedAt.IsZero() {
		rows = append(rows, [2]string{"Size", exactSize(v.Bytes)},
			[2]string{"Files", strconv.FormatInt(v.Files, 10)}, [2]string{"Counted", formatTime(v.CountedAt)})
	}
	return append(rows, [2]string{"Created", formatTime(v.CreatedAt)}, [2]string{"Used", formatTime(v.UsedAt)})
}

// volumeRmCmd removes volumes.
type volumeRmCmd struct {
	Volumes []string `arg:"" name:"volume" help:"Ids or names." complete:"volume"`
}

func (c *volumeRmCmd) Help() string {
	return "One that a sandbox has stays until the sandbox is removed.\n\n" + examples("caisson volume rm data", "caisson volume rm $(caisson volume ls -q -l team=a)")
}

func (c *volumeRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Volumes, api.RemoveVolume)
}

// namePattern matches names of volumes and repositories. It also matches ids of volumes, which can be used instead of names.
var namePattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,63}$`)

// parseNameTarget parses NAME[:TARGET], where NAME is the name of a volume or repository, and TARGET an absolute path. field is
// the name of the flag in errors.
func parseNameTarget(field, s string) (name, target string, err error) {
	name, target, ok := strings.Cut(s, ":")
	if ok { // a target with two slashes is the rest of an address such as https://host/name
		if clean := filepath.Clean(target); filepath.IsAbs(target) && !strings.HasPrefix(target, "//") && clean != "/" && !strings.ContainsRune(target, 0) {
			target = clean
		} else {
			return "", "", caisson.Invalidf(field, "%.80q is not NAME or NAME:DIR, with an absolute path below / inside the sandbox", s)
		}
	}
	if !namePattern.MatchString(name) {
		return "", "", caisson.Invalidf(field, "%.80q is not a name: use up to 64 lower-case letters, digits, dots, dashes and underscores, beginning with a letter or digit", name)
	}
	return name, target, nil
}

// volumeRequest returns the workspace request for the value of the flag --volume.
func volumeRequest(s string) (*caisson.WorkspaceRequest, error) {
	name, target, err := parseNameTarget("volume", s)
	if err != nil {
		return nil, err
	}
	return &caisson.WorkspaceRequest{Kind: caisson.WorkspaceVolume, Source: name, Target: target}, nil
}

// volumeOf returns the name of the volume that a run works in, or "" if there is none.
func volumeOf(r *caisson.Run) string {
	if r.Request.Kind != caisson.WorkspaceVolume {
		return ""
	}
	return r.Request.Source
}

// directoryOf returns the directory that a run works on, or "" if there is none.
func directoryOf(r *caisson.Run) string {
	if r.Request.Kind == caisson.WorkspaceVolume {
		return ""
	}
	return r.Request.Source
}
