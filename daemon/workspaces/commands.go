package workspaces

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/durable"
	"github.com/caisson-dev/caisson/internal/excerpt"
	"github.com/caisson-dev/caisson/job/gate"
)

// Delays of automatic syncs after a command has failed: retrySameDelay for the changes that the command refused,
// retryOtherDelay for other changes. A sync that a person requests is never delayed.
const (
	retrySameDelay  = 10 * time.Minute // delay of a sync of the refused changes
	retryOtherDelay = 2 * time.Minute  // delay of a sync of other changes than the refused ones
)

// refusedFile records the last command that failed on a workspace's changes, and the changes that it was run on.
const refusedFile = "refused.json"

// A refusal records that a configured command, which checks the changes of a workspace before a sync, has failed.
type refusal struct {
	Key     string            // hash of the plan that the command checked, and of all commands
	At      time.Time         // time when the command failed
	Changes map[string]string // hashes of the changes that the command checked, by path, as in the review
	Finding caisson.Finding   // finding that the next reviews add to the changes in Changes
}

// runCommands runs the configured commands on the chosen changes, one after another, each in a separate sandbox. It
// returns their names as checks. If a command fails, it returns Denied with the end of that command's output.
func (s *syncRun) runCommands(ctx context.Context, chosen selection) ([]string, error) {
	plan := &gate.Plan{Steps: chosen.steps()}
	if len(s.c.cfg.Settings.Commands) == 0 || len(plan.Steps) == 0 {
		return nil, nil
	}
	if err := plan.Validate(); err != nil {
		return nil, err
	}
	key, err := s.c.refusals.planKey(plan)
	if err != nil {
		return nil, err
	}
	if s.by == autoActor {
		off, err := s.c.refusals.backingOff(s.w.ID, key)
		if err != nil {
			return nil, err
		}
		if off {
			return nil, errBackoff
		}
	}
	var ran []string
	for _, cmd := range s.c.cfg.Settings.Commands {
		err := s.runCommand(ctx, plan, cmd)
		if err != nil && ctx.Err() != nil {
			return nil, err // the sync was cancelled, which is not a result of the check
		}
		if err != nil {
			return nil, s.refuse(ctx, chosen, key, cmd, err)
		}
		ran = append(ran, cmd.checkName())
	}
	return ran, nil
}

// refusals stores, for each workspace, on which changes a configured command has failed.
type refusals struct {
	directory
	commands []Command // commands that the administrator has configured
}

// planKey returns a hash of a plan and of the commands that check the plan.
func (c refusals) planKey(plan *gate.Plan) (string, error) {
	h := sha256.New()
	if err := errors.Join(plan.Encode(h), json.NewEncoder(h).Encode(c.commands)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// refuse records that a command has failed, or could not be run, and returns the error of the sync. key is the hash of the plan
// and of the commands, from planKey.
func (s *syncRun) refuse(ctx context.Context, chosen selection, key string, cmd Command, cause error) error {
	message := caisson.MessageOf(cause)
	if caisson.KindOf(cause) != caisson.Denied {
		message = fmt.Sprintf("the check %s could not be run: %s", cmd.Name, message)
	}
	no := refusal{Key: key, At: now(), Changes: map[string]string{}, Finding: caisson.Finding{
		Check: checkCommand, Verdict: caisson.VerdictDeny, Message: "The last sync was refused: " + message + ".",
	}}
	for i, x := range chosen.review.Changes {
		if chosen.chosen[i] {
			no.Changes[x.Change.Path] = x.Change.Hash
		}
	}
	publish(ctx, s.c.cfg.Events, s.w, "sync.refused", map[string]string{"by": s.by, "command": cmd.Name, "reason": message})
	err := caisson.Wrap(cause, caisson.Denied, "nothing was applied: %s", message)
	return errors.Join(err, durable.WriteJSON(s.c.dir(s.w.ID, refusedFile), no))
}

// lastRefusal returns the record of the last command that failed on a workspace's changes; zero if none since the last apply.
func (c refusals) lastRefusal(w caisson.ID) (no refusal, err error) {
	return no, readJSON(c.dir(w, refusedFile), &no)
}

// addFindings adds the finding of the last refusal to those of the changes that the command had refused. It does not set their
// verdicts, because the command may pass later, or together with other changes.
func (c refusals) addFindings(w caisson.ID, changes []caisson.Change) error {
	no, err := c.lastRefusal(w)
	for i := range changes {
		ch := &changes[i]
		if hash, ok := no.Changes[ch.Path]; ok && hash == ch.Hash {
			ch.Finding = append(ch.Finding, no.Finding)
		}
	}
	return err
}

// backingOff reports whether it is too early to apply changes automatically, because a command has refused changes recently.
// key is the hash of the plan and of the commands, from planKey, or "" if the plan does not exist yet.
func (c refusals) backingOff(w caisson.ID, key string) (bool, error) {
	no, err := c.lastRefusal(w)
	if err != nil || no.At.IsZero() {
		return false, err
	}
	wait := retryOtherDelay
	if key != "" {
		if key != no.Key {
			return false, nil
		}
		wait = retrySameDelay
	}
	return now().Sub(no.At) < wait, nil
}

// runCommand runs one command. Returns Denied with the reason if the command fails. Because commands take long, it releases the
// caller's job slot meanwhile, and holds one of trials.slots instead.
func (s *syncRun) runCommand(ctx context.Context, plan *gate.Plan, cmd Command) error {
	t, err := s.createTrial(ctx, plan)
	if err != nil {
		return err
	}
	<-s.c.layerFiles.jobSlots
	defer func() { s.c.layerFiles.jobSlots <- struct{}{} }()
	select {
	case s.c.trials.slots <- struct{}{}:
		defer func() { <-s.c.trials.slots }()
		return s.inSandbox(ctx, t, cmd)
	case <-ctx.Done():
		return errors.Join(context.Cause(ctx), s.c.trials.end(t))
	}
}

// watch runs a command in its sandbox and waits for its end.
func (s *syncRun) watch(ctx context.Context, sb *caisson.Sandbox, t *trial, cmd Command) error {
	limit := cmd.timeLimit()
	ctx, cancel := context.WithTimeout(ctx, limit+killTimeout) // watch returns even if the process cannot be killed
	defer cancel()
	p, err := s.c.sandboxes.Exec(ctx, string(sb.ID), caisson.ExecRequest{
		Command: cmd.Command, Workdir: t.w.Target, User: "0:0", Timeout: caisson.Duration(limit),
	})
	if err != nil {
		return err
	}
	out := &outputTail{
		kill: func() { _ = p.Signal(context.WithoutCancel(ctx), int(unix.SIGKILL)) }, // Signal fails if the process has exited
		kept: excerpt.Tail{Limit: tailBytes},
	}
	whole := out.drain(p.Stdout(), p.Stderr())
	status, err := p.Wait(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		status, err = caisson.ExitStatus{Unknown: true, Reason: "time limit"}, nil
	}
	select {
	case <-whole:
	case <-time.After(outputTimeout): // a process that the command has started may keep the output open
	}
	_ = p.Close() // an error is ignored, because the output ends when the sandbox is removed
	if err != nil {
		return err
	}
	if out.exceeded() {
		status.Code, status.Reason = max(status.Code, 1), "output limit"
	}
	if status.Success() {
		return nil
	}
	return caisson.Errorf(caisson.Denied, "the check %s %s%s", cmd.Name, status, out.last())
}

const (
	killTimeout   = 30 * time.Second // how long a command may take to end after its time limit
	outputTimeout = time.Second      // how long output is still read after a command has ended
)
