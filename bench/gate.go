package bench

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/worker"
)

// The tree of files for the benchmarks of the gate.
const (
	treeFiles   = 100_000 // Number of files.
	treeChanges = 1_000   // Number of files that changeScript changes.
	treeOwner   = 1000    // User and group of the files: an ordinary user's.
)

// changeScript is a shell script that changes every hundredth file of the tree below the current directory: it removes one
// tenth of these files, renames another tenth and appends to the rest.
const changeScript = `for i in $(seq 0 100 99999); do
	f=d$((i / 1000))/f$i
	case $((i / 100 % 10)) in 0) rm $f;; 1) mv $f $f.moved;; *) echo more >> $f;; esac
done`

// makeTree writes the tree to dir: directories d0 to d99 with 1000 small files in each.
func makeTree(dir string) error {
	for i := range treeFiles {
		sub := filepath.Join(dir, "d"+strconv.Itoa(i/1000))
		if i%1000 == 0 {
			if err := os.MkdirAll(sub, 0o755); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(sub, "f"+strconv.Itoa(i)), fmt.Appendf(nil, "this is the content\nof file %d\nin three lines\n", i), 0o644); err != nil {
			return err
		}
	}
	return filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(p, treeOwner, treeOwner))
	})
}

// git runs git in dir without the user's and the system's configuration.
func git(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-c", "safe.directory=*", "-c", "user.name=bench", "-c", "user.email=bench@example.org", "-C", dir}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null"}
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("git %v: %w\n%.400s", args, err, out)
	}
	return nil
}

// gateDiff compares computing the changes of a workspace, including the checks of the gate, with git's status of the same tree
// after the same changes, and with rsync's comparison of both trees.
func (s *suite) gateDiff(ctx context.Context) (err error) {
	host, repo := filepath.Join(s.Dir, "gate", "host"), filepath.Join(s.Dir, "gate", "repo")
	if err := errors.Join(makeTree(host), makeTree(repo), os.Chmod(filepath.Dir(host), 0o755)); err != nil {
		return err
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"commit", "-q", "-m", "tree"}} {
		if err := git(ctx, repo, args...); err != nil {
			return err
		}
	}
	dir, err := os.Open(host)
	if err != nil {
		return err
	}
	sb, err := s.api.Create(ctx, caisson.CreateRequest{Workspace: &caisson.WorkspaceRequest{Source: host, Directory: dir}})
	if err != nil {
		return err
	}
	id := string(sb.ID)
	if err := s.execute(ctx, id, "sh", "-c", "cd /workspace && "+changeScript); err != nil {
		return err
	}
	script := exec.CommandContext(ctx, "sh", "-c", changeScript)
	script.Dir = repo
	if out, err := script.CombinedOutput(); err != nil {
		return fmt.Errorf("change the tree: %w: %.400s", err, out)
	}
	found := 0
	sides := []operation{
		{do: func(ctx context.Context) error {
			d, err := s.api.Diff(ctx, id, caisson.DiffRequest{})
			if err == nil {
				found = len(d.Changes)
			}
			return err
		}},
		{do: func(ctx context.Context) error { return git(ctx, repo, "status", "--porcelain") }},
	}
	if _, err := exec.LookPath("rsync"); err == nil {
		sides = append(sides, operation{do: func(ctx context.Context) error {
			return exec.CommandContext(ctx, "rsync", "-rlpn", "--size-only", "--delete", "--exclude=.git", repo+"/", host+"/").Run()
		}})
	}
	all, err := compare(ctx, max(s.N/2, 3), sides...)
	if err != nil {
		return err
	}
	if found != treeChanges {
		return fmt.Errorf("the diff has %d changes, not %d", found, treeChanges)
	}
	s.add(newRow("gate.diff", "ms", all[0], "git status", all[1]).under(1000))
	if len(all) > 2 {
		s.add(newRow("gate.diff.rsync", "ms", all[0], "rsync -n --size-only", all[2]))
	}
	return s.api.Remove(ctx, id)
}

// gateMount compares creating a sandbox with a workspace with creating one without a workspace plus a search of the directory for
// hidden files. The difference is the cost of the mount. gateMount measures an empty directory and one with treeFiles files.
func (s *suite) gateMount(ctx context.Context) error {
	runner, err := worker.New(worker.Config{Exe: filepath.Join(s.Bin, "caisson-worker"), UIDBase: caisson.LayerUIDBase, WorkUID: worker.DefaultUID})
	if err != nil {
		return err
	}
	host := filepath.Join(s.Dir, "gate", "small")
	if err := os.MkdirAll(host, 0o755); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(filepath.Dir(host), 0o755), os.Chown(host, treeOwner, treeOwner)); err != nil {
		return err
	}
	if err := s.mount(ctx, "gate.mount", host, runner, s.N); err != nil {
		return err
	}
	host = filepath.Join(s.Dir, "gate", "large")
	if err := makeTree(host); err != nil {
		return err
	}
	return s.mount(ctx, "gate.mount.large", host, runner, max(s.N/2, 3))
}

// mount adds the rows of the benchmark gateMount for the directory host: row, with the time to create a sandbox with host as
// workspace and run a process in it, and row+".scan", with the time of a worker job's search for hidden files, as in the daemon.
func (s *suite) mount(ctx context.Context, row, host string, runner *worker.Runner, n int) error {
	scan := func(ctx context.Context) error {
		dir, err := os.Open(host)
		if err != nil {
			return err
		}
		defer dir.Close()
		manifest, err := os.Create(filepath.Join(s.Dir, "gate", "manifest"))
		if err != nil {
			return err
		}
		defer manifest.Close()
		_, err = baseline.RunScan(ctx, runner, dir, baseline.DefaultHidden(), nil, manifest)
		return err
	}
	var with, without string
	all, err := compare(ctx, n,
		operation{
			do: func(ctx context.Context) error {
				dir, err := os.Open(host)
				if err != nil {
					return err
				}
				sb, err := s.api.Create(ctx, caisson.CreateRequest{Workspace: &caisson.WorkspaceRequest{Source: host, Directory: dir}})
				if err != nil {
					return err
				}
				with = string(sb.ID)
				return s.exec(ctx, with)
			},
			after: func(ctx context.Context) error { return s.api.Remove(ctx, with) },
		},
		operation{
			do: func(ctx context.Context) (err error) {
				if err := scan(ctx); err != nil {
					return err
				}
				if without, err = s.create(ctx); err != nil {
					return err
				}
				return s.exec(ctx, without)
			},
			after: func(ctx context.Context) error { return s.api.Remove(ctx, without) },
		},
		operation{do: scan},
	)
	if err != nil {
		return err
	}
	s.add(newRow(row, "ms", all[0], "the scan, and the same without a workspace", all[1]).atMostOver(20))
	s.add(newRow(row+".scan", "ms", all[2], "", nil))
	return nil
}
