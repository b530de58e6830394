package receive

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/relay/commit"
	"github.com/caisson-dev/caisson/job/relay/git"
)

// maxReported is the maximum number of findings of one list that are reported to a client.
const maxReported = 30

// report writes the answer to a push in the format that the client requested: messages for people, and then the status of the
// pack and of each ref.
func (p *pushState) report(w io.Writer, unpack string) error {
	var answer bytes.Buffer
	var err error
	if p.caps["side-band-64k"] { // also with the capability quiet, which is about progress only
		err = git.WriteBand(&answer, git.BandProgress, p.messages())
	}
	if status := p.status(unpack); status != nil {
		if p.caps["side-band-64k"] {
			err = errors.Join(err, git.WriteBand(&answer, git.BandData, status))
		} else {
			answer.Write(status)
		}
	}
	if p.caps["side-band-64k"] {
		err = errors.Join(err, git.WriteFlush(&answer))
	}
	if err != nil {
		return err
	}
	_, err = w.Write(answer.Bytes())
	return err
}

// status returns the report-status message, or nil if the client did not request it.
func (p *pushState) status(unpack string) []byte {
	if !p.caps["report-status"] && !p.caps["report-status-v2"] {
		return nil
	}
	var b bytes.Buffer
	err := git.WritePktf(&b, "unpack %s\n", unpack)
	for _, c := range p.commands {
		if c.refused == "" {
			err = errors.Join(err, git.WritePktf(&b, "ok %s\n", c.name))
		} else {
			err = errors.Join(err, git.WritePktf(&b, "ng %s %s\n", c.name, git.OneLine(c.refused, 500)))
		}
	}
	if err = errors.Join(err, git.WriteFlush(&b)); err != nil {
		return nil // not reached: the names were read from packet lines, so they fit into packet lines
	}
	return b.Bytes()
}

// messages returns the messages that the client shows with the prefix "remote: ".
func (p *pushState) messages() []byte {
	var b bytes.Buffer
	list := p.denials.List
	for _, f := range list[:min(len(list), maxReported)] {
		fmt.Fprintf(&b, "denied: %s\n", plainFinding(f))
	}
	more := max(0, len(list)-maxReported) + p.denials.Dropped
	for _, c := range p.accepted() {
		list := c.findings.List
		for _, f := range list[:min(len(list), maxReported)] {
			fmt.Fprintf(&b, "a person has to look at this before it is sent: %s\n", plainFinding(f))
		}
		more += max(0, len(list)-maxReported) + c.findings.Dropped
	}
	if more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return b.Bytes()
}

// plainFinding returns a finding as one line of text.
func plainFinding(f caisson.Finding) string {
	text := git.OneLine(f.Message, commit.MaxFindingMessage)
	if f.Line > 0 {
		text += fmt.Sprintf(" (line %d)", f.Line)
	}
	return text
}
