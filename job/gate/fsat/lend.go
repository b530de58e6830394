package fsat

import (
	"context"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/job/worker"
)

// ReadLimits are the limits of worker jobs that read directory trees.
var ReadLimits = worker.Limits{Time: 10 * time.Minute, CPU: 10 * time.Minute, Memory: 4 << 30}

// Lend runs a job with the rights of the user who owns the job's root directory, and allows it to write to dirs. While the job
// runs, that user owns dirs and the files index and pack in them; after it, the user of this process owns them again. Other
// processes of that user cannot open dirs, because the user has no access to the directories above them.
func Lend[Args, Reply any](
	ctx context.Context, run worker.Starter, job worker.Job[Args, Reply], args Args, given worker.RunInput, dirs ...*os.File,
) (reply Reply, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(given.Root.Fd()), &st); err != nil {
		return reply, os.NewSyscallError("fstat", err)
	}
	for _, dir := range dirs {
		if err := chown(dir, int(st.Uid), int(st.Gid)); err != nil {
			return reply, err
		}
	}
	reply, err = job.Run(ctx, run, args, given)
	for _, dir := range dirs {
		err = errors.Join(err, chown(dir, os.Geteuid(), os.Getegid()))
	}
	return reply, err
}

// chown changes the owner of a directory, and of the files index and pack in it, which a job may rewrite if they exist.
func chown(dir *os.File, uid, gid int) error {
	if err := unix.Fchmod(int(dir.Fd()), 0o755); err != nil {
		return os.NewSyscallError("fchmod", err)
	}
	if err := unix.Fchown(int(dir.Fd()), uid, gid); err != nil {
		return os.NewSyscallError("fchown", err)
	}
	for _, name := range []string{"index", "pack"} {
		err := unix.Fchownat(int(dir.Fd()), name, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
		if err != nil && err != unix.ENOENT {
			return os.NewSyscallError("fchownat", err)
		}
	}
	return nil
}
