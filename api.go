package caisson

import (
	"fmt"
	"reflect"
)

// API contains all services of the API; each must be set. The engine returns an API whose services are its cores, and the HTTP
// server serves that API. The client returns an API that sends requests to such a server; the command line uses it.
type API struct {
	Sandboxes
	Processes
	Services
	Terminals
	Snapshots
	Templates
	Images
	Files
	Events
	Tokens
	Policies
	Credentials
	Audit
	Ledger
	Models
	GatewayRuns
	Daemon
	Agents
	Runs
	Workspaces
	Repos
	Volumes
	Routes
	SSH
	Connections
}

// Validate returns an error that names the first service that is nil.
func (a API) Validate() error {
	v := reflect.ValueOf(a)
	for i := range v.NumField() {
		if v.Field(i).IsNil() {
			return fmt.Errorf("the service %s is missing", v.Type().Field(i).Name)
		}
	}
	return nil
}
