package main

import (
	"context"
	"slices"

	"github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/daemon/engine"
	"github.com/caisson-dev/caisson/internal/hostcheck"
	"github.com/caisson-dev/caisson/internal/safetext"
)

// doctorCmd checks the configuration, this machine and the daemon.
type doctorCmd struct{}

func (c *doctorCmd) Help() string {
	return "It works without a daemon and for every user; as root it checks more. The exit code is 1 if a check failed.\n\n" +
		examples("sudo caisson doctor", "sudo caisson doctor --data /srv/caisson -o json")
}

func (c *doctorCmd) Run(ctx context.Context, a *app) error {
	configured := caisson.Check{Name: "configuration", Status: caisson.CheckOK, Detail: "there is no file; defaults are used"}
	cfg, err := configOrDefaults(a)
	switch {
	case err != nil:
		configured.Status, configured.Detail, configured.Remedy = caisson.CheckFailed, safetext.Escape(splitErrors(err)[0].Error()), "edit the file; caisson config show --file prints what it says"
		cfg = defaultConfig()
		if of, err := loadConnection(a.globals, a.getenv); err == nil {
			cfg = of
		}
	case cfg.fileMissing:
		configured.Status, configured.Detail, configured.Remedy = caisson.CheckFailed, cfg.lookedFor+" does not exist", "caisson init "+cfg.lookedFor
	case cfg.File != "":
		configured.Detail = cfg.File + " is valid"
	}
	a.cfg = cfg // with cfg set, the requests below neither read the file again nor report its errors again
	checks := append(hostcheck.Run(ctx, hostcheck.Config{DataDir: cfg.DataDir, Probe: engine.Probe{}}), configured)
	checks = a.addDaemonChecks(ctx, checks)
	err = printChecks(a, "CHECK", checks, func(c caisson.Check) caisson.Check { return c })
	if err == nil && hostcheck.Worst(checks) == caisson.CheckFailed {
		return processExit(1) // no error is printed, because the table shows the failed check
	}
	return err
}

// addDaemonChecks adds the status of a running daemon and the results of the daemon's checks of its host to checks. The daemon's
// results replace those of this process with the same name, because they describe the environment in which the daemon runs.
func (a *app) addDaemonChecks(ctx context.Context, checks []caisson.Check) []caisson.Check {
	api, err := a.connectRunning(ctx)
	if err != nil {
		return append(checks, caisson.Check{Name: "daemon", Status: caisson.CheckOK, Detail: "none answers; commands start one when they need it"})
	}
	info, err := api.Info(ctx)
	if err != nil {
		return append(checks, caisson.Check{
			Name: "daemon", Status: caisson.CheckFailed, Detail: newErrorReport(err).Message, Remedy: "see the daemon's log",
		})
	}
	checks = append(checks, caisson.Check{
		Name: "daemon", Status: caisson.CheckOK, Detail: "version " + info.Version + " runs since " + formatTime(info.StartedAt),
	})
	theirs, err := api.Examine(ctx)
	if err != nil {
		return checks // some daemons refuse this request, for example to clients over TCP
	}
	for _, t := range theirs {
		i := slices.IndexFunc(checks, func(c caisson.Check) bool { return c.Name == t.Name })
		if i >= 0 {
			checks[i] = t
			continue
		}
		checks = append(checks, t)
	}
	return checks
}
