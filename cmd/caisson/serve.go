package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/client"
	"github.com/caisson-dev/caisson/daemon/engine"
	"github.com/caisson-dev/caisson/daemon/models"
	"github.com/caisson-dev/caisson/httpapi"
	"github.com/caisson-dev/caisson/internal/reach"
)

// serve runs the daemon until ctx ends or, if background is set, until it is idle. When the daemon is ready, serve reports that
// to the command that started it, and to systemd.
//
// load returns the validated configuration.
func serve(ctx context.Context, a *app, load func() (*config, error), background bool) error {
	cfg, err := load()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return caisson.Errorf(caisson.Denied, needRoot)
	}
	st := &settings{load: load, background: background, level: &slog.LevelVar{}, inForce: cfg, seen: cfg.stamps()}
	if err := st.level.UnmarshalText([]byte(cfg.LogLevel)); err != nil {
		return caisson.Invalidf("logLevel", "%q is not one of debug, info, warn, error", cfg.LogLevel)
	}
	if st.offer, err = cfg.offer(); err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: st.level}))
	st.log = log.With("component", "settings")
	var lockWait time.Duration
	// The command that started this daemon found no daemon that accepts connections, but a daemon that is exiting may still hold
	// the lock of the data directory.
	if background {
		lockWait = 10 * time.Second
	}
	e, err := engine.New(ctx, engine.Config{
		Data: engine.DataConfig{
			Dir: cfg.DataDir, ConfigFile: cfg.File, LockWait: lockWait, EventRetention: time.Duration(cfg.EventRetention), CredentialKey: cfg.keySource(),
		},
		Platform: cfg.Platform, Limits: cfg.Limits,
		Images: engine.ImageConfig{InsecureRegistries: cfg.InsecureRegistries, CA: cfg.RegistryCA},
		Models: engine.ModelConfig{
			Offer: st.offer, CA: cfg.ProviderCA,
			Gateway: models.GatewayConfig{GatewaySettings: cfg.Gateway, Remote: func(token caisson.Secret) (models.RemoteGateway, error) {
				return client.New(client.Config{URL: cfg.Gateway.RemoteAPI, Token: token, CAFile: cfg.Gateway.RemoteCA})
			}},
		},
		Addresses: engine.AddressConfig{
			Listen: []string{cfg.Listen, cfg.Gateway.Listen, cfg.Ingress.Listen, cfg.SSH.Listen}, Public: cfg.publicPrefixes(),
		},
		Agents: engine.AgentConfig{Dir: cfg.AgentsDir, Limits: cfg.Runs},
		Work:   engine.WorkConfig{Workspaces: cfg.Workspaces, Relay: cfg.Relay},
		Access: engine.AccessConfig{Ingress: cfg.Ingress, SSH: cfg.SSH}, Settings: st, Version: buildVersion().Version, Log: log,
	})
	if err != nil {
		return err
	}
	st.setOffer = e.SetOffer
	release := a.interrupts.setHandler(func(s os.Signal) {
		if s == syscall.SIGHUP {
			_, _ = st.Reload(ctx) // Reload logs its result
			return
		}
		a.interrupts.setCancelledBy(s)
		a.interrupts.cancel()
	})
	err = listenAndServe(ctx, cfg, st, e, log)
	release()
	return errors.Join(err, e.Close())
}

