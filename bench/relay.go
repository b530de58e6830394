package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// The size of the repository for the benchmark of the relay: the number of its files, and the size of each file in bytes. The
// files are incompressible. The duration of a clone grows with the number of files.
const (
	repoFiles    = 16       // Number of files.
	repoFileSize = 16 << 20 // Bytes of each file.
)

// makeRepo creates the bare repository bare. work is a new directory for its work tree.
func makeRepo(ctx context.Context, work, bare string) error {
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	for i := range repoFiles {
		f, err := os.Create(filepath.Join(work, fmt.Sprintf("f%02d.bin", i)))
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, rand.Reader, repoFileSize)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	for _, args := range [][]string{
		{"init", "-q", "-b", "main"}, {"-c", "core.compression=0", "add", "."}, {"-c", "core.compression=0", "commit", "-q", "-m", "files"},
		{"clone", "-q", "--bare", "--local", work, bare}, // Over git's protocol, delta compression would take an hour.
	} {
		if err := git(ctx, work, args...); err != nil {
			return err
		}
	}
	return git(ctx, bare, "-c", "pack.compression=0", "-c", "pack.window=0", "repack", "-a", "-d", "-q")
}

// relayClone compares clones of 256 MiB into a sandbox, from the relay's mirror, with clones by git on the host. A clone that the
// relay makes is compared with git's local clone, and a clone that git makes in the sandbox with a clone over git's protocol.
func (s *suite) relayClone(ctx context.Context) error {
	dir := filepath.Join(s.Dir, "relay")
	work, bare := filepath.Join(dir, "work"), filepath.Join(dir, "bare.git")
	if err := makeRepo(ctx, work, bare); err != nil {
		return err
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.RemoveAll(work)); err != nil {
		return err
	}
	if _, err := s.api.AddRepo(ctx, caisson.Repo{Name: "bench", URL: bare}); err != nil {
		return err
	}
	sb, err := s.api.Create(ctx, caisson.CreateRequest{Resources: caisson.Resources{Disk: 8 << 30}})
	if err != nil {
		return err
	}
	id := string(sb.ID)
	// The first grant makes the relay fetch the repository, and prepare the files for clones by the relay and by git.
	if _, err := s.api.GrantRepo(ctx, id, caisson.RepoRequest{Name: "bench"}, "/first"); err != nil {
		return err
	}
	local := filepath.Join(dir, "local")
	var made string
	all, err := compare(ctx, max(s.N/4, 3),
		operation{
			do: func(ctx context.Context) error {
				sb, err := s.api.Create(ctx, caisson.CreateRequest{Resources: caisson.Resources{Disk: 8 << 30}})
				if err == nil {
					made = string(sb.ID)
					_, err = s.api.GrantRepo(ctx, made, caisson.RepoRequest{Name: "bench"}, "/clone")
				}
				return err
			},
			after: func(ctx context.Context) error { return s.api.Remove(ctx, made) },
		},
		operation{
			do: func(ctx context.Context) error {
				return s.execute(ctx, id, "git", "clone", "-q", "http://git.caisson.internal/bench", "/clone")
			},
			after: func(ctx context.Context) error { return s.execute(ctx, id, "rm", "-rf", "/clone") },
		},
		operation{
			do: func(ctx context.Context) error {
				return git(ctx, dir, "clone", "-q", "--local", "--no-hardlinks", bare, local)
			},
			after: func(context.Context) error { return os.RemoveAll(local) },
		},
		operation{
			do: func(ctx context.Context) error {
				return git(ctx, dir, "clone", "-q", "--no-local", bare, local)
			},
			after: func(context.Context) error { return os.RemoveAll(local) },
		},
	)
	if err != nil {
		return err
	}
	s.add(newRow("relay.clone", "ms", all[0], "git clone --local --no-hardlinks", all[2]))
	s.add(newRow("relay.clone.protocol", "ms", all[1], "git clone --no-local", all[3]))
	return errors.Join(s.api.Remove(ctx, id), os.RemoveAll(dir))
}
