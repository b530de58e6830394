package caisson

import (
	"context"
	"io"
	"time"
)

// A Service is a program that is kept running in a sandbox, or a port that another program of the sandbox serves.
type Service struct {
	ID   string `json:"id" yaml:"id" pattern:"^[a-z0-9][a-z0-9._-]{0,62}$" patternDescription:"at most 63 lower-case letters, digits, dots, dashes and underscores, with a letter or digit first" doc:"Unique within the sandbox; agent is that of the service of an agent"`
	Port int    `json:"port,omitempty" yaml:"port" minimum:"0" maximum:"65535" doc:"TCP port that it serves; required without a command"`
	// Command must stay in the foreground: when it ends, all processes that it has started are ended as well.
	Command   []string          `json:"command,omitempty" yaml:"command" doc:"Program and arguments, no shell unless you name one; if empty, another program of the sandbox serves the port"`
	Env       map[string]string `json:"env,omitempty" yaml:"env" doc:"Added to the sandbox's"`
	Cwd       string            `json:"cwd,omitempty" yaml:"cwd" doc:"Working directory; default the sandbox's"`
	User      string            `json:"user,omitempty" yaml:"user" doc:"name, uid, or uid:gid inside the sandbox; default the sandbox's"`
	Restart   RestartPolicy     `json:"restart,omitempty" yaml:"restart" enum:"always,on-failure,never," doc:"When it is started again after it has ended; default always"`
	Readiness *Readiness        `json:"readiness,omitempty" yaml:"readiness" doc:"When it is ready; default: when its port accepts a connection, without a port at once"`
}

// AgentService is the id of the service of the agent that a sandbox was made for. Requests cannot contain a service with this id.
const AgentService = "agent"

// RestartPolicy determines whether a service that has ended is started again.
type RestartPolicy string

// The restart policies.
const (
	RestartAlways    RestartPolicy = "always"
	RestartOnFailure RestartPolicy = "on-failure" // the service is started again unless its program has exited with 0
	RestartNever     RestartPolicy = "never"
)

// Readiness defines the check of whether a service is ready: exactly one of HTTP, TCP and Exec. The check is repeated until it
// succeeds; for a service without a command, it is repeated after that as well.
type Readiness struct {
	HTTP     string   `json:"http,omitempty" yaml:"http" doc:"Path on its port that answers a GET with a status from 200 to 399"`
	TCP      bool     `json:"tcp,omitempty" yaml:"tcp" doc:"Its port accepts a connection"`
	Exec     []string `json:"exec,omitempty" yaml:"exec" doc:"Program, run like the service, that exits with 0"`
	Interval Duration `json:"interval,omitempty" yaml:"interval" doc:"Time between two checks; default 1s"`
	Timeout  Duration `json:"timeout,omitempty" yaml:"timeout" doc:"Time after its start in which it has to be ready, or it is ended and has failed; default 1m"`
}

// Defaults of [Readiness].
const (
	DefaultReadinessInterval = Duration(time.Second)
	DefaultReadinessTimeout  = Duration(time.Minute)
)

// ServiceState is the state of a service.
type ServiceState string

// The states of a service.
const (
	ServiceStarting ServiceState = "starting" // the service was started, or has no command, and no readiness check has succeeded yet
	ServiceReady    ServiceState = "ready"
	ServiceBackoff  ServiceState = "backoff" // the service has ended and will be started again after a wait
	ServiceFailed   ServiceState = "failed"  // the service has failed and is not restarted, or no program serves its port
	ServiceStopped  ServiceState = "stopped" // the service has ended and is not started again, or its sandbox does not run
)

// A ServiceCondition is the state of a service as the sandbox reports it. It is untrusted: programs with the right privileges in
// the sandbox can report anything.
type ServiceCondition struct {
	State    ServiceState `json:"state" enum:"starting,ready,backoff,failed,stopped"`
	Since    time.Time    `json:"since,omitzero" doc:"When State last changed, by the sandbox's clock"`
	PID      int          `json:"pid,omitempty" doc:"Its process, while it runs"`
	Restarts int          `json:"restarts,omitempty" doc:"How often it was started again after it had ended"`
	// Failures is reset when the service has run for a while, or is restarted by request.
	Failures int         `json:"failures,omitempty" doc:"How often in a row it has ended soon after its start; the wait in backoff grows with it"`
	Exit     *ExitStatus `json:"exit,omitempty" doc:"How it ended last"`
	Message  string      `json:"message,omitempty" doc:"Why it is not ready"`
	RetryAt  time.Time   `json:"retryAt,omitzero" doc:"In backoff: when it is started again"`
}

// A ServiceStatus is a service and its condition.
type ServiceStatus struct {
	Service
	ServiceCondition
}

// A ServicesRequest is the input of [Services.ApplyServices].
type ServicesRequest struct {
	Services []Service `json:"services" yaml:"services" doc:"Added, or changed if there are such already; a service that does not change keeps running"`
	Prune    bool      `json:"prune,omitempty" yaml:"-" doc:"Remove all other services, but not that of an agent"`
}

// Services is the service that manages the services of sandboxes. ref is a sandbox's ID or name, id that of a service; NotFound
// if it is unknown. Services are stored with the sandbox and can be changed in any state. They are processes of the sandbox,
// which are suspended, paused and forked with it; when a stopped sandbox starts, they start.
type Services interface {
	// ListServices returns the services in order of their ids. Unavailable if the sandbox runs and does not report their condition.
	ListServices(ctx context.Context, ref string) ([]ServiceStatus, error)
	// ApplyServices adds and changes services, and returns all services of the sandbox. If the sandbox runs, ApplyServices
	// returns after the sandbox has received the change.
	ApplyServices(ctx context.Context, ref string, req ServicesRequest) ([]ServiceStatus, error)
	// RemoveService ends a service and removes it; its processes may take a moment to end.
	RemoveService(ctx context.Context, ref, id string) error
	// RestartService ends a service, if it runs, and starts it. Conflict if the sandbox does not run or the service has no command.
	RestartService(ctx context.Context, ref, id string) error
	// ServiceLogs returns the newest part of the output of a service, standard output and error interleaved. It is untrusted. With
	// follow, the stream continues until the sandbox stops or the service is removed. Conflict if the sandbox does not run.
	ServiceLogs(ctx context.Context, ref, id string, follow bool) (io.ReadCloser, error)
}