// listenAndServe serves the API of e until ctx ends or, in a background daemon, until the daemon has been idle for cfg.IdleExit.
func listenAndServe(ctx context.Context, cfg *config, st *settings, e *engine.Engine, log *slog.Logger) error {
	api, err := httpapi.New(httpapi.Config{
		API: e.API(), Answers: e.Store().Answers(), FindToken: e.Tokens().FindToken, FindAccount: e.Store().Accounts().Get,
		Log: log.With("component", "httpapi"),
	})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	g, gctx := errgroup.WithContext(ctx)
	clients := &requestCounter{}
	g.Go(func() error {
		<-gctx.Done()
		return api.Close() // ends streamed responses, for which the servers would wait, and exec sessions
	})
	g.Go(func() error {
		return e.Run(gctx, func() error {
			local, err := listenUnix(cfg.SocketPath())
			if err != nil {
				return err
			}
			serveOn(g, gctx, httpapi.Server(clients.count(httpapi.Announce(api.Local(), buildVersion().Version, st.changedNow)), log), local)
			if cfg.Listen != "" {
				remote, err := listenTCP(cfg)
				if err != nil {
					return err
				}
				serveOn(g, gctx, httpapi.Server(api.Remote(), log), remote)
			}
			if st.background && cfg.IdleExit > 0 {
				g.Go(func() error { return stopWhenIdle(gctx, time.Duration(cfg.IdleExit), clients, e, stop) })
			}
			log.InfoContext(gctx, "serving", "socket", cfg.SocketPath(), "listen", cfg.Listen)
			if err := signalReady(nil); err != nil {
				return err
			}
			// Return the memory that was needed for starting; otherwise an idle daemon would keep it for minutes.
			debug.FreeOSMemory()
			return nil
		})
	})
	return g.Wait()
}

// serveOn starts goroutines in g that serve the connections of l until ctx ends.
func serveOn(g *errgroup.Group, ctx context.Context, server *http.Server, l net.Listener) {
	g.Go(func() error {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	g.Go(func() error {
		<-ctx.Done()
		// Active requests get 2 s to finish. Those with streamed responses might never finish.
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if server.Shutdown(sctx) != nil {
			server.Close()
		}
		return nil
	})
}

// listenUnix listens on the data directory's unix socket. This process holds the directory's lock, so that an existing socket is
// stale, and listenUnix removes it.
func listenUnix(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, caisson.Wrap(err, caisson.Unavailable, "cannot listen on %s; is the path longer than 100 characters?", path)
	}
	// The umask has set this mode already. Until Chmod has confirmed it, the mode of the data directory prevents access.
	return l, os.Chmod(path, socketMode)
}

// listenTCP listens on the configured TCP address, with TLS if a certificate is configured, and limits the connections.
func listenTCP(cfg *config) (net.Listener, error) {
	l, err := reach.Listen("listen", cfg.Listen)
	if err != nil {
		return nil, err
	}
	l = httpapi.Limit(l)
	if cfg.TLSCert == "" {
		return l, nil // without TLS only on loopback, as config.validate has checked
	}
	cert, err := tls.LoadX509KeyPair(cfg.TLSCert, cfg.TLSKey)
	if err != nil {
		l.Close()
		return nil, caisson.Invalidf("tlsCert", "cannot be used with tlsKey: %v", err)
	}
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}), nil
}

// requestCounter counts the active requests, and records since when there has been none.
type requestCounter struct {
	mu         sync.Mutex
	active     int       // number of active requests; guarded by mu
	lastChange time.Time // when a request last began or ended, or when stopWhenIdle began; guarded by mu
}

// count returns a handler that counts the requests to h.
func (c *requestCounter) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.add(1)
		defer c.add(-1)
		h.ServeHTTP(w, r)
	})
}

// add adds n to the number of active requests and sets lastChange to the present time. n may be 0, to set only lastChange.
func (c *requestCounter) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active += n
	c.lastChange = time.Now()
}

// idleFor returns the time since the last request ended, or 0 if requests are active.
func (c *requestCounter) idleFor() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active > 0 {
		return 0
	}
	return time.Since(c.lastChange)
}

// stopWhenIdle calls stop when there has been no request for limit and e.Idle reports that the daemon may exit.
func stopWhenIdle(ctx context.Context, limit time.Duration, clients *requestCounter, e *engine.Engine, stop func()) error {
	clients.add(0)
	tick := time.NewTicker(max(limit/4, 50*time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if clients.idleFor() < limit {
			continue
		}
		idle, err := e.Idle(ctx)
		if err != nil {
			return fmt.Errorf("check for running sandboxes: %w", err)
		}
		if idle {
			stop()
			return nil
		}
	}
}
