package caisson

import (
	"context"
	"time"
)

// A Rootfs describes how the read-only part of a sandbox's root file system is composed on this host.
type Rootfs struct {
	// Digest identifies the content of Layers and Binds; equal digests mean equal files.
	Digest string `json:"digest"`
	// Layers are paths of directories to overlay, topmost first. Their files belong to the range of [LayerUIDBase] and enter a
	// sandbox through idmapped mounts. Whiteouts are overlayfs's (character device 0:0, and user.overlay.opaque for directories).
	Layers []string `json:"layers"`
	// Binds are host directories or files that are mounted read-only over the layers. Owners are not mapped, so the sandbox
	// cannot read files that are not world-readable on the host.
	Binds  []Bind      `json:"binds,omitempty"`
	Config ImageConfig `json:"config"`
}

// A Bind mounts the host's file or directory Source at Target in a sandbox; both are absolute paths.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
}

// LayerUIDBase is the first host uid and gid of the range that unpacked layers belong to: the file of guest uid u has
// uid LayerUIDBase+u on disk, so that nothing an image contains is ever owned by a user of the host.
const LayerUIDBase = 0x6f000000

// ImageConfig is the configuration of an image. It comes from an untrusted image and has been validated.
type ImageConfig struct {
	Env        map[string]string `json:"env,omitempty"`
	Entrypoint []string          `json:"entrypoint,omitempty"`
	Command    []string          `json:"command,omitempty"`
	Workdir    string            `json:"workdir,omitempty"`
	User       string            `json:"user,omitempty"`
}

// An Image is a root file system that is present on this host.
type Image struct {
	Reference string    `json:"reference" doc:"As requested: host, docker.io/library/debian:12, dir:…, tar:…"`
	Digest    string    `json:"digest"` // of an OCI manifest; of host: of its files' metadata; of others: of their content
	Account   string    `json:"account,omitempty" doc:"Account that owns it; empty for host"`
	Size      Size      `json:"size" doc:"Bytes on disk of its layers, shared ones included"`
	Layers    []string  `json:"layers" doc:"Digests of its layers, topmost first"`
	Rootfs    Rootfs    `json:"rootfs,omitzero" doc:"Only in the store, never in answers"`
	CreatedAt time.Time `json:"createdAt"` // when it was last pulled to this host; of host: when it was composed
	UsedAt    time.Time `json:"usedAt"`    // when it was last pulled, or selected for a sandbox; of host: last requested
}

// RegistryAuth is a login to a registry; the zero value is anonymous.
type RegistryAuth struct {
	Username string `json:"username,omitempty"`
	Password Secret `json:"password,omitzero"`
}

// Images is the service that manages images.
type Images interface {
	// Pull makes an image present on this host and returns it. With Offline set, it returns NotFound unless the image is present.
	Pull(ctx context.Context, req PullRequest, progress func(Progress)) (*Image, error)
	ListImages(ctx context.Context) ([]*Image, error)
	// RemoveImage removes an image from the account; layers that no image uses any more are removed by the
	// next PruneImages. Conflict while a sandbox, snapshot or template uses the image.
	RemoveImage(ctx context.Context, ref string) error
	// PruneImages removes images that no sandbox, snapshot or template uses, and layers that no image uses.
	PruneImages(ctx context.Context) (freed Size, err error)
}

// A PullRequest is the input of [Images.Pull].
type PullRequest struct {
	Reference string       `json:"reference" doc:"host, an OCI reference, dir:PATH or tar:PATH"`
	Platform  string       `json:"platform,omitempty" doc:"os/arch[/variant]; default this machine's"`
	Auth      RegistryAuth `json:"auth,omitzero"`
	Offline   bool         `json:"offline,omitempty"` // do not connect to a registry; only an image that is present can be returned
	// Source is the opened directory or tar file of a dir: or tar: reference; only over the unix socket. The callee
	// owns and closes it.
	Source Handle `json:"-"`
	// Local means that the caller is on this host, and that the pull may connect to any address. Without Local, it can connect only
	// to public addresses and to those that the administrator lists. The core sets Local from the [Caller].
	Local bool `json:"-"`
}
