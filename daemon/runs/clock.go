package runs

import (
	"slices"
	"sync"
	"time"

	"github.com/caisson-dev/caisson"
)

// A clock measures the phases of a run.
type clock struct {
	mu     sync.Mutex
	began  time.Time       // start of the current phase; guarded by mu
	phases []caisson.Phase // guarded by mu, because package sandboxes adds phases from other goroutines
}

// start begins a phase without ending another one.
func (x *clock) start() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.began = time.Now()
}

// phase ends the current phase, which gets the given name, and begins the next one.
func (x *clock) phase(name string) {
	t := time.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.add(name, t.Sub(x.began))
	x.began = t
}

// addPart records a part of the current phase as a phase of its own.
func (x *clock) addPart(name string, d time.Duration) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.add(name, d)
	x.began = x.began.Add(d)
}

// add adds d to a phase. The caller must hold mu.
func (x *clock) add(name string, d time.Duration) {
	d = max(0, d)
	for i := range x.phases {
		if x.phases[i].Name == name {
			x.phases[i].Time += caisson.Duration(d)
			return
		}
	}
	x.phases = append(x.phases, caisson.Phase{Name: name, Time: caisson.Duration(d)})
}

// split returns the phases, with the time of model calls taken out of the phase "agent".
func (x *clock) split(model time.Duration) []caisson.Phase {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := slices.Clone(x.phases)
	i := slices.IndexFunc(list, func(p caisson.Phase) bool { return p.Name == "agent" })
	if i < 0 || model == 0 {
		return list
	}
	spent := min(caisson.Duration(model), list[i].Time)
	list[i].Time -= spent
	return slices.Insert(list, i, caisson.Phase{Name: "model", Time: spent})
}
