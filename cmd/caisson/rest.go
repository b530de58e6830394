package main

import (
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// autoPauseFlags are the flags that define when a new sandbox without use is suspended, paused and stopped, and whether a
// snapshot is taken before the sandbox is removed at the time that --hard-ttl sets.
type autoPauseFlags struct {
	AutoPause     *autoPause `help:"What happens after times without use, all or some of suspend=5m,pause=30m,stop=24h, or never." group:"new" placeholder:"STEPS"`
	FinalSnapshot *bool      `negatable:"" help:"Take a snapshot before --hard-ttl removes it." group:"new"`
}

// autoPause is a [caisson.AutoPause] as the value of a flag: steps with their times, separated by commas, or never.
type autoPause caisson.AutoPause

// times returns pointers to the fields of p by their names in the value of the flag.
func (p *autoPause) times() map[string]*caisson.Duration {
	return map[string]*caisson.Duration{"suspend": &p.Suspend, "pause": &p.Pause, "stop": &p.Stop}
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (p *autoPause) UnmarshalText(text []byte) error {
	*p = autoPause{}
	if string(text) == "never" {
		return nil
	}
	left := p.times()
	for part := range strings.SplitSeq(string(text), ",") {
		name, after, _ := strings.Cut(part, "=")
		field, ok := left[name]
		if !ok {
			return caisson.Errorf(caisson.Invalid, "write suspend=5m,pause=30m,stop=24h or some of it, or never; not %.70q", part)
		}
		delete(left, name) // so that a second value for the same step is an error
		if err := field.UnmarshalText([]byte(after)); err != nil {
			return err
		}
	}
	return nil
}

// String returns p as the value of the flag, or "" if p has no steps.
func (p autoPause) String() string {
	var list []string
	times := p.times()
	for _, name := range []string{"suspend", "pause", "stop"} {
		if *times[name] != 0 {
			list = append(list, name+"="+times[name].String())
		}
	}
	return strings.Join(list, ",")
}

// value returns p as the type that requests contain; nil if p is nil.
func (p *autoPause) value() *caisson.AutoPause { return (*caisson.AutoPause)(p) }

// wakeAt is the time at which a sandbox wakes, as the value of a flag; zero means never.
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

// value returns w as the type that requests contain; nil if w is nil.
func (w *wakeAt) value() *time.Time { return (*time.Time)(w) }
