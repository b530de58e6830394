package sentry

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

func TestRepeats(t *testing.T) {
	const nodes = " (crypto.randomUUID and crypto.randomInt, if used before)"
	for _, c := range []struct {
		path                string
		isGo                bool
		reseeded, unchanged string
	}{
		{"/bin/bash", false, "", ""},
		{"/.caisson/inside", true, "", ""},
		{"/usr/bin/python3.13", false, "", "python3.13"},
		{"/usr/bin/python3", false, "", "python3"},
		{"/usr/bin/python3-dbg", false, "python3-dbg", "python3-dbg"},
		{"/usr/bin/openssl", false, "", "openssl"},
		{"/node/bin/node", false, "node" + nodes, "node"},
		{"/opt/jdk/bin/java", false, "java", "java"},
		{"/root/.bun/bin/bun (deleted)", false, "bun", "bun"},
		{"/x/" + strings.Repeat("a", 200), false, strings.Repeat("a", protocol.MaxSharingName), strings.Repeat("a", protocol.MaxSharingName)},
		{"/x/a\nb\x1b[é", false, "a?b?[?", "a?b?[?"},
	} {
		for reseeded, want := range map[bool]string{true: c.reseeded, false: c.unchanged} {
			if got := describeUnsafeProgram(programName(c.path), c.isGo, reseeded); got != want {
				t.Errorf("%.50q, reseeded %v: %q, want %q", c.path, reseeded, got, want)
			}
		}
	}
}
