package apply

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/gate"
	"github.com/caisson-dev/caisson/worker"
)

// Journals of a directory for what is saved: that of the apply and that of its undo.
const (
	applyJournal = "journal"
	undoJournal  = "undo"
)

// A phase says how far an apply has come, in the words of its journal.
type phase string

// The phases. Each is on disk before anything that belongs to it is done.
const (
	phaseNone   phase = ""       // there is no whole plan: the host has not been touched
	phasePlan   phase = "plan"   // the staging directory may be there
	phaseSwitch phase = "switch" // paths of the plan may have changed; back is the way out
	phaseCommit phase = "commit" // all paths have changed; forward is the way out
	phaseDone   phase = "done"   // nothing is left in the host's directory but what the plan says
	// Everything has been put back, and what is in the staging directory is of no more use.
	phaseRestored phase = "restored"
	phaseBack     phase = "back" // everything is as it was
)

// A record is a line of a journal. The first is the head, then there is a step for each path, then phases.
type record struct {
	Version int    `json:"version,omitempty"`
	Stage   string `json:"stage,omitempty"` // name of the staging directory
	Steps   int    `json:"steps,omitempty"`

	Step *gate.Step `json:"step,omitempty"`

	Phase phase    `json:"phase,omitempty"`
	Kept  []string `json:"kept,omitempty"` // new with the last phases
}

const journalVersion = 1

// A history is what a journal says.
type history struct {
	stage string
	steps []gate.Step
	phase phase
	kept  []string
}

// finished reports whether nothing is left to be done.
func (h history) finished() bool {
	return h.phase == phaseNone || h.phase == phaseDone || h.phase == phaseBack
}

// A journal is a file that is only appended to. A line that is cut short was never written.
type journal struct{ f *os.File }

// openJournal opens the journal called name to append to it, or makes an empty one in place of the old one.
func openJournal(saved *os.File, name string, fresh bool) (journal, error) {
	flags := unix.O_WRONLY | unix.O_APPEND
	if fresh {
		if err := unix.Unlinkat(int(saved.Fd()), name, 0); err != nil && !errors.Is(err, unix.ENOENT) {
			return journal{}, os.NewSyscallError("unlink", err)
		}
		flags |= unix.O_CREAT | unix.O_EXCL
	}
	fd, err := openBeneath(int(saved.Fd()), name, flags, 0o600)
	if err != nil {
		return journal{}, err
	}
	j := journal{os.NewFile(uintptr(fd), name)}
	if fresh {
		if err := syncDir(saved); err != nil {
			j.f.Close()
			return journal{}, err
		}
	}
	return j, nil
}

// begin writes what is going to be done.
func (j journal) begin(stage string, steps []gate.Step) error {
	out := bufio.NewWriter(j.f)
	if err := appendRecord(out, record{Version: journalVersion, Stage: stage, Steps: len(steps)}); err != nil {
		return err
	}
	for i := range steps {
		if err := appendRecord(out, record{Step: &steps[i]}); err != nil {
			return err
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return j.enter(phasePlan, nil)
}

// errUncertain says that nobody knows whether a phase is in the journal: only what is read from the disk the next time will tell.
var errUncertain = errors.New("the journal is in doubt")

// enter writes that p begins. Unless its error is errUncertain, p has not begun then.
func (j journal) enter(p phase, kept []string) error {
	end, err := j.f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	var line strings.Builder
	// What a crash has cut short before must not spoil this line.
	line.WriteByte('\n')
	if err := appendRecord(&line, record{Phase: p, Kept: kept}); err != nil {
		return err
	}
	if _, err = j.f.WriteString(line.String()); err == nil {
		err = j.f.Sync()
	}
	if err == nil {
		return nil
	}
	if e := errors.Join(j.f.Truncate(end), j.f.Sync()); e != nil {
		return errors.Join(errUncertain, err, e)
	}
	return err
}

func (j journal) close() { j.f.Close() }

func appendRecord(w io.Writer, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%08x %s\n", crc32.ChecksumIEEE(text), text)
	return err
}

// readJournal returns what the journal called name says; phaseNone if there is none.
func readJournal(saved *os.File, name string) (history, error) {
	fd, err := openBeneath(int(saved.Fd()), name, unix.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, unix.ENOENT) {
		return history{}, nil
	}
	if err != nil {
		return history{}, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	h, err := parseJournal(f)
	return h, caisson.Wrap(err, caisson.Internal, "the journal of a sync is damaged; the directory's originals are beside it")
}

// parseJournal reads a journal. What was being written when the machine stopped is left out; anything else that is not as it
// should be is an error.
func parseJournal(r io.Reader) (history, error) {
	var h history
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 4096), gate.MaxPlanLine+maxKeptBytes)
	want, torn := -1, 0
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			continue
		}
		rec, ok := parseRecord(lines.Text())
		if !ok {
			if torn++; torn > 64 {
				return h, errors.New("too many broken lines")
			}
			continue
		}
		switch {
		case want < 0:
			if rec.Version != journalVersion || rec.Steps < 0 || rec.Steps > gate.MaxSteps || !validStage(rec.Stage) {
				return h, errors.New("no valid head")
			}
			want, h.stage = rec.Steps, rec.Stage
		case rec.Step != nil:
			if h.phase != phaseNone || len(h.steps) == want {
				return h, errors.New("a step out of place")
			}
			h.steps = append(h.steps, *rec.Step)
		case rec.Phase == phasePlan && h.phase == phaseNone && len(h.steps) == want,
			rec.Phase == phaseSwitch && h.phase == phasePlan,
			rec.Phase == phaseCommit && h.phase == phaseSwitch,
			rec.Phase == phaseDone && h.phase == phaseCommit,
			rec.Phase == phaseRestored && (h.phase == phasePlan || h.phase == phaseSwitch),
			rec.Phase == phaseBack && h.phase == phaseRestored:
			h.phase = rec.Phase
			h.kept = append(h.kept, rec.Kept...)
		default:
			return h, errors.New("a phase out of place")
		}
	}
	if err := lines.Err(); err != nil {
		return h, err
	}
	if h.phase == phaseNone {
		return history{}, nil
	}
	return h, (&gate.Plan{Steps: h.steps}).Validate()
}

func parseRecord(line string) (record, bool) {
	var rec record
	sum, text, _ := strings.Cut(line, " ")
	want, err := strconv.ParseUint(sum, 16, 32)
	if err != nil || uint32(want) != crc32.ChecksumIEEE([]byte(text)) {
		return rec, false
	}
	return rec, worker.Unmarshal([]byte(text), &rec) == nil
}

// validStage reports whether name is one that newStage makes.
func validStage(name string) bool {
	random, ok := strings.CutPrefix(name, gate.StagePrefix)
	if !ok || len(random) != 26 {
		return false
	}
	return strings.Trim(random, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}
