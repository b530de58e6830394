package egress

import (
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// presets are the lists of destinations that rules may name, sorted by name. A list contains only the hosts from which a tool
// such as npm reads. Some of these hosts also accept uploads with a key for them: a preset prevents uploads only if there is no
// such key in the sandbox.
var presets = []caisson.Preset{
	{
		Name: "cargo", Description: "Rust crates: the index and downloads of crates.io", Ports: web,
		Hosts: []string{"index.crates.io", "static.crates.io", "crates.io"},
	},
	{
		Name: "debian", Description: "Debian packages and security updates", Ports: plainWeb,
		Hosts: []string{"deb.debian.org", "security.debian.org"},
	},
	{
		Name: "github-read", Description: "GitHub: clones, archives, raw files, releases and the API", Ports: web,
		Hosts: []string{
			"github.com", "codeload.github.com", "raw.githubusercontent.com", "objects.githubusercontent.com",
			"release-assets.githubusercontent.com", "api.github.com",
		},
	},
	{
		Name: "go", Description: "Go modules: the proxy and the checksum database", Ports: web,
		Hosts: []string{"proxy.golang.org", "sum.golang.org"},
	},
	{
		Name: "npm", Description: "npm packages of the public registry", Ports: web,
		Hosts: []string{"registry.npmjs.org"},
	},
	{
		Name: "pypi", Description: "Python packages: the index and its files", Ports: web,
		Hosts: []string{"pypi.org", "files.pythonhosted.org"},
	},
}

var (
	web      = []caisson.PortRange{{First: 443, Last: 443}}                        // HTTPS only
	plainWeb = []caisson.PortRange{{First: 80, Last: 80}, {First: 443, Last: 443}} // HTTP and HTTPS
)

// Presets returns the presets, sorted by name. The caller may modify the result.
func Presets() []caisson.Preset {
	out := slices.Clone(presets)
	for i := range out {
		out[i].Hosts, out[i].Ports = slices.Clone(out[i].Hosts), slices.Clone(out[i].Ports)
	}
	return out
}

func findPreset(name string) (caisson.Preset, bool) {
	i, ok := slices.BinarySearchFunc(presets, name, func(p caisson.Preset, name string) int { return strings.Compare(p.Name, name) })
	if !ok {
		return caisson.Preset{}, false
	}
	return presets[i], true
}

func presetNames() []string {
	names := make([]string, len(presets))
	for i, p := range presets {
		names[i] = p.Name
	}
	return names
}
