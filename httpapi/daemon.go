package httpapi

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/httpapi/protocol"
)

// daemonRoutes serves information about the daemon, garbage collection and host checks.
type daemonRoutes struct {
	core  caisson.Daemon
	execs *atomic.Int64 // see [API]
}

func (h daemonRoutes) register(rt *router) {
	const tag = "daemon"
	registerRoute(rt, newOperation(http.MethodGet, "/info", "get-info", tag, "Get the version and the properties of the daemon"), h.info)
	registerRoute(rt, newOperation(http.MethodGet, "/daemon", "get-daemon", tag, "Get the state of the daemon and its configuration (unix socket only)"), h.status)
	registerRoute(rt, newOperation(http.MethodPost, "/daemon/reload", "reload-daemon", tag, "Read the configuration again and apply what can change at run time (unix socket only)"), h.reload)
	registerStreamRoute(rt, withResponse(newOperation(http.MethodGet, "/daemon/backup", "backup-daemon", tag, "Read a backup of the data directory, which holds secrets (unix socket only)"),
		http.StatusOK, protocol.BinaryType, "An archive for caisson restore"), h.backup)
	registerRoute(rt, newOperation(http.MethodGet, "/df", "get-disk-usage", tag, "What the data directory holds (unix socket only)"), h.df)
	registerRoute(rt, newOperation(http.MethodPost, "/gc", "collect-garbage", tag, "Remove files and processes that a crash left behind (unix socket only)"), h.gc)
	registerRoute(rt, newOperation(http.MethodGet, "/doctor", "examine-host", tag, "Check that the host meets Caisson's requirements (unix socket only)"), h.doctor)
}

func (h daemonRoutes) info(ctx context.Context, _ *struct{}) (*body[*caisson.Info], error) {
	v, err := h.core.Info(ctx)
	if err != nil {
		return nil, err
	}
	return &body[*caisson.Info]{v}, nil
}

// status returns the state of the daemon.
func (h daemonRoutes) status(ctx context.Context, _ *struct{}) (*body[*caisson.DaemonStatus], error) {
	if err := requireLocal(ctx); err != nil {
		return nil, err
	}
	v, err := h.core.Status(ctx)
	if err != nil {
		return nil, err
	}
	v.Execs = int(h.execs.Load())
	return &body[*caisson.DaemonStatus]{v}, nil
}

// reload reads the configuration again.
func (h daemonRoutes) reload(ctx context.Context, _ *struct{}) (*body[*caisson.Reloaded], error) {
	if err := requireLocal(ctx); err != nil {
		return nil, err
	}
	v, err := h.core.Reload(ctx)
	if err != nil {
		return nil, err
	}
	return &body[*caisson.Reloaded]{v}, nil
}

// backup sends a backup.
func (h daemonRoutes) backup(w http.ResponseWriter, r *http.Request, _ *struct{}) error {
	if err := requireLocal(r.Context()); err != nil {
		return err
	}
	archive, err := h.core.Backup(r.Context())
	if err != nil {
		return err
	}
	return streamBody(w, archive, protocol.BinaryType)
}

// df returns the disk usage of the data directory.
func (h daemonRoutes) df(ctx context.Context, _ *struct{}) (*body[*caisson.DiskUsage], error) {
	if err := requireLocal(ctx); err != nil {
		return nil, err
	}
	v, err := h.core.DiskUsage(ctx)
	if err != nil {
		return nil, err
	}
	return &body[*caisson.DiskUsage]{v}, nil
}

// gc removes what a crash left behind, and returns a list of it.
func (h daemonRoutes) gc(ctx context.Context, _ *struct{}) (*body[protocol.Page[caisson.Garbage]], error) {
	if err := requireLocal(ctx); err != nil {
		return nil, err
	}
	v, err := h.core.CollectGarbage(ctx)
	if err != nil {
		return nil, err
	}
	return wholeList(v), nil
}

// doctor checks the host.
func (h daemonRoutes) doctor(ctx context.Context, _ *struct{}) (*body[protocol.Page[caisson.Check]], error) {
	if err := requireLocal(ctx); err != nil {
		return nil, err
	}
	v, err := h.core.Examine(ctx)
	if err != nil {
		return nil, err
	}
	return wholeList(v), nil
}

// Announce returns a handler that adds headers to the responses of h: the version of the daemon, and the keys of settings that its
// files have other values for.
func Announce(h http.Handler, version string, changed func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set(protocol.VersionHeader, version)
		if keys := changed(); len(keys) > 0 {
			w.Header().Set(protocol.ChangedHeader, strings.Join(keys, ", "))
		}
		h.ServeHTTP(w, r)
	})
}
