package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"

	"github.com/caisson-dev/caisson"
)

// maxTold is how many findings a client is told.
const maxTold = 30

// report answers a push in the form that the client asked for: what people read, then what has become of the pack and each ref.
func (p *receiving) report(w io.Writer, unpack string) error {
	var answer bytes.Buffer
	var err error
	if p.caps["side-band-64k"] { // also if the client is to be quiet: that is about progress, and this is none
		err = writeBand(&answer, bandProgress, p.told())
	}
	if status := p.status(unpack); status != nil {
		if p.caps["side-band-64k"] {
			err = errors.Join(err, writeBand(&answer, bandData, status))
		} else {
			answer.Write(status)
		}
	}
	if p.caps["side-band-64k"] {
		err = errors.Join(err, writeFlush(&answer))
	}
	if err != nil {
		return err
	}
	_, err = w.Write(answer.Bytes())
	return err
}

// status is the report for the program; nil if it wants none.
func (p *receiving) status(unpack string) []byte {
	if !p.caps["report-status"] && !p.caps["report-status-v2"] {
		return nil
	}
	var b bytes.Buffer
	err := writePktf(&b, "unpack %s\n", unpack)
	for _, c := range p.commands {
		if c.refused == "" {
			err = errors.Join(err, writePktf(&b, "ok %s\n", c.name))
		} else {
			err = errors.Join(err, writePktf(&b, "ng %s %s\n", c.name, plain(c.refused, 500)))
		}
	}
	if err = errors.Join(err, writeFlush(&b)); err != nil {
		return nil // commands were read from packet lines, and fit into them
	}
	return b.Bytes()
}

// told is what the client shows with "remote: " before each line.
func (p *receiving) told() []byte {
	var b bytes.Buffer
	list := p.said.list
	for _, f := range list[:min(len(list), maxTold)] {
		fmt.Fprintf(&b, "denied: %s\n", plainFinding(f))
	}
	more := max(0, len(list)-maxTold) + p.said.more
	for _, c := range p.accepted() {
		list := c.findings.list
		for _, f := range list[:min(len(list), maxTold)] {
			fmt.Fprintf(&b, "a person has to look at this before it is sent: %s\n", plainFinding(f))
		}
		more += max(0, len(list)-maxTold) + c.findings.more
	}
	if more > 0 {
		fmt.Fprintf(&b, "and %d more\n", more)
	}
	return b.Bytes()
}

func plainFinding(f caisson.Finding) string {
	text := plain(f.Message, maxFindingMessage)
	if f.Line > 0 {
		text += fmt.Sprintf(" (line %d)", f.Line)
	}
	return text
}
