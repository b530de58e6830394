package runs_test

import (
	"context"
	"slices"
	"testing"

	"github.com/caisson-dev/caisson"
)

// TestPlan: a run executes the plan that was made when it was requested. What has been taken away by the time of its attempt is not
// granted, and a run without a plan for the present agent, as older builds store them, is planned within its limits.
func TestPlan(t *testing.T) {
	t.Parallel()
	change := func(w *world, id caisson.ID, f func(*caisson.RunPlan) *caisson.RunPlan) {
		got(w.store.Store.Runs().Update(context.Background(), caisson.AllAccounts(), id, func(r *caisson.Run) error {
			r.Plan = f(r.Plan)
			return nil
		}))(w.t)
	}
	narrow := func(w *world, _ caisson.ID) { w.config.Agents.Budget = caisson.Limits{Calls: new(int64(3))} }
	for _, c := range []struct {
		name   string
		token  bool // the run was requested over a token
		change func(w *world, id caisson.ID)
		code   string // of the failure; "" for success
		words  string // of the failure
		models []string
		answer string // default: planned
	}{
		{name: "nothing changed", models: []string{"small", "large"}},
		{name: "a model was removed", change: func(w *world, _ caisson.ID) { w.models.set(nil, "small") }, models: []string{"small"}},
		{
			name: "its model was removed", change: func(w *world, _ caisson.ID) { w.models.set(nil, "large") },
			code: caisson.RunInvalid, words: `there is no model "small"`,
		},
		{
			name: "a model was added", change: func(w *world, _ caisson.ID) { w.models.set(nil, "new", "small", "large") },
			models: []string{"small", "large"},
		},
		{name: "limits were narrowed", token: true, change: narrow, code: caisson.RunInvalid, words: "limits.calls: is wider than 3"},
		{name: "limits were narrowed for others", change: narrow, models: []string{"small", "large"}},
		{
			name: "the agent was changed", change: func(w *world, _ caisson.ID) {
				w.put(caisson.Agent{ID: "a", Models: []string{"large", "small"}, Env: map[string]string{"MADE": "anew"}})
			}, models: []string{"small", "large"}, answer: "anew",
		},
		{
			name: "the agent may not use its model any more", change: func(w *world, _ caisson.ID) {
				w.put(caisson.Agent{ID: "a", Models: []string{"large"}})
			}, code: caisson.RunInvalid, words: "may not use",
		},
		{
			name: "of an older build", change: func(w *world, id caisson.ID) {
				change(w, id, func(*caisson.RunPlan) *caisson.RunPlan { return nil })
			}, models: []string{"small", "large"},
		},
		{
			name: "of an older build, with wider limits", token: true, change: func(w *world, id caisson.ID) {
				change(w, id, func(*caisson.RunPlan) *caisson.RunPlan { return nil })
				narrow(w, id)
			}, code: caisson.RunInvalid, words: "limits.calls: is wider than 3",
		},
		{
			name: "of another version", change: func(w *world, id caisson.ID) {
				change(w, id, func(p *caisson.RunPlan) *caisson.RunPlan {
					p.Version++
					p.Env = map[string]string{"MADE": "by another build"}
					return p
				})
			}, models: []string{"small", "large"},
		},
		{
			name: "what is stored is executed", change: func(w *world, id caisson.ID) {
				change(w, id, func(p *caisson.RunPlan) *caisson.RunPlan {
					p.Env["MADE"], p.Models = "at first", []string{"large"}
					return p
				})
			}, models: []string{"large"}, answer: "at first",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := plan{limits: limitsOf(1, 1)}.world(t)
			w.down()
			w.config.Agents.Budget = caisson.Limits{Calls: new(int64(9))}
			w.up()
			w.models.set(nil, "small", "large")
			w.put(caisson.Agent{
				ID: "a", Models: []string{"small", "large"}, Env: map[string]string{"MADE": "planned"},
				Gateway: caisson.GatewayUse{Allow: []string{caisson.GrantBeta}, Record: true},
			})
			var granted []string
			w.on("tell", func(v *turn) int {
				r := w.stored(caisson.ID(env(v.task.Env, "CAISSON_RUN")))
				g := w.box(r.Sandbox).Assigned.Models
				if granted = g.Models; g.Record != slices.Contains(g.Allow, caisson.GrantBeta) {
					t.Errorf("the grant is %+v", g)
				}
				v.text(env(v.task.Env, "MADE"))
				return v.end(nil)
			})
			began, _ := w.hangs("first")
			w.start(caisson.RunRequest{Prompt: "first"})
			receive(t, began)
			ctx := w.ctx()
			if c.token {
				ctx = w.as(caisson.LocalAccount)
			}
			r := got(w.Runs().StartRun(ctx, caisson.RunRequest{Agent: "a", Prompt: "tell"}))(t)
			if p := w.stored(r.ID).Plan; p == nil || !slices.Equal(p.Models, []string{"small", "large"}) || p.Env["MADE"] != "planned" {
				t.Fatalf("the stored plan is %+v", p)
			}
			w.down() // The first run fails, and the second one is queued again.
			if c.change != nil {
				c.change(w, r.ID)
			}
			w.up()
			r = w.ended(r.ID)
			if c.code != "" {
				wantFailed(t, r, c.code, c.words)
				return
			}
			answer := c.answer
			if answer == "" {
				answer = "planned"
			}
			wantAnswer(t, r, answer)
			if !slices.Equal(granted, c.models) {
				t.Errorf("it was granted %v, want %v", granted, c.models)
			}
			if r.Plan == nil || r.Plan.Version != 1 {
				t.Errorf("the stored plan is %+v", r.Plan)
			}
		})
	}
}
