package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-dev/caisson"
)

// gatewayCmd contains the commands that serve models to other machines.
type gatewayCmd struct {
	Serve gatewayServeCmd `cmd:"" default:"withargs" help:"Run the daemon, with its model gateway available to other machines (default)."`
	Runs  gatewayRunCmd   `cmd:"" name:"run" help:"Manage the runs on other machines that may use it."`
}

func (c *gatewayCmd) Help() string {
	return "Without a command it is gateway serve. See docs/gateway.md.\n\n" +
		examples("sudo caisson gateway --gateway-listen 127.0.0.1:8443", "caisson gateway run ls")
}

// gatewayServeCmd runs the daemon with a model gateway for other machines.
type gatewayServeCmd struct {
	serveCmd
	GatewayListen  string `help:"Serve other machines on this TCP address (gateway.listen)." placeholder:"HOST:PORT"`
	GatewayTLSCert string `name:"gateway-tls-cert" help:"Certificate for it, in PEM; required except on loopback." placeholder:"FILE" complete:"file"`
	GatewayTLSKey  string `name:"gateway-tls-key" help:"Private key of the certificate." placeholder:"FILE" complete:"file"`
}

func (c *gatewayServeCmd) Help() string {
	return "Like serve, but gateway.listen must be set, here or in the configuration. Other machines set gateway.remoteURL to this one. " +
		"See docs/gateway.md.\n\n" +
		examples("sudo caisson gateway", "sudo caisson gateway --gateway-listen 127.0.0.1:8443",
			"sudo caisson gateway --gateway-listen 0.0.0.0:8443 --gateway-tls-cert /etc/caisson/cert.pem --gateway-tls-key /etc/caisson/key.pem")
}

func (c *gatewayServeCmd) Run(ctx context.Context, a *app) error {
	return c.run(ctx, a, func(cfg *config) error {
		if err := makeAbsolute(&c.GatewayTLSCert, &c.GatewayTLSKey); err != nil {
			return err
		}
		cfg.replace(&cfg.Gateway.Listen, "gateway.listen", c.GatewayListen)
		cfg.replace(&cfg.Gateway.TLSCert, "gateway.tlsCert", c.GatewayTLSCert)
		cfg.replace(&cfg.Gateway.TLSKey, "gateway.tlsKey", c.GatewayTLSKey)
		if cfg.Gateway.Listen == "" {
			return caisson.Invalidf("gateway.listen", "is not set; set the address for other machines, for example with --gateway-listen 127.0.0.1:8443")
		}
		return nil
	})
}

// gatewayRunCmd contains the commands that manage gateway runs, which are runs of other machines.
type gatewayRunCmd struct {
	Put gatewayRunPutCmd `cmd:"" help:"Register a run on another machine."`
	Ls  gatewayRunLsCmd  `cmd:"" help:"List runs on other machines."`
	Rm  gatewayRunRmCmd  `cmd:"" help:"Remove runs on other machines."`
}

// gatewayRunPutCmd registers a gateway run.
type gatewayRunPutCmd struct {
	ID      string           `arg:"" name:"run" help:"Id of the run: 1 to 64 letters, digits, '_' and '-', unique among all accounts."`
	Model   []string         `help:"Grant a model; may be repeated. Requests for an unknown model get the first one." placeholder:"ALIAS" complete:"model" required:""`
	USD     string           `name:"usd" help:"Maximum cost in dollars: 5 or 0.25." placeholder:"N"`
	Tokens  string           `help:"Maximum number of tokens: 200000, 200k or 1M." placeholder:"N"`
	Calls   string           `help:"Maximum number of calls." placeholder:"N"`
	Attempt int              `help:"The attempt that is under way; tokens for others are refused." placeholder:"N"`
	Session string           `help:"The session that it belongs to." placeholder:"ID"`
	Agent   string           `help:"The agent of the run." placeholder:"NAME"`
	User    string           `help:"The person behind it." placeholder:"NAME"`
	TTL     caisson.Duration `name:"ttl" help:"It ends by itself after this long; default a day." placeholder:"DURATION"`
}

func (c *gatewayRunPutCmd) Help() string {
	return "An existing registration is replaced. Calls of the run are authenticated with a run token, which its machine signs.\n\n" +
		examples("caisson gateway run put run-42 --model sonnet --usd 2", "caisson gateway run put run-42 --model sonnet --attempt 1 --ttl 2h --account team-a")
}

// ProvideLimits parses the flags for the limits of the run's budget.
func (c *gatewayRunPutCmd) ProvideLimits() (caisson.Limits, error) {
	return parseLimits(limitFlag{"--usd", c.USD}, limitFlag{"--tokens", c.Tokens}, limitFlag{"--calls", c.Calls})
}

func (c *gatewayRunPutCmd) Run(ctx context.Context, a *app, limits caisson.Limits, api api) error {
	r := caisson.GatewayRun{
		Run: c.ID, Attempt: c.Attempt, Session: c.Session, Agent: c.Agent, User: c.User,
		Models: caisson.ModelGrant{Models: c.Model, Budget: limits},
	}
	if c.TTL != 0 {
		r.ExpiresAt = time.Now().Add(time.Duration(c.TTL))
	}
	return asDone(a, gatewayRunID)(api.PutGatewayRun(ctx, r))
}

// gatewayRunID returns the id of a gateway run, which its machine has chosen.
func gatewayRunID(r *caisson.GatewayRun) string { return r.Run }

// gatewayRunLsCmd lists gateway runs.
type gatewayRunLsCmd struct{}

func (c *gatewayRunLsCmd) Help() string {
	return examples("caisson gateway run ls", "caisson gateway run ls --account team-a")
}

func (c *gatewayRunLsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, []column[*caisson.GatewayRun]{
		{name: "RUN", value: gatewayRunID},
		{name: "ATTEMPT", value: func(r *caisson.GatewayRun) string { return strconv.Itoa(r.Attempt) }},
		{name: "ACCOUNT", value: func(r *caisson.GatewayRun) string { return r.Account }},
		{name: "MODELS", value: func(r *caisson.GatewayRun) string { return strings.Join(r.Models.Models, ",") }},
		{name: "USER", value: func(r *caisson.GatewayRun) string { return r.User }},
		{name: "AGE", value: func(r *caisson.GatewayRun) string { return age(r.CreatedAt) }},
		{name: "EXPIRES IN", value: func(r *caisson.GatewayRun) string { return timeUntil(&r.ExpiresAt) }},
	})(api.ListGatewayRuns(ctx))
}

// gatewayRunRmCmd removes gateway runs.
type gatewayRunRmCmd struct {
	IDs []string `arg:"" name:"run" help:"Ids."`
}

func (c *gatewayRunRmCmd) Help() string {
	return "Calls in progress are completed; new ones are refused. The budget of the run is removed as well; its calls stay in the ledger.\n\n" +
		examples("caisson gateway run rm run-42")
}

func (c *gatewayRunRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.IDs, api.RemoveGatewayRun)
}
