package main

import (
	"context"
	"strings"

	"github.com/caisson-dev/caisson"
)

// serviceCmd contains the commands that manage the services of sandboxes.
type serviceCmd struct {
	Ls      serviceLsCmd      `cmd:"" help:"List the services of a sandbox with their conditions."`
	Apply   serviceApplyCmd   `cmd:"" help:"Add or change services of a sandbox."`
	Rm      serviceRmCmd      `cmd:"" help:"End services and remove them."`
	Restart serviceRestartCmd `cmd:"" help:"Restart services."`
	Logs    serviceLogsCmd    `cmd:"" help:"Show the last output of a service."`
}

// serviceLsCmd lists services.
type serviceLsCmd struct{ sandboxArg }

func (c *serviceLsCmd) Help() string {
	return "A service in backoff has ended, and is started again after a wait that grows with each failure in a row.\n\n" +
		examples("caisson service ls dev", "caisson service ls dev -o json")
}

func (c *serviceLsCmd) Run(ctx context.Context, a *app, api api) error {
	return asList(a, serviceColumns())(api.ListServices(ctx, c.Sandbox))
}

// serviceColumns returns the columns of a list of services.
func serviceColumns() []column[caisson.ServiceStatus] {
	return []column[caisson.ServiceStatus]{
		{name: "SERVICE", value: func(s caisson.ServiceStatus) string { return s.ID }},
		{name: "PORT", value: func(s caisson.ServiceStatus) string { return formatNumber(s.Port) }},
		{name: "STATE", value: func(s caisson.ServiceStatus) string { return string(s.State) }},
		{name: "SINCE", value: func(s caisson.ServiceStatus) string { return age(s.Since) }},
		{name: "PID", value: func(s caisson.ServiceStatus) string { return formatNumber(s.PID) }},
		{name: "RESTARTS", value: func(s caisson.ServiceStatus) string { return formatNumber(s.Restarts) }},
		{name: "LAST EXIT", value: func(s caisson.ServiceStatus) string { return textOrEmpty(s.Exit) }},
		{name: "MESSAGE", value: func(s caisson.ServiceStatus) string { return s.Message }},
	}
}

// serviceApplyCmd adds or changes services of a sandbox.
type serviceApplyCmd struct {
	sandboxArg
	Command []string         `arg:"" optional:"" help:"After --: program and arguments of the service; none: another program serves the port."`
	File    string           `help:"YAML file with a list of services, or - for standard input." short:"f" placeholder:"FILE" complete:"file"`
	Prune   bool             `help:"Remove all services that are not in the file."`
	ID      string           `name:"id" help:"Id of the service." placeholder:"ID"`
	Port    int              `help:"TCP port that it serves." placeholder:"PORT"`
	Env     []string         `help:"Set an environment variable, or pass one on from the environment; may be repeated." short:"e" placeholder:"NAME[=VALUE]" sep:"none"`
	Cwd     string           `help:"Working directory." placeholder:"DIR"`
	User    string           `help:"User to run as." short:"u" placeholder:"USER[:GROUP]"`
	Restart string           `help:"When to start it again: always, on-failure or never." placeholder:"WHEN"`
	HTTP    string           `name:"http" help:"It is ready when a GET of this path succeeds." placeholder:"PATH"`
	Timeout caisson.Duration `help:"How long it may take to be ready." placeholder:"DURATION"`
}

func (c *serviceApplyCmd) Help() string {
	return "A file has a list of services, as a template does. A service that does not change keeps running:\n\n" + strings.Join([]string{
		"    services:",
		"    - {id: web, port: 3000, command: [npm, run, dev], cwd: /work, readiness: {http: /}}",
		"    - {id: worker, command: [./worker], restart: on-failure, env: {QUEUE: mail}}",
		"    - {id: db, port: 5432}   # served by another program",
	}, "\n") + "\n\n" + examples("caisson service apply dev -f services.yaml --prune", "caisson service apply dev --id web --port 3000 -- npm run dev")
}

// ProvideRequest returns the request that the flags and the file specify.
func (c *serviceApplyCmd) ProvideRequest(a *app) (req caisson.ServicesRequest, err error) {
	req.Prune = c.Prune
	if c.File != "" {
		if c.ID != "" || len(c.Command) > 0 {
			return req, usagef("service apply", "give a file, or --id and a command")
		}
		err = a.readYAML(c.File, &req)
		return req, err
	}
	if c.ID == "" || c.Prune {
		return req, usagef("service apply", "give -f FILE, or --id and a command or --port")
	}
	svc := caisson.Service{
		ID: c.ID, Port: c.Port, Command: trimDashes(c.Command), Cwd: c.Cwd, User: c.User, Restart: caisson.RestartPolicy(c.Restart),
	}
	if svc.Env, err = a.parseEnv(c.Env); err != nil {
		return req, err
	}
	switch {
	case c.HTTP != "":
		svc.Readiness = &caisson.Readiness{HTTP: c.HTTP, Timeout: c.Timeout}
	case c.Timeout != 0 && c.Port != 0:
		svc.Readiness = &caisson.Readiness{TCP: true, Timeout: c.Timeout}
	case c.Timeout != 0:
		return req, usagef("service apply", "--timeout needs --port")
	}
	req.Services = []caisson.Service{svc}
	return req, nil
}

func (c *serviceApplyCmd) Run(ctx context.Context, a *app, req caisson.ServicesRequest, api api) error {
	return asList(a, serviceColumns())(api.ApplyServices(ctx, c.Sandbox, req))
}

// servicesArg are the arguments that identify services of a sandbox.
type servicesArg struct {
	sandboxArg
	Services []string `arg:"" name:"service" help:"Ids of services."`
}

// serviceRmCmd removes services.
type serviceRmCmd struct{ servicesArg }

func (c *serviceRmCmd) Help() string { return examples("caisson service rm dev web worker") }

func (c *serviceRmCmd) Run(ctx context.Context, a *app, api api) error {
	return removeEach(ctx, a, c.Services, func(ctx context.Context, id string) error { return api.RemoveService(ctx, c.Sandbox, id) })
}

// serviceRestartCmd restarts services.
type serviceRestartCmd struct{ servicesArg }

func (c *serviceRestartCmd) Help() string {
	return "It does not wait until they are ready.\n\n" + examples("caisson service restart dev web")
}

func (c *serviceRestartCmd) Run(ctx context.Context, a *app, api api) error {
	id := func(r restartedService) string { return r.Restarted }
	return forEachRef(ctx, a, c.Services, id, func(ctx context.Context, ref string) (restartedService, error) {
		return restartedService{ref}, api.RestartService(ctx, c.Sandbox, ref)
	})
}

// restartedService is the output for a service that was restarted, with -o json.
type restartedService struct {
	Restarted string `json:"restarted"` // id of the service
}

// serviceLogsCmd shows the output of a service.
type serviceLogsCmd struct {
	sandboxArg
	Service string `arg:"" help:"Id of the service."`
	Follow  bool   `help:"Follow the output until the sandbox stops or the service is removed." short:"f"`
}

func (c *serviceLogsCmd) Help() string {
	return "The last 256 KiB are kept, until the sandbox stops.\n\n" + examples("caisson service logs dev web", "caisson service logs -f dev web")
}

func (c *serviceLogsCmd) Run(ctx context.Context, a *app, api api) error {
	return asLog(a)(api.ServiceLogs(ctx, c.Sandbox, c.Service, c.Follow))
}
