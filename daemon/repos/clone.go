package repos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
)

// cloneTime is the timeout of a clone.
const cloneTime = 30 * time.Minute

// Caisson clones a repository into a sandbox without git's protocol: a view is one pack with an index, made by git on the host,
// and both files are copied into the sandbox. With git's protocol, git in the sandbox would unpack every object to make the same
// index again, which takes most of the time of a clone.
//
// A view has exactly the objects that the sandbox may fetch, so a copy of its pack gives the sandbox no other objects.

// initScript is a shell script that creates an empty git repository for a clone. It excludes files that the directory has
// already, such as the configuration of agents, from commits.
const initScript = `set -eu
dir=$1 url=$2 name=$3 email=$4 format=$5
if ! command -v git >/dev/null 2>&1; then echo "the sandbox's image has no git; use one that has it" >&2; exit 1; fi
mkdir -p "$dir"
cd "$dir"
if [ "$format" = sha1 ]; then git init -q; else git init -q --object-format="$format"; fi
git ls-files -o --directory >>.git/info/exclude
git config remote.origin.url "$url"
git config remote.origin.fetch '+refs/heads/*:refs/remotes/origin/*'
git config push.default current
git config user.name "$name"
git config user.email "$email"
mkdir -p .git/objects/pack
`

// keepScript is a shell script that writes its standard input to a file in the clone's directory of packs, atomically.
const keepScript = `set -eu
cd "$1/.git/objects/pack"
cat >"$2.part"
mv "$2.part" "$2"
`

// checkoutScript is a shell script that creates the refs that its standard input lists, and checks out a branch.
const checkoutScript = `set -eu
dir=$1 start=$2 branch=$3
cd "$dir"
git update-ref --stdin
git symbolic-ref refs/remotes/origin/HEAD "refs/remotes/origin/$start"
git checkout -q --no-track -B "$branch" "refs/remotes/origin/$start"
`

// clone makes dir in a sandbox a clone of a repository, with branch start checked out as the grant's branch.
func (x *sandboxGit) clone(ctx context.Context, r *caisson.Repo, g *grant, dir, start string) error {
	if err := x.cloneInto(ctx, r, g, dir, start); err != nil {
		return caisson.Wrap(err, caisson.Unavailable, "the repository %s could not be cloned: %s", g.Repo, caisson.MessageOf(err))
	}
	return nil
}

// cloneInto makes dir a clone, as clone promises. Its errors do not name the repository; clone adds the name.
func (x *sandboxGit) cloneInto(ctx context.Context, r *caisson.Repo, g *grant, dir, start string) error {
	ctx, cancel := context.WithTimeout(ctx, cloneTime)
	defer cancel()
	format := "sha1"
	if len(g.From) == 64 {
		format = "sha256"
	}
	name, email := author(r)
	if err := x.run(ctx, g, cloneTime, initScript, nil, dir, relayURL+g.Repo, name, email, format); err != nil {
		return err
	}
	if err := x.copyPack(ctx, g, dir); err != nil {
		return err
	}
	var refs strings.Builder
	for _, ref := range g.Refs {
		as := ref.Name
		if branch, ok := strings.CutPrefix(as, headsPrefix); ok {
			as = "refs/remotes/origin/" + branch
		}
		fmt.Fprintf(&refs, "update %s %s\n", as, ref.Commit)
	}
	return x.run(ctx, g, cloneTime, checkoutScript, strings.NewReader(refs.String()), dir, start, g.Branch)
}

// packFile matches the names of packs and of their indexes. Other files in the directory of packs are not copied.
var packFile = regexp.MustCompile(`^pack-[0-9a-f]{40,64}\.(pack|idx)$`)

// copyPack copies the pack of the grant's view, and its index, to the clone at dir in the sandbox. The index is written last,
// because git uses a pack as soon as it has an index.
func (x *sandboxGit) copyPack(ctx context.Context, g *grant, dir string) error {
	packs, err := x.dirs.open(g.Account, g.Repo, viewsDir, g.View, "objects", "pack")
	if err != nil {
		return err
	}
	defer packs.Close()
	entries, err := packs.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, ending := range []string{".pack", ".idx"} {
		for _, name := range entries {
			if !packFile.MatchString(name) || !strings.HasSuffix(name, ending) {
				continue
			}
			if err := x.copyFile(ctx, g, packs, name, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyFile copies the file called name from packs, a view's directory of packs, to that of the clone at dir in the sandbox.
func (x *sandboxGit) copyFile(ctx context.Context, g *grant, packs *os.File, name, dir string) error {
	// O_NONBLOCK: opening a FIFO or a device must not block.
	fd, err := unix.Openat(int(packs.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("openat", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return errors.New(name + " is not a regular file")
	}
	return x.run(ctx, g, cloneTime, keepScript, io.LimitReader(f, st.Size()), dir, name)
}
