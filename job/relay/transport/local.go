package transport

import (
	"context"
	"errors"
	"io"
	"os/exec"

	"github.com/caisson-dev/caisson"
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
	cmd.Env = withoutVar(cmd.Env, "GIT_DIR") // git detects whether there is a work tree
	said := &git.OutputTail{Limit: git.MaxGitErrors}
	sent := &countingWriter{w: out}
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
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() && sent.n == 0 {
		return caisson.Errorf(caisson.NotFound, "the directory is not a repository that can be used: %s", git.LastLines(said.String(), 200))
	}
	return git.GitError(service, said, err)
}

// countingWriter counts the bytes written through it.
type countingWriter struct {
	w io.Writer
	n int64
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// withoutVar returns env without the variable name.
func withoutVar(env []string, name string) []string {
	var rest []string
	for _, e := range env {
		if len(e) <= len(name) || e[:len(name)+1] != name+"=" {
			rest = append(rest, e)
		}
	}
	return rest
}
