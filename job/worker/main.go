package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// argv0 is the first argument of a job's process, by which IsWorker recognises it.
const argv0 = "caisson-worker"

// File descriptor numbers in a job's process.
const (
	requestFD = 0 // pipe with the request
	replyFD   = 1 // pipe for the reply
	filesFD   = 3 // the first of Request.Files
)

// A Call gives a running job the descriptors and the input of its request.
type Call struct {
	Root  *os.File   // the job's root directory, if Job.Root is set
	Files []*os.File // descriptors of the request, at least as many as the declaration requires
	input *os.File   // source of the reader that Input returns; nil if the request has no input

	mu  sync.Mutex // held while a frame is written to out
	out *os.File   // pipe for the reply
}

// Input returns a reader of the request's input; it is empty if the request has none.
func (c *Call) Input() io.Reader {
	if c.input == nil {
		return strings.NewReader("")
	}
	return c.input
}

// Progress reports v to the parent. Jobs must call it rarely: a reply may have at most 100,000 lines.
func (c *Call) Progress(v any) {
	if raw, err := json.Marshal(v); err == nil {
		c.send(frame{Progress: raw})
	}
}

// send writes one frame of the reply. It returns an error if the frame is longer than 1 MiB.
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

// IsWorker reports whether this process was started to run a job. The binary's main, and TestMain of tests that run jobs, must
// call it first.
func IsWorker() bool { return len(os.Args) > 0 && os.Args[0] == argv0 }

// Main runs the job this process was started for, and exits. It confines the process before it uses any input of the job.
func Main(jobs ...Declared) {
	if err := serve(jobs); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve reads the request, confines this process and runs the job.
func serve(jobs []Declared) error {
	in := os.NewFile(requestFD, "request")
	requests := bufio.NewReader(in)
	line, err := readLine(requests, maxFrame)
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	var req jobRequest
	if err := Unmarshal(line, &req); err != nil {
		return fmt.Errorf("decode request: %w", err)
	}
	given := filesFD + req.Files
	c := &Call{out: os.NewFile(replyFD, "reply")}
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
		c.Files = append(c.Files, os.NewFile(uintptr(filesFD+i), fmt.Sprintf("file%d", i)))
	}
	if err := closeInherited(given); err != nil {
		return fmt.Errorf("close descriptors: %w", err)
	}
	if err := confineSelf(req, given, rootFD); err != nil {
		return fmt.Errorf("confine: %w", err)
	}
	go func() {
		// The pipe of the request is open until the parent exits; the job then exits as well.
		io.Copy(io.Discard, requests)
		os.Exit(3)
	}()
	return run(jobs, req, c)
}

// run runs the job that the request names, and sends its result or its error to the parent.
func run(jobs []Declared, req jobRequest, c *Call) error {
	for _, j := range jobs {
		if j.name() != req.Job {
			continue
		}
		result, err := j.serve(context.Background(), c, req.Args)
		if err != nil {
			return c.send(frame{Error: newFailure(err)})
		}
		raw, err := json.Marshal(result)
		if err != nil {
			return c.send(frame{Error: newFailure(err)})
		}
		return c.send(frame{Result: raw})
	}
	return c.send(frame{Error: newFailure(fmt.Errorf("no job %q in this binary", req.Job))})
}
