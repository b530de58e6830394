package httpapi

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// daemonRoutes serves requests about the daemon and its host: state, configuration, backups, disk usage and remains of crashes.
type daemonRoutes struct {
	core  caisson.Daemon
	execs *atomic.Int64 // number of processes that clients have started and wait for
}

func (h daemonRoutes) register(rt *router) {
	const tag = "daemon"
	registerRoute(rt, getOp("/info", "get-info", tag, "Get the version and the properties of the daemon"), withoutInput(h.core.Info))
	registerRoute(rt, getOp("/daemon", "get-daemon", tag, "Get the state of the daemon and its configuration (unix socket only)"), localOnly(h.status))
	registerRoute(rt, postOp("/daemon/reload", "reload-daemon", tag, "Read the configuration again and apply what can change at run time (unix socket only)"),
		localOnly(withoutInput(h.core.Reload)))
	registerDownloadRoute(rt, getOp("/daemon/backup", "backup-daemon", tag, "Read a backup of the data directory, which holds secrets (unix socket only)"),
		protocol.BinaryType, "An archive for caisson restore", localOnly(withoutInput(h.core.Backup)))
	registerRoute(rt, getOp("/df", "get-disk-usage", tag, "Get the disk usage of the data directory (unix socket only)"),
		localOnly(withoutInput(h.core.DiskUsage)))
	registerListRoute(rt, postOp("/gc", "collect-garbage", tag, "Remove files and processes that a crash left behind (unix socket only)"),
		localOnly(withoutInput(h.core.CollectGarbage)))
	registerListRoute(rt, getOp("/doctor", "examine-host", tag, "Check that the host meets Caisson's requirements (unix socket only)"),
		localOnly(withoutInput(h.core.Examine)))
}

// status returns the status of the daemon.
func (h daemonRoutes) status(ctx context.Context, _ *struct{}) (*caisson.DaemonStatus, error) {
	v, err := h.core.Status(ctx)
	if err != nil {
		return nil, err
	}
	v.Execs = int(h.execs.Load())
	return v, nil
}

// Announce returns a handler that adds two headers to the responses of h: the version of the daemon and, if changed returns keys,
// the keys of settings whose values in the configuration file differ from those in force.
func Announce(h http.Handler, version string, changed func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(protocol.VersionHeader, version)
		if keys := changed(); len(keys) > 0 {
			w.Header().Set(protocol.ChangedHeader, strings.Join(keys, ", "))
		}
		h.ServeHTTP(w, r)
	})
}
