package transport

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/job/relay/git"
	"github.com/caisson-dev/caisson/job/relay/remote"
)

// runLocal runs a git program, [remote.UploadPack] or [remote.ReceivePack], on the repository in dir, bare or not. It reads
// from in and writes to out. It runs in a job that has no other files. Hooks of the repository do not run.
func runLocal(ctx context.Context, dir, service, protocol string, in io.Reader, out io.Writer) error {
	var args []string
	switch service {
	case remote.UploadPack:
		args = []string{"upload-pack", "--", dir}
	case remote.ReceivePack:
		args = []string{"receive-pack", "--", dir}
	default:
		return caisson.Errorf(caisson.Internal, "%.40q is no program of git's", service)
	}
	if !remote.ValidProtocol(protocol) {
		return caisson.Invalidf("protocol", "%.40q is no version of git's protocol", protocol)
	}
	cmd := git.Repo{Dir: dir, Env: []string{"GIT_PROTOCOL=" + protocol}}.Git(ctx, args...)
	// GIT_DIR is removed, so that git detects whether the repository is bare.
	cmd.Env = slices.DeleteFunc(cmd.Env, func(kv string) bool { return strings.HasPrefix(kv, "GIT_DIR=") })
	said := &excerpt.Tail{Limit: git.MaxGitErrors}
	sent := &writeDetector{w: out}
	cmd.Stdout, cmd.Stderr = sent, said
	// cmd.Stdin is not used: when the program refuses the request, it exits before its input ends.
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() {
		io.Copy(stdin, in)
		stdin.Close()
	}()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() && !sent.wrote {
		return caisson.Errorf(caisson.NotFound, "the directory is not a repository that can be used: %s", git.ErrorLines(said.String(), 200))
	}
	return git.GitError(service, said, err)
}
