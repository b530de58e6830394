package main

import (
	"runtime"
	"runtime/debug"
)

// release is the version of this build. The Makefile sets it with the linker's flag -X. If it is empty, the version is that of
// the main module in the build information.
var release string

// versionCmd prints the version.
type versionCmd struct{}

func (c *versionCmd) Help() string { return examples("caisson version", "caisson version -o json") }

// version describes the build of this binary; it is the output of the command version with -o json.
type version struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`   // commit of the source
	Modified bool   `json:"modified,omitempty"` // the source had changes that were not committed
	GVisor   string `json:"gvisor,omitempty"`   // version of the gVisor module
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// buildVersion describes this binary with Go's build information, in which the variable release, if set, replaces the version.
func buildVersion() version {
	v := version{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if v.Version = info.Main.Version; release != "" {
		v.Version = release
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Commit = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	for _, d := range info.Deps {
		if d.Path == "gvisor.dev/gvisor" {
			v.GVisor = d.Version
		}
	}
	return v
}

func (c *versionCmd) Run(a *app) error {
	v := buildVersion()
	return printOne(a, v, v.Version, [][2]string{
		{"Version", v.Version},
		{"Commit", v.Commit},
		{"gVisor", v.GVisor},
		{"Go", v.Go},
		{"Platform", v.Platform},
	})
}
