package relay

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/gate/check"
)

// TestReceivePacks sends packs that no git sends.
func TestReceivePacks(t *testing.T) {
	q := newQuay(t)
	before, objects := q.state()
	blob := func(text string) string { return q.object("blob", text) }
	first, second := blob("first\n"), blob("second\n")
	self := strings.Repeat("1", 40)
	entry := func(p *packWriter, typ byte, size int64) *packWriter { p.header(typ, size); return p }
	deep := func() []byte {
		p := newPack(maxDeltaChain + 3)
		at := p.header(packBlob, 1)
		p.deflate([]byte("x"))
		for range maxDeltaChain + 2 {
			d := deltaOf(1, 1, "x")
			next := p.header(packOffsetDelta, int64(len(d)))
			p.back(int64(next - at)).deflate(d)
			at = next
		}
		return p.sum()
	}
	for name, c := range map[string]struct {
		pack []byte
		why  string
	}{
		"none":             {nil, "cut off"},
		"nonsense":         {[]byte("this is no pack at all"), "no pack"},
		"version 3":        {[]byte("PACK\x00\x00\x00\x03\x00\x00\x00\x00"), "version 2"},
		"cut off":          {newPack(1).object(packBlob, "text").sum()[:20], "cut off"},
		"no checksum":      {newPack(1).object(packBlob, "text").Bytes(), "cut off"},
		"bad checksum":     {append(newPack(1).object(packBlob, "text").Bytes(), make([]byte, 20)...), "git refuses"},
		"more follows":     {append(newPack(1).object(packBlob, "text").sum(), 'x'), "follows"},
		"fewer":            {newPack(2).object(packBlob, "text").sum(), ""},
		"more":             {newPack(1).object(packBlob, "text").object(packBlob, "more").sum(), "follows"},
		"four billion":     {newPack(0xffffffff).object(packBlob, "text").sum(), "4294967295 objects"},
		"50 GB":            {entry(newPack(1), packBlob, 50<<30).deflate(make([]byte, 1<<20)).sum(), "an object of 50GiB"},
		"terabytes":        {entry(newPack(1), packBlob, 1<<46).sum(), "an object of"},
		"endless size":     {append(newPack(1).Bytes(), bytes.Repeat([]byte{0xbf}, 100)...), "impossible size"},
		"a huge commit":    {entry(newPack(1), packCommit, 2<<20).deflate(make([]byte, 2<<20)).sum(), "an object of 2MiB"},
		"larger than said": {entry(newPack(1), packBlob, 10).deflate(make([]byte, 4<<20)).sum(), "larger than it is said"},
		"smaller":          {entry(newPack(1), packBlob, 10).deflate([]byte("x")).sum(), "smaller than it is said"},
		"type 0":           {entry(newPack(1), 0, 1).deflate([]byte("x")).sum(), "unknown type 0"},
		"type 5":           {entry(newPack(1), 5, 1).deflate([]byte("x")).sum(), "unknown type 5"},
		"no zlib":          {append(entry(newPack(1), packBlob, 5).Bytes(), strings.Repeat("x", 50)...), "compressed"},
		"broken zlib":      {append(entry(newPack(1), packBlob, 5).Bytes(), "\x78\x9c\xff\xff\xff\xff\xff\xff"...), "compressed"},
		"delta of itself":  {entry(newPack(1), packOffsetDelta, 5).back(0).deflate(deltaOf(1, 1, "x")).sum(), "delta of nothing"},
		"delta of before":  {entry(newPack(1), packOffsetDelta, 5).back(1000).deflate(deltaOf(1, 1, "x")).sum(), "delta of nothing"},
		"delta of a middle": {func() []byte {
			p := newPack(2).object(packBlob, "text")
			p.header(packOffsetDelta, 5)
			return p.back(3).deflate(deltaOf(4, 1, "x")).sum()
		}(), "delta of nothing"},
		"delta of 1 TB": {func() []byte {
			d := deltaOf(4, 1<<40, "x")
			p := newPack(2).object(packBlob, "text")
			at := p.header(packOffsetDelta, int64(len(d)))
			return p.back(int64(at - 12)).deflate(d).sum()
		}(), "an object of 1TiB"},
		"a short delta": {func() []byte {
			p := newPack(2).object(packBlob, "text")
			at := p.header(packOffsetDelta, 2)
			return p.back(int64(at - 12)).deflate([]byte{0x80, 0x80}).sum()
		}(), "malformed delta"},
		"deep deltas": {deep(), "more than 4095 deltas"},
		"reference to itself": {func() []byte {
			p := newPack(1)
			p.header(packRefDelta, int64(len(deltaOf(5, 5, "other"))))
			p.WriteString(bytesOf(t, self))
			return p.deflate(deltaOf(5, 5, "other")).sum()
		}(), "git refuses"},
		"a circle": {func() []byte {
			p := newPack(2)
			for _, e := range []struct{ base, text string }{{first, "second\n"}, {second, "first\n"}} {
				d := deltaOf(13-len(e.text), len(e.text), e.text)
				p.header(packRefDelta, int64(len(d)))
				p.WriteString(bytesOf(t, e.base))
				p.deflate(d)
			}
			return p.sum()
		}(), "git refuses"},
		"twice":     {newPack(2).object(packBlob, "text").object(packBlob, "text").sum(), ""},
		"no commit": {newPack(1).object(packBlob, "text").sum(), "no commit of this push"},
		"a tag":     {newPack(1).object(packTag, "object "+q.base+"\ntype commit\ntag x\ntagger a <a@b> 1 +0000\n\nx").sum(), "no commit"},
	} {
		start := time.Now()
		line := zeroID(20) + " " + self + " refs/heads/work\x00report-status"
		r, answer, err := q.raw(append(commandLines(line), c.pack...))
		if err != nil || r == nil || len(r.Updates) > 0 || len(r.Denied) != 1 || !strings.Contains(r.Denied[0].Message, c.why) || !strings.Contains(answer, "ng refs/heads/work") {
			t.Errorf("%s: %+v, %q, %v", name, r, answer, err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		q.untouched(before, objects)
	}
}

// TestReceiveIncomplete sends less than is needed.
func TestReceiveIncomplete(t *testing.T) {
	q := newQuay(t)
	before, objects := q.state()
	q.write("a", "a\n")
	middle := q.commit("middle")
	q.write("b", strings.Repeat("line\n", 1000))
	hidden := q.commit("hidden")
	q.write("b", strings.Repeat("line\n", 1000)+"end\n")
	tip := q.commit("tip")
	for name, revs := range map[string]string{
		"a parent is missing":  tip + "\n^" + hidden + "\n",
		"parents are missing":  tip + "\n^" + middle + "\n",
		"a base is not shared": tip + "\n^" + hidden + "\n",
		"nothing":              tip + "\n^" + tip + "\n",
	} {
		out, err := q.try(q.work, revs, "pack-objects", "--revs", "--stdout", "-q", "--thin", "--delta-base-offset")
		if err != nil {
			t.Fatal(out)
		}
		r, answer, err := q.raw(append(commandLines(zeroID(20)+" "+tip+" refs/heads/work\x00report-status"), out...))
		if err != nil || len(r.Updates) > 0 || len(r.Denied) != 1 {
			t.Errorf("%s: %+v %q %v", name, r, answer, err)
		}
		q.untouched(before, objects)
	}
	// A file that only somebody else has: to know its name does not help.
	secret := q.object("blob", "not granted\n")
	tree := q.object("tree", "100644 x\x00"+bytesOf(t, secret))
	thief := q.object("commit", "tree "+tree+"\nparent "+q.base+"\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n")
	out, err := q.try(q.work, tree+"\n"+thief+"\n", "pack-objects", "--stdout", "-q")
	if err != nil {
		t.Fatal(out)
	}
	r, _, err := q.raw(append(commandLines(zeroID(20)+" "+thief+" refs/heads/work\x00report-status"), out...))
	if err != nil || len(r.Updates) > 0 || len(r.Denied) != 1 {
		t.Errorf("%+v %v", r, err)
	}
	q.untouched(before, objects)
}

// TestReceiveLimits is about what is only too much.
func TestReceiveLimits(t *testing.T) {
	q := newQuay(t)
	q.write("a", "a\n")
	q.commit("a")
	q.pushed()
	before, objects := q.state()
	q.write("zeros", strings.Repeat("\x00", 3<<20))
	q.commit("zeros")
	q.write("more", strings.Repeat("\x01", 3<<20))
	q.commit("more")
	for name, c := range map[string]struct {
		limits PushLimits
		rules  check.Rules
		why    string
	}{
		"file":    {PushLimits{}, check.Rules{MaxFile: 1 << 20}, "an object of 3MiB; the largest is 1MiB"},
		"total":   {PushLimits{Total: 5 << 20}, check.Rules{}, "more than 5MiB together"},
		"pack":    {PushLimits{Pack: 1000}, check.Rules{}, "the pack is larger than"},
		"objects": {PushLimits{Objects: 3}, check.Rules{}, "the most is 3"},
		"store":   {PushLimits{Store: 1}, check.Rules{}, "fills the 1B"},
		"commits": {PushLimits{Commits: 1}, check.Rules{}, "more than 1 new commits"},
		"files":   {PushLimits{}, check.Rules{MaxTotal: 1 << 20}, "together"},
	} {
		q.set(c.rules, c.limits)
		said, ok := q.push("work")
		if ok || q.err != nil || len(q.last.Updates) > 0 || !strings.Contains(said, c.why) {
			t.Errorf("%s: %s %+v %v", name, said, q.last, q.err)
		}
		q.untouched(before, objects)
	}
	q.set(check.Rules{}, PushLimits{Time: time.Nanosecond})
	if _, _, err := q.raw(commandLines(zeroID(20) + " " + q.base + " refs/heads/work")); err == nil {
		t.Error("a push in no time")
	}
	q.set(check.Rules{}, PushLimits{})
	if said, ok := q.push("work"); !ok {
		t.Error(said)
	}
}

// TestReceiveBusy lets one push in at a time, and removes what one that was killed has left.
func TestReceiveBusy(t *testing.T) {
	q := newQuay(t)
	first, err := openQuarantine(t.Context(), q.store)
	if err != nil {
		t.Fatal(err)
	}
	q.write("a", "a\n")
	q.commit("a")
	if said, ok := q.push("work"); ok || !strings.Contains(said, "another push") {
		t.Error(said)
	}
	first.lock.Close() // as if it had been killed
	if said, ok := q.push("work"); !ok {
		t.Error(said)
	}
	q.untouched(q.state())
}
