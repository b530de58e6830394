package main

import (
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// restFlags are the flags for what happens to a new sandbox at rest and at its end.
type restFlags struct {
	AutoPause     *autoPause `help:"What happens after times without use, all or some of suspend=5m,pause=30m,stop=24h, or never." group:"new" placeholder:"STEPS"`
	FinalSnapshot *bool      `negatable:"" help:"Take a snapshot before --hard-ttl removes it." group:"new"`
}

// autoPause is a [caisson.AutoPause] as a flag: steps with their times, separated by commas, or never.
type autoPause caisson.AutoPause

// times returns the fields by their names in the flag.
func (p *autoPause) times() []struct {
	name string
	time *caisson.Duration
} {
	return []struct {
		name string
		time *caisson.Duration
	}{{"suspend", &p.Suspend}, {"pause", &p.Pause}, {"stop", &p.Stop}}
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (p *autoPause) UnmarshalText(text []byte) error {
	*p = autoPause{}
	if string(text) == "never" {
		return nil
	}
	seen := map[string]bool{}
next:
	for part := range strings.SplitSeq(string(text), ",") {
		name, after, _ := strings.Cut(part, "=")
		for _, f := range p.times() {
			if f.name != name || seen[name] {
				continue
			}
			seen[name] = true
			if err := f.time.UnmarshalText([]byte(after)); err != nil {
				return err
			}
			continue next
		}
		return caisson.Errorf(caisson.Invalid, "write suspend=5m,pause=30m,stop=24h or some of it, or never; not %.70q", part)
	}
	return nil
}

// String returns p in the form of the flag; "" if it says nothing.
func (p autoPause) String() string {
	var list []string
	for _, f := range p.times() {
		if *f.time != 0 {
			list = append(list, f.name+"="+f.time.String())
		}
	}
	return strings.Join(list, ",")
}

// value returns p, which may be nil, for a request.
func (p *autoPause) value() *caisson.AutoPause { return (*caisson.AutoPause)(p) }

// wakeAt is a time as a flag; zero means never.
type wakeAt time.Time

// UnmarshalText implements [encoding.TextUnmarshaler].
func (w *wakeAt) UnmarshalText(text []byte) error {
	if string(text) == "never" {
		*w = wakeAt{}
		return nil
	}
	var after caisson.Duration
	if err := after.UnmarshalText(text); err == nil && after >= 0 {
		*w = wakeAt(time.Now().Add(time.Duration(after)))
		return nil
	}
	t, err := time.Parse(time.RFC3339, string(text))
	if err != nil {
		return caisson.Errorf(caisson.Invalid, "write a time like 2026-01-31T07:00:00Z, a duration like 8h, or never; not %.70q", text)
	}
	*w = wakeAt(t)
	return nil
}

// value returns w, which may be nil, for a request.
func (w *wakeAt) value() *time.Time { return (*time.Time)(w) }
