package workspaces

import (
	"context"
	"os"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/job/gate"
	"github.com/caisson-dev/caisson/job/gate/apply"
	"github.com/caisson-dev/caisson/job/gate/baseline"
	"github.com/caisson-dev/caisson/job/gate/check"
	"github.com/caisson-dev/caisson/job/gate/compare"
	"github.com/caisson-dev/caisson/job/gate/overlay"
)

// Tool is the interface of package gate that the core requires, implemented by [*tool.Tool], whose worker jobs are
// unprivileged. The caller keeps and closes the files that it passes.
type Tool interface {
	Scan(ctx context.Context, root *os.File, hide, show []string, manifest *os.File) (baseline.ScanResult, error)
	Search(ctx context.Context, root, manifest *os.File, limits baseline.SearchLimits) (baseline.SearchResult, error)
	Cover(ctx context.Context, manifest, layer *os.File) error
	Base(ctx context.Context, root, manifest, dst *os.File, limits baseline.Limits) error
	Rebase(ctx context.Context, host, base *os.File, applied []baseline.Applied) error
	Freeze(ctx context.Context, upper, dst *os.File, limits overlay.FreezeLimits) (entries int, cut bool, err error)
	Compare(ctx context.Context, host, manifest, base, frozen *os.File, opts compare.Options) (*compare.Result, error)
	Part(ctx context.Context, host, frozen *os.File, step gate.Step, chosen []int) (gate.Step, error)
	Check(ctx context.Context, host, frozen *os.File, changes []caisson.Change, rules check.Rules) error
	Copy(ctx context.Context, root, manifest, dst *os.File, limits baseline.CopyLimits) (baseline.Copied, error)
	BaseOfCopy(ctx context.Context, copied, manifest, dst *os.File, limits baseline.Limits) error
	Forget(ctx context.Context, copied, base *os.File, paths []string) error
	Layer(ctx context.Context, manifest, frozen, layer *os.File, plan *gate.Plan) error
	Apply(ctx context.Context, host, saved, frozen *os.File, plan *gate.Plan) (apply.Outcome, error)
	Recover(ctx context.Context, host, saved *os.File) (apply.Outcome, error)
	Undo(ctx context.Context, host, saved *os.File) (apply.Outcome, error)
}
