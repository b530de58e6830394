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
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/worker"
)

// The names of the journals, the files in which an apply and its undo record their steps and their progress for recovery.
const (
	applyJournal = "journal"
	undoJournal  = "undo"
)

// A phase is the progress of an operation, an apply or an undo, as recorded in its journal.
type phase string

// The phases. Each is recorded on disk before the work of the phase begins.
const (
	phaseNone   phase = ""       // the plan is not completely written, and the host's directory has not been changed
	phasePlan   phase = "plan"   // the plan is written, and the staging directory may exist
	phaseSwitch phase = "switch" // paths of the plan may have changed; recovery rolls back
	phaseCommit phase = "commit" // all paths have changed; recovery completes the operation
	phaseDone   phase = "done"   // the host's directory is as planned, and the staging directory was removed
	// All paths have been rolled back, and the staging directory is no longer needed.
	phaseRestored phase = "restored"
	phaseBack     phase = "back" // the rollback is complete, and the staging directory was removed
)

// A record is a line of the journal of an apply or an undo. The first record has Version, Stage and Steps. After it there is one
// record for each step, and one for each phase.
type record struct {
	Version int    `json:"version,omitempty"` // journalVersion; only in the first record
	Stage   string `json:"stage,omitempty"`   // name of the staging directory; only in the first record
	Steps   int    `json:"steps,omitempty"`   // number of steps; only in the first record

	Step *gate.Step `json:"step,omitempty"` // a step; nil in the first record and in records of phases

	Phase       phase    `json:"phase,omitempty"` // the phase that begins; phaseNone in the first record and in records of steps
	LeftInPlace []string `json:"kept,omitempty"`  // paths whose changes by other processes were kept since the previous record
}

// journalVersion is the version of the format of the journals of applies and undos.
const journalVersion = 1

// A history is the content of the journal of an apply or an undo.
type history struct {
	stage       string      // name of the staging directory
	steps       []gate.Step // the steps of the operation
	phase       phase       // the phase that was recorded last
	leftInPlace []string    // the paths at which changes of other processes were kept, from all records
}

// finished reports whether the operation of the journal has ended, so that no recovery is needed.
func (h history) finished() bool {
	return h.phase == phaseNone || h.phase == phaseDone || h.phase == phaseBack
}

// A journal is the file to which an operation appends its steps and phases. Incomplete lines are ignored when it is read.
type journal struct{ f *os.File }

// openJournal opens the journal called name for appending. If fresh is set, it replaces an existing journal by an empty one.
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

// begin writes the first record and the records of the steps to the journal, and then records phasePlan.
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

// errUncertain means that a phase could not be written to the journal and the incomplete write could not be removed. Whether
// the phase is recorded is unknown until the journal is read again.
var errUncertain = errors.New("the journal is in doubt")

// enter records that phase p begins. leftInPlace are the paths at which, since the last record, changes of other processes were
// found and kept. If it returns an error other than errUncertain, p is not recorded.
func (j journal) enter(p phase, leftInPlace []string) error {
	end, err := j.f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	var line strings.Builder
	// The newline ends a line that a crash may have left incomplete, so that this line can be parsed.
	line.WriteByte('\n')
	if err := appendRecord(&line, record{Phase: p, LeftInPlace: leftInPlace}); err != nil {
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

// appendRecord writes r to w as a line: the CRC-32 of its JSON text, a space and the text.
func appendRecord(w io.Writer, r record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%08x %s\n", crc32.ChecksumIEEE(text), text)
	return err
}

// readJournal returns the content of the journal called name, or an empty history, with phaseNone, if the journal does not exist.
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

// parseJournal parses a journal. It ignores up to 64 lines that a crash left incomplete; other invalid content is an error.
func parseJournal(r io.Reader) (history, error) {
	var h history
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 4096), gate.MaxPlanLine+maxPathBytes)
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
			h.leftInPlace = append(h.leftInPlace, rec.LeftInPlace...)
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

// parseRecord parses a line that appendRecord has written. It returns false if the line is incomplete or damaged.
func parseRecord(line string) (record, bool) {
	var rec record
	sum, text, _ := strings.Cut(line, " ")
	want, err := strconv.ParseUint(sum, 16, 32)
	if err != nil || uint32(want) != crc32.ChecksumIEEE([]byte(text)) {
		return rec, false
	}
	return rec, worker.Unmarshal([]byte(text), &rec) == nil
}

// validStage reports whether name has the form of a staging directory's name.
func validStage(name string) bool {
	random, ok := strings.CutPrefix(name, gate.StagePrefix)
	if !ok || len(random) != 26 {
		return false
	}
	return strings.Trim(random, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
}
