package relay

import (
	"strings"
	"testing"
)

// TestReceiveCommits sends commits that git would not make.
func TestReceiveCommits(t *testing.T) {
	q := newQuay(t)
	before, objects := q.state()
	tree := q.git("rev-parse", q.base+"^{tree}")
	head := "tree " + tree + "\nparent " + q.base + "\n"
	who := "author A <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n"
	for name, c := range map[string]struct{ text, verdict, why string }{
		"plain":                {head + who + "\nsubject\n", pass, ""},
		"no message":           {head + who + "\n", pass, ""},
		"in UTF-8":             {head + "author Ä <a@b> 1 +0000\ncommitter Ä <a@b> 1 +0000\n\nÜ 日本\n\ttab\n", pass, ""},
		"encoding UTF-8":       {head + who + "encoding UTF-8\n\nx\n", pass, ""},
		"a signature":          {head + who + "gpgsig garbage\n more\n\nx\n", pass, ""},
		"the year 9999":        {head + "author A <a@b> 253402300799 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", pass, ""},
		"the year 9999999":     {head + "author A <a@b> 315537897599999 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", deny, "9999"},
		"a date of 100 digits": {head + "author A <a@b> " + strings.Repeat("9", 100) + " +0000\ncommitter A <a@b> 1 +0000\n\nx\n", deny, ""},
		"before all time":      {head + "author A <a@b> -1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", deny, ""},
		"no date":              {head + "author A <a@b>\ncommitter A <a@b> 1 +0000\n\nx\n", deny, ""},
		"a broken zone":        {head + "author A <a@b> 1 UTC\ncommitter A <a@b> 1 +0000\n\nx\n", deny, ""},
		"no address":           {head + "author A 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", deny, ""},
		"two addresses":        {head + "author A <a@b> <c@d> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", deny, ""},
		"two authors":          {head + "author A <a@b> 1 +0000\nauthor B <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", deny, ""},
		"no author":            {head + "committer A <a@b> 1 +0000\n\nx\n", deny, ""},
		"an author of lines":   {head + "author A\n b <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", deny, ""},
		"an escape in author":  {head + "author A\x1b[2J <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", deny, "control"},
		"author right to left": {head + "author A\u202e <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", deny, "direction"},
		"author not in UTF-8":  {head + "author A\xff <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", deny, "UTF-8"},
		"NUL in the headers":   {head + "author A\x00 <a@b> 1 +0000\ncommitter A <a@b> 1 +0000\n\nx\n", deny, ""},
		"NUL in the message":   {head + who + "\nx\x00hidden\n", deny, ""},
		"escapes":              {head + who + "\n\x1b]0;x\x07\n", deny, "control"},
		"carriage return":      {head + who + "\nharmless\rhidden\n", deny, "control"},
		"a message backwards":  {head + who + "\na\u202eb\n", deny, "direction"},
		"not UTF-8":            {head + who + "\n\xff\xfe\n", deny, "UTF-8"},
		"encoding UTF-7":       {head + who + "encoding UTF-7\n\n+AGEA-\n", deny, "encoding"},
		"an unknown header":    {head + who + "x-evil 1\n\nx\n", deny, "unknown header"},
		"two signatures":       {head + who + "gpgsig a\ngpgsig b\n\nx\n", deny, "twice"},
		"no end":               {head + who, deny, ""},
		"no tree":              {"parent " + q.base + "\n" + who + "\nx\n", deny, ""},
		"tree of nothing":      {"tree " + strings.Repeat("1", 40) + "\nparent " + q.base + "\n" + who + "\nx\n", deny, ""},
		"parent of nothing":    {"tree " + tree + "\nparent " + strings.Repeat("1", 40) + "\n" + who + "\nx\n", deny, ""},
		"parent twice":         {head + "parent " + q.base + "\n" + who + "\nx\n", deny, "parents"},
		"parent after author":  {"tree " + tree + "\n" + who + "parent " + q.base + "\n\nx\n", deny, ""},
		"a tree as parent":     {"tree " + tree + "\nparent " + tree + "\n" + who + "\nx\n", deny, ""},
		"a secret":             {head + who + "\nsubject\n\n" + token() + "\n", deny, "in the commit's message: this looks like a secret"},
		"a secret author":      {head + "author A <a@b> 1 +0000\ncommitter " + token() + " <a@b> 1 +0000\n\nx\n", deny, "this looks like a secret"},
		"a secret signature":   {head + who + "gpgsig " + token() + "\n\nx\n", deny, "this looks like a secret"},
		"a long message":       {head + who + "\n" + strings.Repeat("line\n", 250_000), deny, "1MiB"},
	} {
		id := q.object("commit", c.text)
		r, answer, err := q.send(id)
		if err != nil || verdictOf(r) != c.verdict || (len(r.Updates) == 1) != (c.verdict == pass) {
			t.Errorf("%s: %+v %q %v", name, r, answer, err)
			continue
		}
		if c.why != "" && !strings.Contains(r.Denied[0].Message, c.why) {
			t.Errorf("%s: %+v", name, r.Denied)
		}
		if c.verdict == deny {
			q.untouched(before, objects)
			continue
		}
		if out, err := q.store.output(t.Context(), "", "update-ref", "-d", "refs/heads/work"); err != nil {
			t.Fatalf("%s %v", out, err)
		}
		objects = q.objects()
	}
}
