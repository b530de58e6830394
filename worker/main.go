package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/caisson-dev/caisson"
)

const argv0 = "caisson-worker"

// File descriptor numbers in a job's process.
const (
	requestFD = 0
	replyFD   = 1
	filesFD   = 3
)

// A Job is an entry of the table given to [Main].
type Job struct {
	Name string
	// Run does the work and returns the result, which is marshalled to JSON. It runs confined; ctx is never done, because a
	// cancelled job is killed.
	Run func(ctx context.Context, c *Call) (any, error)
}

// A Call is a running job's view of its request.
type Call struct {
	args  json.RawMessage
	files []*os.File
	input *os.File

	mu  sync.Mutex
	out *os.File
}

// Args decodes the request's arguments into v.
func (c *Call) Args(v any) error {
	if err := decode(c.args, v); err != nil {
		return caisson.Wrap(err, caisson.Internal, "arguments of a job")
	}
	return nil
}

// File returns the i-th descriptor of the request.
func (c *Call) File(i int) (*os.File, error) {
	if i < 0 || i >= len(c.files) {
		return nil, caisson.Errorf(caisson.Internal, "this job was given %d descriptors", len(c.files))
	}
	return c.files[i], nil
}

// Files returns the first n descriptors of the request.
func (c *Call) Files(n int) ([]*os.File, error) {
	if n > len(c.files) {
		return nil, caisson.Errorf(caisson.Internal, "this job was given %d descriptors", len(c.files))
	}
	return c.files[:n:n], nil
}

// Input returns a reader of the request's input; it is empty if the request has none.
func (c *Call) Input() io.Reader {
	if c.input == nil {
		return eof{}
	}
	return c.input
}

// Progress reports v to the parent. Jobs must call it rarely: a reply may have at most maxFrames lines.
func (c *Call) Progress(v any) {
	if raw, err := json.Marshal(v); err == nil {
		c.send(frame{Progress: raw})
	}
}

func (c *Call) send(f frame) error {
	line, err := json.Marshal(f)
	if err != nil {
		return err
	}
	if len(line) >= maxFrame {
		return errors.New("answer too long")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	_, err = c.out.Write(append(line, '\n'))
	return err
}

type eof struct{}

func (eof) Read([]byte) (int, error) { return 0, io.EOF }

// IsWorker reports whether this process was started to run a job. The binary's main, and TestMain of tests that run jobs, must
// call it first.
func IsWorker() bool { return len(os.Args) > 0 && os.Args[0] == argv0 }

// Main runs the job this process was started for, and exits. It confines the process before it uses any input of the job.
func Main(jobs ...Job) {
	if err := serve(jobs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func serve(jobs []Job) error {
	in := os.NewFile(requestFD, "request")
	requests := bufio.NewReader(in)
	line, err := readLine(requests, maxFrame)
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	var req call
	if err := decode(line, &req); err != nil {
		return fmt.Errorf("decode request: %w", err)
	}
	given := filesFD + req.Files
	c := &Call{args: req.Args, out: os.NewFile(replyFD, "reply")}
	if req.Input {
		c.input = os.NewFile(uintptr(given), "input")
		given++
	}
	rootFD := -1
	if req.Root {
		rootFD = given
		given++
	}
	if req.Programs != nil {
		given += len(req.Programs.Mounts)
	}
	for i := range req.Files {
		c.files = append(c.files, os.NewFile(uintptr(filesFD+i), fmt.Sprintf("file%d", i)))
	}
	if err := closeInherited(given); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	if err := confineSelf(req, given, rootFD); err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	go func() {
		// The parent keeps its end of the pipe open as long as it lives.
		io.Copy(io.Discard, requests)
		os.Exit(3)
	}()
	return run(jobs, req.Job, c)
}

func run(jobs []Job, name string, c *Call) error {
	for _, j := range jobs {
		if j.Name != name {
			continue
		}
		result, err := j.Run(context.Background(), c)
		if err != nil {
			return c.send(frame{Error: failureOf(err)})
		}
		raw, err := json.Marshal(result)
		if err != nil {
			return c.send(frame{Error: failureOf(err)})
		}
		return c.send(frame{Result: raw})
	}
	return c.send(frame{Error: failureOf(fmt.Errorf("no job %q in this binary", name))})
}
