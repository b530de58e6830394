package main

import (
	"context"
	"path/filepath"

	"github.com/caisson-dev/caisson"
)

// serveCmd runs the daemon. Its flags override settings of the configuration.
type serveCmd struct {
	Listen           string            `help:"Also serve the API on this TCP address, to clients with a token." placeholder:"HOST:PORT"`
	TLSCert          string            `name:"tls-cert" help:"Certificate for --listen, in PEM; required except on loopback." placeholder:"FILE" complete:"file"`
	TLSKey           string            `name:"tls-key" help:"Private key of the certificate." placeholder:"FILE" complete:"file"`
	Platform         string            `help:"How gVisor intercepts system calls: auto, systrap or ptrace."`
	MaxSandboxes     int               `help:"Maximum number of sandboxes." placeholder:"N"`
	InsecureRegistry []string          `help:"Use this registry without TLS." placeholder:"HOST:PORT"`
	LogLevel         string            `help:"debug, info, warn or error."`
	IdleExit         *caisson.Duration `help:"With --background: exit after this time without client and sandbox; 0s means never." placeholder:"DURATION"`
	Background       bool              `hidden:"" help:"Started by a command: end when idle."`
}

func (c *serveCmd) Help() string {
	return examples("sudo caisson serve", "sudo caisson serve --listen 127.0.0.1:7070",
		"sudo caisson serve --listen 0.0.0.0:7443 --tls-cert /etc/caisson/cert.pem --tls-key /etc/caisson/key.pem")
}

func (c *serveCmd) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, func(*config) error { return nil })
}

// run runs the daemon. Settings of its configuration are replaced by the flags of c, and then by the function also.
func (c *serveCmd) run(ctx context.Context, a *app, also func(*config) error) error {
	fileRequired := !c.Background // a daemon that a command starts may run before the configuration file is written
	err := serve(ctx, a, func() (*config, error) {
		cfg, err := loadConfig(a.globals, a.getenv)
		if err == nil && cfg.fileMissing && fileRequired {
			err = cfg.missingError()
		}
		if err == nil {
			err = c.override(cfg)
		}
		if err == nil {
			err = also(cfg)
		}
		if err == nil {
			err = cfg.validate()
		}
		if err != nil {
			return nil, err
		}
		fileRequired = fileRequired || !cfg.fileMissing // once the configuration file was read, it must exist at every reload
		cfg.Limits.Budget = cfg.DefaultBudget.limits()
		return cfg, nil
	}, c.Background)
	if err != nil {
		_ = signalReady(err) // the error of signalReady is ignored, because err is returned anyway
	}
	return err
}

// override replaces settings of cfg by the flags that were given.
func (c *serveCmd) override(cfg *config) error {
	if err := makeAbsolute(&c.TLSCert, &c.TLSKey); err != nil {
		return err
	}
	cfg.replace(&cfg.Listen, "listen", c.Listen)
	cfg.replace(&cfg.TLSCert, "tlsCert", c.TLSCert)
	cfg.replace(&cfg.TLSKey, "tlsKey", c.TLSKey)
	cfg.replace(&cfg.Platform, "platform", c.Platform)
	cfg.replace(&cfg.LogLevel, "logLevel", c.LogLevel)
	if c.MaxSandboxes != 0 {
		cfg.Limits.MaxSandboxes = c.MaxSandboxes
	}
	if c.IdleExit != nil {
		cfg.IdleExit = *c.IdleExit
	}
	cfg.InsecureRegistries = append(cfg.InsecureRegistries, c.InsecureRegistry...)
	return nil
}

// makeAbsolute makes the paths of files absolute. It leaves "" unchanged.
func makeAbsolute(files ...*string) (err error) {
	for _, file := range files {
		if *file == "" {
			continue
		}
		if *file, err = filepath.Abs(*file); err != nil {
			return err
		}
	}
	return nil
}
