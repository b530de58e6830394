package drive

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/agent/task"
)

// Drivers returns the drivers of this package by their names in the catalog.
func Drivers() map[string]Driver { return map[string]Driver{} }

// Main reads a task from stdin, lets one of the drivers have it done, and says to stdout what happens. It returns the exit code: 0 if
// stdout has got its end.
func Main(_ []string, stdin io.Reader, stdout io.Writer, drivers map[string]Driver) int {
	w := task.NewWriter(stdout)
	t, err := readTask(stdin)
	if err == nil && drivers[t.Driver] == nil {
		err = fmt.Errorf("there is no driver %.40q", t.Driver)
	}
	if err != nil {
		end := task.Line{RunEvent: caisson.RunEvent{Type: task.LineEnd, Error: &caisson.RunError{Code: caisson.RunInvalid, Message: err.Error()}}}
		if _, err := w.Write(end); err != nil {
			return 1
		}
		return 0
	}
	return 1
}

// readTask reads one line, or all if there is only one.
func readTask(r io.Reader) (*task.Task, error) {
	b, err := bufio.NewReader(io.LimitReader(r, task.MaxTask+2)).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return task.Decode(bytes.TrimSuffix(b, []byte("\n")))
}
