package quarantine_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/relay/packtest"
	"github.com/caisson-dev/caisson/job/relay/quarantine"
	"github.com/caisson-dev/caisson/job/relay/receive"
	"github.com/caisson-dev/caisson/job/relay/relaytest"
)

// TestReceivePacks pushes packs that git would not send.
func TestReceivePacks(t *testing.T) {
	q := relaytest.New(t)
	before, objects := q.State()
	blob := func(text string) string { return q.Object("blob", text) }
	first, second := blob("first\n"), blob("second\n")
	self := strings.Repeat("1", 40)
	entry := func(p *packtest.PackWriter, typ byte, size int64) *packtest.PackWriter { p.Header(typ, size); return p }
	deep := func() []byte {
		p := packtest.NewPack(quarantine.MaxDeltaChain + 3)
		at := p.Header(quarantine.PackBlob, 1)
		p.Deflate([]byte("x"))
		for range quarantine.MaxDeltaChain + 2 {
			d := packtest.DeltaOf(1, 1, "x")
			next := p.Header(quarantine.PackOffsetDelta, int64(len(d)))
			p.Back(int64(next - at)).Deflate(d)
			at = next
		}
		return p.Sum()
	}
	for name, c := range map[string]struct {
		pack []byte
		why  string
	}{
		"none":             {nil, "cut off"},
		"nonsense":         {[]byte("this is no pack at all"), "no pack"},
		"version 3":        {[]byte("PACK\x00\x00\x00\x03\x00\x00\x00\x00"), "version 2"},
		"cut off":          {packtest.NewPack(1).Object(quarantine.PackBlob, "text").Sum()[:20], "cut off"},
		"no checksum":      {packtest.NewPack(1).Object(quarantine.PackBlob, "text").Bytes(), "cut off"},
		"bad checksum":     {append(packtest.NewPack(1).Object(quarantine.PackBlob, "text").Bytes(), make([]byte, 20)...), "git refuses"},
		"more follows":     {append(packtest.NewPack(1).Object(quarantine.PackBlob, "text").Sum(), 'x'), "follows"},
		"fewer":            {packtest.NewPack(2).Object(quarantine.PackBlob, "text").Sum(), ""},
		"more":             {packtest.NewPack(1).Object(quarantine.PackBlob, "text").Object(quarantine.PackBlob, "more").Sum(), "follows"},
		"four billion":     {packtest.NewPack(0xffffffff).Object(quarantine.PackBlob, "text").Sum(), "4294967295 objects"},
		"50 GB":            {entry(packtest.NewPack(1), quarantine.PackBlob, 50<<30).Deflate(make([]byte, 1<<20)).Sum(), "an object of 50GiB"},
		"terabytes":        {entry(packtest.NewPack(1), quarantine.PackBlob, 1<<46).Sum(), "an object of"},
		"endless size":     {append(packtest.NewPack(1).Bytes(), bytes.Repeat([]byte{0xbf}, 100)...), "impossible size"},
		"a huge commit":    {entry(packtest.NewPack(1), quarantine.PackCommit, 2<<20).Deflate(make([]byte, 2<<20)).Sum(), "an object of 2MiB"},
		"larger than said": {entry(packtest.NewPack(1), quarantine.PackBlob, 10).Deflate(make([]byte, 4<<20)).Sum(), "larger than its header"},
		"smaller":          {entry(packtest.NewPack(1), quarantine.PackBlob, 10).Deflate([]byte("x")).Sum(), "smaller than its header"},
		"type 0":           {entry(packtest.NewPack(1), 0, 1).Deflate([]byte("x")).Sum(), "unknown type 0"},
		"type 5":           {entry(packtest.NewPack(1), 5, 1).Deflate([]byte("x")).Sum(), "unknown type 5"},
		"no zlib":          {append(entry(packtest.NewPack(1), quarantine.PackBlob, 5).Bytes(), strings.Repeat("x", 50)...), "compressed"},
		"broken zlib":      {append(entry(packtest.NewPack(1), quarantine.PackBlob, 5).Bytes(), "\x78\x9c\xff\xff\xff\xff\xff\xff"...), "compressed"},
		"delta of itself":  {entry(packtest.NewPack(1), quarantine.PackOffsetDelta, 5).Back(0).Deflate(packtest.DeltaOf(1, 1, "x")).Sum(), "delta of nothing"},
		"delta of before":  {entry(packtest.NewPack(1), quarantine.PackOffsetDelta, 5).Back(1000).Deflate(packtest.DeltaOf(1, 1, "x")).Sum(), "delta of nothing"},
		"delta of a middle": {func() []byte {
			p := packtest.NewPack(2).Object(quarantine.PackBlob, "text")
			p.Header(quarantine.PackOffsetDelta, 5)
			return p.Back(3).Deflate(packtest.DeltaOf(4, 1, "x")).Sum()
		}(), "delta of nothing"},
		"delta of 1 TB": {func() []byte {
			d := packtest.DeltaOf(4, 1<<40, "x")
			p := packtest.NewPack(2).Object(quarantine.PackBlob, "text")
			at := p.Header(quarantine.PackOffsetDelta, int64(len(d)))
			return p.Back(int64(at - 12)).Deflate(d).Sum()
		}(), "an object of 1TiB"},
		"a short delta": {func() []byte {
			p := packtest.NewPack(2).Object(quarantine.PackBlob, "text")
			at := p.Header(quarantine.PackOffsetDelta, 2)
			return p.Back(int64(at - 12)).Deflate([]byte{0x80, 0x80}).Sum()
		}(), "malformed delta"},
		"deep deltas": {deep(), "more than 4095 deltas"},
		"reference to itself": {func() []byte {
			p := packtest.NewPack(1)
			p.Header(quarantine.PackRefDelta, int64(len(packtest.DeltaOf(5, 5, "other"))))
			p.WriteString(relaytest.BytesOf(t, self))
			return p.Deflate(packtest.DeltaOf(5, 5, "other")).Sum()
		}(), "git refuses"},
		"a circle": {func() []byte {
			p := packtest.NewPack(2)
			for _, e := range []struct{ base, text string }{{first, "second\n"}, {second, "first\n"}} {
				d := packtest.DeltaOf(13-len(e.text), len(e.text), e.text)
				p.Header(quarantine.PackRefDelta, int64(len(d)))
				p.WriteString(relaytest.BytesOf(t, e.base))
				p.Deflate(d)
			}
			return p.Sum()
		}(), "git refuses"},
		"twice":     {packtest.NewPack(2).Object(quarantine.PackBlob, "text").Object(quarantine.PackBlob, "text").Sum(), ""},
		"no commit": {packtest.NewPack(1).Object(quarantine.PackBlob, "text").Sum(), "no commit of this push"},
		"a tag":     {packtest.NewPack(1).Object(quarantine.PackTag, "object "+q.Base+"\ntype commit\ntag x\ntagger a <a@b> 1 +0000\n\nx").Sum(), "no commit"},
	} {
		start := time.Now()
		line := quarantine.ZeroID(20) + " " + self + " refs/heads/work\x00report-status"
		r, answer, err := q.PostRaw(append(packtest.CommandLines(line), c.pack...))
		if err != nil || r == nil || len(r.Updates) > 0 || len(r.Denied) != 1 || !strings.Contains(r.Denied[0].Message, c.why) || !strings.Contains(answer, "ng refs/heads/work") {
			t.Errorf("%s: %+v, %q, %v", name, r, answer, err)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		q.CheckUnchanged(before, objects)
	}
}

// TestReceiveIncomplete pushes packs with missing objects.
func TestReceiveIncomplete(t *testing.T) {
	q := relaytest.New(t)
	before, objects := q.State()
	q.Write("a", "a\n")
	middle := q.Commit("middle")
	q.Write("b", strings.Repeat("line\n", 1000))
	hidden := q.Commit("hidden")
	q.Write("b", strings.Repeat("line\n", 1000)+"end\n")
	tip := q.Commit("tip")
	for name, revs := range map[string]string{
		"a parent is missing":  tip + "\n^" + hidden + "\n",
		"parents are missing":  tip + "\n^" + middle + "\n",
		"a base is not shared": tip + "\n^" + hidden + "\n",
		"nothing":              tip + "\n^" + tip + "\n",
	} {
		out, err := q.Try(q.Work, revs, "pack-objects", "--revs", "--stdout", "-q", "--thin", "--delta-base-offset")
		if err != nil {
			t.Fatal(out)
		}
		r, answer, err := q.PostRaw(append(packtest.CommandLines(quarantine.ZeroID(20)+" "+tip+" refs/heads/work\x00report-status"), out...))
		if err != nil || len(r.Updates) > 0 || len(r.Denied) != 1 {
			t.Errorf("%s: %+v %q %v", name, r, answer, err)
		}
		q.CheckUnchanged(before, objects)
	}
	// A file that was not granted: the sandbox cannot obtain it by its name.
	secret := q.Object("blob", "not granted\n")
	tree := q.Object("tree", "100644 x\x00"+relaytest.BytesOf(t, secret))
	thief := q.Object("commit", "tree "+tree+"\nparent "+q.Base+"\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nx\n")
	out, err := q.Try(q.Work, tree+"\n"+thief+"\n", "pack-objects", "--stdout", "-q")
	if err != nil {
		t.Fatal(out)
	}
	r, _, err := q.PostRaw(append(packtest.CommandLines(quarantine.ZeroID(20)+" "+thief+" refs/heads/work\x00report-status"), out...))
	if err != nil || len(r.Updates) > 0 || len(r.Denied) != 1 {
		t.Errorf("%+v %v", r, err)
	}
	q.CheckUnchanged(before, objects)
}

// TestReceiveLimits checks the limits of pushes.
func TestReceiveLimits(t *testing.T) {
	q := relaytest.New(t)
	q.Write("a", "a\n")
	q.Commit("a")
	q.Pushed()
	before, objects := q.State()
	q.Write("zeros", strings.Repeat("\x00", 3<<20))
	q.Commit("zeros")
	q.Write("more", strings.Repeat("\x01", 3<<20))
	q.Commit("more")
	for name, c := range map[string]struct {
		limits receive.Limits
		rules  check.Rules
		why    string
	}{
		"file":    {receive.Limits{}, check.Rules{MaxFile: 1 << 20}, "an object of 3MiB; the largest is 1MiB"},
		"total":   {receive.Limits{Total: 5 << 20}, check.Rules{}, "more than 5MiB together"},
		"pack":    {receive.Limits{Pack: 1000}, check.Rules{}, "the pack is larger than"},
		"objects": {receive.Limits{Objects: 3}, check.Rules{}, "the most is 3"},
		"store":   {receive.Limits{Store: 1}, check.Rules{}, "fills the 1B"},
		"commits": {receive.Limits{Commits: 1}, check.Rules{}, "more than 1 new commits"},
		"files":   {receive.Limits{}, check.Rules{MaxTotal: 1 << 20}, "together"},
	} {
		q.Set(c.rules, c.limits)
		said, ok := q.Push("work")
		if ok || q.Err != nil || len(q.Last.Updates) > 0 || !strings.Contains(said, c.why) {
			t.Errorf("%s: %s %+v %v", name, said, q.Last, q.Err)
		}
		q.CheckUnchanged(before, objects)
	}
	q.Set(check.Rules{}, receive.Limits{Time: time.Nanosecond})
	if _, _, err := q.PostRaw(packtest.CommandLines(quarantine.ZeroID(20) + " " + q.Base + " refs/heads/work")); err == nil {
		t.Error("a push in no time")
	}
	q.Set(check.Rules{}, receive.Limits{})
	if said, ok := q.Push("work"); !ok {
		t.Error(said)
	}
}

// TestReceiveBusy checks that only one push runs at a time, and that the remains of a killed push are removed.
func TestReceiveBusy(t *testing.T) {
	q := relaytest.New(t)
	first, err := quarantine.Open(t.Context(), q.Store)
	if err != nil {
		t.Fatal(err)
	}
	q.Write("a", "a\n")
	q.Commit("a")
	if said, ok := q.Push("work"); ok || !strings.Contains(said, "another push") {
		t.Error(said)
	}
	first.Lock.Close() // as if the process had been killed
	if said, ok := q.Push("work"); !ok {
		t.Error(said)
	}
	q.CheckUnchanged(q.State())
}
