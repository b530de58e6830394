package commit_test

import (
	"strings"
	"testing"

	"github.com/caisson-dev/caisson/job/relay/relaytest"
)

// TestReceiveCommits pushes commits that git would not create.
func TestReceiveCommits(t *testing.T) {
	q := relaytest.New(t)
	before, objects := q.State()
	tree := q.Git("rev-parse", q.Base+"^{tree}")
	head := "tree " + tree + "\nparent " + q.Base + "\n"
	who := "author A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n"
	for name, c := range map[string]struct{ text, verdict, why string }{
		"plain":                {head + who + "\nsubject\n", relaytest.Pass, ""},
		"no message":           {head + who + "\n", relaytest.Pass, ""},
		"in UTF-8":             {head + "author Ä <a@b> 1 +0000\ncommitter Ä <a@b> 1 +0000\n\nÜ 日本\n\ttab\n", relaytest.Pass, ""},
		"encoding UTF-8":       {head + who + "encoding UTF-8\n\nx\n", relaytest.Pass, ""},
		"a signature":          {head + who + "gpgsig garbage\n more\n\nx\n", relaytest.Pass, ""},
		"the year 9999":        {head + "author A <a@b> 253402300799 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Pass, ""},
		"the year 9999999":     {head + "author A <a@b> 315537897599999 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, "9999"},
		"a date of 100 digits": {head + "author A <a@b> " + strings.Repeat("9", 100) + " +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, ""},
		"before all time":      {head + "author A <a@b> -1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, ""},
		"no date":              {head + "author A <a@b>\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, ""},
		"a broken zone":        {head + "author A <a@b> 1 UTC\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, ""},
		"no address":           {head + "author A 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, ""},
		"two addresses":        {head + "author A <a@b> <c@d> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, ""},
		"two authors":          {head + "author A <a@b> 1 +0000\nauthor B <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, ""},
		"no author":            {head + "committer A <a@b> 1 +0000\n\nx\n", relaytest.Deny, ""},
		"an author of lines":   {head + "author A\n b <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, ""},
		"an escape in author":  {head + "author A\x1b[2J <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, "control"},
		"author right to left": {head + "author A\u202e <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, "direction"},
		"author not in UTF-8":  {head + "author A\xff <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, "UTF-8"},
		"NUL in the headers":   {head + "author A\x00 <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", relaytest.Deny, ""},
		"NUL in the message":   {head + who + "\nx\x00hidden\n", relaytest.Deny, ""},
		"escapes":              {head + who + "\n\x1b]0;x\x07\n", relaytest.Deny, "control"},
		"carriage return":      {head + who + "\nharmless\rhidden\n", relaytest.Deny, "control"},
		"a message backwards":  {head + who + "\na\u202eb\n", relaytest.Deny, "direction"},
		"not UTF-8":            {head + who + "\n\xff\xfe\n", relaytest.Deny, "UTF-8"},
		"encoding UTF-7":       {head + who + "encoding UTF-7\n\n+AGEA-\n", relaytest.Deny, "encoding"},
		"an unknown header":    {head + who + "x-evil 1\n\nx\n", relaytest.Deny, "unknown header"},
		"two signatures":       {head + who + "gpgsig a\ngpgsig b\n\nx\n", relaytest.Deny, "twice"},
		"no end":               {head + who, relaytest.Deny, ""},
		"no tree":              {"parent " + q.Base + "\n" + who + "\nx\n", relaytest.Deny, ""},
		"tree of nothing":      {"tree " + strings.Repeat("1", 40) + "\nparent " + q.Base + "\n" + who + "\nx\n", relaytest.Deny, ""},
		"parent of nothing":    {"tree " + tree + "\nparent " + strings.Repeat("1", 40) + "\n" + who + "\nx\n", relaytest.Deny, ""},
		"parent twice":         {head + "parent " + q.Base + "\n" + who + "\nx\n", relaytest.Deny, "parents"},
		"parent after author":  {"tree " + tree + "\n" + who + "parent " + q.Base + "\n\nx\n", relaytest.Deny, ""},
		"a tree as parent":     {"tree " + tree + "\nparent " + tree + "\n" + who + "\nx\n", relaytest.Deny, ""},
		"a secret":             {head + who + "\nsubject\n\n" + relaytest.Token() + "\n", relaytest.Deny, "in the commit's message: this looks like a secret"},
		"a secret author":      {head + "author A <a@b> 1 +0000\ncommitter " + relaytest.Token() + " <a@b> 1 +0000\n\nx\n", relaytest.Deny, "this looks like a secret"},
		"a secret signature":   {head + who + "gpgsig " + relaytest.Token() + "\n\nx\n", relaytest.Deny, "this looks like a secret"},
		"a long message":       {head + who + "\n" + strings.Repeat("line\n", 250_000), relaytest.Deny, "1MiB"},
	} {
		id := q.Object("commit", c.text)
		r, answer, err := q.Send(id)
		if err != nil || relaytest.VerdictOf(r) != c.verdict || (len(r.Updates) == 1) != (c.verdict == relaytest.Pass) {
			t.Errorf("%s: %+v %q %v", name, r, answer, err)
			continue
		}
		if c.why != "" && !strings.Contains(r.Denied[0].Message, c.why) {
			t.Errorf("%s: %+v", name, r.Denied)
		}
		if c.verdict == relaytest.Deny {
			q.CheckUnchanged(before, objects)
			continue
		}
		if out, err := q.Store.Output(t.Context(), "", "update-ref", "-d", "refs/heads/work"); err != nil {
			t.Fatalf("%s %v", out, err)
		}
		objects = q.Objects()
	}
}
