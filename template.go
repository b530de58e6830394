package caisson

import (
	"context"
	"time"
)

// HostTemplate is the built-in template: the host's own programs, read-only.
const HostTemplate = "host"

// A Template defines what a sandbox starts from.
type Template struct {
	Name        string            `json:"name" yaml:"name"`
	Account     string            `json:"account,omitempty" yaml:"-" doc:"Empty for built-in templates, which all accounts see"`
	Description string            `json:"description,omitempty" yaml:"description"`
	Image       string            `json:"image" yaml:"image" doc:"host, an OCI reference, dir:PATH or tar:PATH"`
	Env         map[string]string `json:"env,omitempty" yaml:"env"`
	Workdir     string            `json:"workdir,omitempty" yaml:"workdir"`
	User        string            `json:"user,omitempty" yaml:"user"`
	Command     []string          `json:"command,omitempty" yaml:"command"`
	Resources   Resources         `json:"resources,omitzero" yaml:"resources"`
	TTL         Duration          `json:"ttl,omitempty" yaml:"ttl"`
	HardTTL     Duration          `json:"hardTtl,omitempty" yaml:"hardTtl"`
	AutoPause   AutoPause         `json:"autoPause,omitzero" yaml:"autoPause"`
	// FinalSnapshot means that a snapshot of a sandbox is taken before the hard TTL removes the sandbox.
	FinalSnapshot bool    `json:"finalSnapshot,omitempty" yaml:"finalSnapshot"`
	Mounts        []Mount `json:"mounts,omitempty" yaml:"mounts"`
	// Setup has the set-up steps, which run one after another in a sandbox, as root; their changes of files are stored as a layer.
	Setup []SetupStep `json:"setup,omitempty" yaml:"setup"`
	// Services are started with each sandbox.
	Services []Service         `json:"services,omitempty" yaml:"services"`
	Policy   Policy            `json:"policy,omitzero" yaml:"policy"`
	Models   *ModelGrant       `json:"models,omitempty" yaml:"models"`
	Pool     int               `json:"pool,omitempty" yaml:"pool" doc:"How many ready sandboxes to keep"`
	Labels   map[string]string `json:"labels,omitempty" yaml:"labels"`
	// Built describes the last build; nil if the template has not been built or has changed since.
	Built     *Built    `json:"built,omitempty" yaml:"-"`
	CreatedAt time.Time `json:"createdAt,omitzero" yaml:"-"`
}

// A SetupStep is one command of a template's set-up.
type SetupStep struct {
	Run     []string `json:"run" yaml:"run" doc:"Program and arguments; no shell unless you name one"`
	Timeout Duration `json:"timeout,omitempty" yaml:"timeout" doc:"Default 10m"`
	// Files are written before Run.
	Files []SeedFile `json:"files,omitempty" yaml:"files"`
}

// Built is the result of building a template: a root file system that is ready to use.
type Built struct {
	Key    string    `json:"key" doc:"Hash of image digest and steps; the same key is not built twice"`
	Rootfs Rootfs    `json:"rootfs,omitzero" doc:"Only in the store, never in answers"`
	At     time.Time `json:"at"`
}

// Templates is the service that manages templates. Errors: NotFound for an unknown name, Invalid for a malformed template.
type Templates interface {
	// PutTemplate stores t under its name for the caller's account. Returns Denied for built-in names.
	PutTemplate(ctx context.Context, t Template) (*Template, error)
	GetTemplate(ctx context.Context, name string) (*Template, error)
	// ListTemplates returns the built-in template, and then those of the caller's account, sorted by name.
	ListTemplates(ctx context.Context) ([]*Template, error)
	RemoveTemplate(ctx context.Context, name string) error
	// BuildTemplate pulls the image and runs the set-up steps that are not cached. progress may be nil.
	BuildTemplate(ctx context.Context, name string, auth RegistryAuth, progress func(Progress)) (*Template, error)
}

// Progress reports a step of a slow operation.
type Progress struct {
	Stage   string `json:"stage" doc:"Current step: resolve, pull, unpack, setup 1/3, freeze"`
	Detail  string `json:"detail,omitempty"` // subject or result of the step: a reference, digest or command
	Done    int64  `json:"done,omitempty"`   // finished part of the step: bytes of an image, or number of set-up steps
	Total   int64  `json:"total,omitempty" doc:"0 if not known"`
	Message string `json:"message,omitempty" doc:"A line of output of a set-up step"`
}
