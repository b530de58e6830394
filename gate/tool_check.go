package gate

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/worker"
)

// checkHead begins the input of a check.
type checkHead struct {
	Rules   Rules
	Changes int
}

// Check is [Check] as a job: with the rights of host's owner, who must be able to read frozen, which [Freeze] has written. With an
// error, all changes are denied: Invalid if it is the rules', Exhausted if a limit of time or memory ended the job.
func (t *Tool) Check(ctx context.Context, host, frozen *os.File, changes []caisson.Change, rules Rules) error {
	before := make([]string, len(changes))
	for i := range changes {
		before[i] = cmpOr(changes[i].Verdict, caisson.VerdictPass)
		changes[i].Verdict = caisson.VerdictDeny // until all is known
	}
	if err := rules.Validate(); err != nil || len(changes) == 0 {
		return err
	}
	results, err := t.check(ctx, host, frozen, changes, rules)
	if err != nil {
		return err
	}
	for i, r := range results {
		// Jobs are not believed to make anything milder.
		verdict := worse(before[i], r.Verdict)
		for _, f := range r.Findings {
			verdict = worse(verdict, f.Verdict)
		}
		changes[i].Finding = append(changes[i].Finding, r.Findings...)
		changes[i].Verdict = verdict
	}
	return nil
}

func (t *Tool) check(ctx context.Context, host, frozen *os.File, changes []caisson.Change, rules Rules) ([]checked, error) {
	var in bytes.Buffer
	enc := json.NewEncoder(&in)
	if err := enc.Encode(checkHead{Rules: rules, Changes: len(changes)}); err != nil {
		return nil, err
	}
	for _, ch := range changes {
		ch.Patch, ch.Finding, ch.Verdict = "", nil, ""
		if err := enc.Encode(ch); err != nil {
			return nil, err
		}
	}
	fd, err := unix.MemfdCreate("checked", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	out := os.NewFile(uintptr(fd), "checked")
	defer out.Close()
	all := time.Duration(rules.WithDefaults().ScanTime) + 2*time.Minute
	var reply checkReply
	err = t.run.Run(ctx, worker.Request{
		Job: jobCheck, Root: host, Access: worker.ReadAsOwner, Files: []*os.File{out, frozen}, Input: &in,
		Limits: worker.Limits{Time: all, CPU: 2 * all, FileSize: 1 << 30},
	}, &reply)
	if err != nil {
		return nil, err
	}
	if _, err := out.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	return readChecked(out, len(changes))
}

// readChecked reads what a job has written, which is not to be trusted.
func readChecked(r io.Reader, n int) ([]checked, error) {
	nonsense := caisson.Errorf(caisson.Internal, "a job of the gate answered nonsense")
	const maxLine = maxFindings * (6*maxMessage + 200)
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	results := make([]checked, 0, n)
	for lines.Scan() {
		var one checked
		dec := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&one); err != nil || len(results) == n || !one.valid() {
			return nil, nonsense
		}
		results = append(results, one)
	}
	if lines.Err() != nil || len(results) != n {
		return nil, nonsense
	}
	return results, nil
}

func (c *checked) valid() bool {
	verdicts := []string{caisson.VerdictPass, caisson.VerdictAsk, caisson.VerdictClash, caisson.VerdictDeny}
	for _, f := range c.Findings {
		if !slices.Contains(Checks(), f.Check) || !slices.Contains(verdicts, f.Verdict) || f.Line < 0 ||
			strings.ContainsFunc(f.Message, func(r rune) bool { return r < ' ' || r == 0x7f }) || len(f.Message) > maxMessage+len("…") {
			return false
		}
	}
	return len(c.Findings) <= maxFindings && slices.Contains(verdicts, c.Verdict)
}
