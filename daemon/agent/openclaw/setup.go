package openclaw

import (
	"embed"
	"path"
	"time"

	"github.com/caisson-dev/caisson"
)

//go:embed npm/package.json npm/package-lock.json
var npm embed.FS // the files from which npm installs OpenClaw

//go:embed preload.cjs
var preload string // the script that every Node process of OpenClaw loads first

// packageFiles are the names of the files from which npm installs OpenClaw.
var packageFiles = []string{"package.json", "package-lock.json"}

// Registry is the npm registry, the only host to which the installation of OpenClaw connects.
const Registry = "registry.npmjs.org"

// Packages returns the files from which npm installs OpenClaw: the names and versions of packages, and a lock file with the
// digest of each. They include Node and npm, so that an image needs neither.
func Packages() map[string]string {
	files := map[string]string{}
	for _, name := range packageFiles {
		b, err := npm.ReadFile("npm/" + name)
		if err != nil {
			panic("openclaw: " + err.Error()) // cannot happen: the files are embedded in the binary
		}
		files[name] = string(b)
	}
	return files
}

// Preload returns the scripts that Node loads before OpenClaw, by path.
func Preload() map[string]string { return map[string]string{preloadFile: preload} }

// BuildPolicy returns the egress policy for the installation of OpenClaw in a template: it allows only HTTPS to the npm registry.
func BuildPolicy() caisson.Policy {
	return caisson.Policy{Rules: []caisson.Rule{{
		Action: caisson.Allow, Host: Registry, Ports: []caisson.PortRange{{First: 443, Last: 443}}, Note: "OpenClaw is installed from here",
	}}}
}

// Steps returns the set-up steps that install OpenClaw in any image with glibc and CA certificates. program is the path of the
// program in the sandbox that performs the installation with its command install.
func Steps(program string) []caisson.SetupStep {
	var files []caisson.SeedFile
	for _, name := range packageFiles {
		files = append(files, caisson.SeedFile{Path: path.Join(Install, name), Data: Packages()[name]})
	}
	files = append(files, caisson.SeedFile{Path: preloadFile, Data: preload})
	return []caisson.SetupStep{{
		Files:   files,
		Run:     []string{program, "install", "--dir", Install},
		Timeout: caisson.Duration(15 * time.Minute),
	}}
}
