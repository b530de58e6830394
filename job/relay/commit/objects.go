package commit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// Limits for reading objects.
const (
	MaxTreeObject   = 16 << 20 // bytes; about 300,000 tree entries
	MaxCommitObject = 1 << 20  // bytes of the headers and the message of a commit
	maxTreeCache    = 400_000  // tree entries in the cache
)

// errTooLarge is returned if an object is larger than the caller's limit, or a commit has too many changes.
var errTooLarge = errors.New("the object is too large")

// Objects reads objects of a repository through one git process. It is safe for concurrent use.
type Objects struct {
	repo git.Repo

	mu  sync.Mutex     // guards the process, err and the cache of trees
	cmd *exec.Cmd      // git cat-file --batch-command
	in  io.WriteCloser // standard input of cmd
	out *bufio.Reader  // standard output of cmd
	err error          // the first failure of the process; all later reads return it

	trees         map[string]*treeObject // cache, by object name
	cachedEntries int                    // number of entries in trees
}

// OpenObjects starts a git process; Close terminates it.
func OpenObjects(ctx context.Context, r git.Repo) (*Objects, error) {
	o := &Objects{repo: r, cmd: r.Git(ctx, "cat-file", "--batch-command"), trees: map[string]*treeObject{}}
	in, err := o.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := o.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := o.cmd.Start(); err != nil {
		return nil, caisson.Wrap(err, caisson.Internal, "git cannot be started")
	}
	o.in, o.out = in, bufio.NewReaderSize(out, 1<<16)
	return o, nil
}

// Close ends the git process. Later reads return an error.
func (o *Objects) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.in.Close()
	o.cmd.Process.Kill()
	o.cmd.Wait()
	if o.err == nil {
		o.err = errors.New("closed")
	}
}

// Read returns an object of type typ, of at most limit bytes. It returns a NotFound error if the object does not exist and
// errTooLarge if it is larger than limit.
func (o *Objects) Read(id, typ string, limit int64) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.readLocked(id, typ, limit)
}

// readLocked returns an object of type typ, of at most limit bytes. The caller must hold o.mu.
func (o *Objects) readLocked(id, typ string, limit int64) ([]byte, error) {
	if o.err != nil {
		return nil, o.err
	}
	if !git.ValidCommit(id) {
		return nil, caisson.Errorf(caisson.Invalid, "%.80q names no object", id)
	}
	got, size, err := o.query("info", id)
	if err != nil {
		return nil, err
	}
	if got != typ {
		return nil, caisson.Errorf(caisson.Invalid, "the object %s is a %s, not a %s", id, got, typ)
	}
	if size > limit {
		return nil, errTooLarge
	}
	if _, size, err = o.query("contents", id); err != nil {
		return nil, err
	}
	if size > limit {
		return nil, o.fail(errTooLarge)
	}
	data := make([]byte, size+1) // git writes a newline after the object
	if _, err := io.ReadFull(o.out, data); err != nil {
		return nil, o.fail(err)
	}
	return data[:size], nil
}

// query sends a command to git and reads the header line of the answer.
func (o *Objects) query(command, id string) (typ string, size int64, err error) {
	if _, err := fmt.Fprintf(o.in, "%s %s\n", command, id); err != nil {
		return "", 0, o.fail(err)
	}
	line, err := o.out.ReadSlice('\n')
	if err != nil {
		return "", 0, o.fail(err)
	}
	typ, size, err = parseInfo(string(line), id)
	if err != nil && caisson.KindOf(err) != caisson.NotFound {
		return "", 0, o.fail(err)
	}
	return typ, size, err
}

// fail records that the git process has failed with err, and returns the error for the caller.
func (o *Objects) fail(err error) error {
	o.err = caisson.Wrap(err, caisson.Internal, "git cannot read the objects of the repository")
	return o.err
}

// parseInfo parses a line of git cat-file about the object id: "<id> <type> <size>" or "<id> missing".
func parseInfo(line, id string) (typ string, size int64, err error) {
	f := strings.Fields(line)
	if len(f) == 2 && f[0] == id && f[1] == "missing" {
		return "", 0, caisson.Errorf(caisson.NotFound, "the object %s is not there", id)
	}
	if len(f) != 3 || f[0] != id {
		return "", 0, errors.New("git's description of an object is malformed")
	}
	size, err = strconv.ParseInt(f[2], 10, 64)
	if err != nil || size < 0 {
		return "", 0, errors.New("git's description of an object is malformed")
	}
	return f[1], size, nil
}

// sizes returns the sizes of objects, in the order of ids.
func (o *Objects) sizes(ctx context.Context, ids []string) ([]int64, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	out, err := o.repo.Output(ctx, strings.Join(ids, "\n")+"\n", "cat-file", "--batch-check")
	if err != nil {
		return nil, err
	}
	sizes := make([]int64, 0, len(ids))
	for line := range strings.Lines(string(out)) {
		if len(sizes) == len(ids) {
			return nil, caisson.Errorf(caisson.Internal, "git described more objects than were named")
		}
		_, size, err := parseInfo(line, ids[len(sizes)])
		if err != nil {
			return nil, err
		}
		sizes = append(sizes, size)
	}
	if len(sizes) != len(ids) {
		return nil, caisson.Errorf(caisson.Internal, "git described fewer objects than were named")
	}
	return sizes, nil
}

// tree returns a parsed tree; the id "" stands for the empty tree.
func (o *Objects) tree(id string) (*treeObject, error) {
	if id == "" {
		return &treeObject{}, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if t := o.trees[id]; t != nil {
		return t, nil
	}
	data, err := o.readLocked(id, "tree", MaxTreeObject)
	if err != nil {
		return nil, err
	}
	t, err := parseTree(data, len(id)/2)
	if err != nil {
		return nil, err
	}
	if o.cachedEntries += len(t.entries); o.cachedEntries > maxTreeCache {
		clear(o.trees)
		o.cachedEntries = len(t.entries)
	}
	o.trees[id] = t
	return t, nil
}

// mergeBases returns the merge bases of two commits.
func (o *Objects) mergeBases(ctx context.Context, a, b string) ([]string, error) {
	out, err := o.repo.Output(ctx, "", "merge-base", "--all", a, b)
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 1 && len(out) == 0 {
		return nil, nil
	}
	ids := strings.Fields(string(out))
	if err == nil && (len(ids) == 0 || slices.ContainsFunc(ids, func(id string) bool { return !git.ValidCommit(id) })) {
		err = caisson.Errorf(caisson.Internal, "git returned malformed information about commits")
	}
	return ids, err
}
