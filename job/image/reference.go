package image

import (
	"runtime"
	"strings"
	"unicode"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/caisson-dev/caisson"
)

const maxReference = 512 // maximum length of a reference in bytes

// parseReference returns the canonical form of an OCI reference: registry, repository, and tag or digest.
func parseReference(s string) (string, error) {
	if s == "" || len(s) > maxReference || strings.ContainsFunc(s, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsPrint(r) }) {
		return "", caisson.Invalidf("image", "%.80q is not an image reference; write for example debian:12", s)
	}
	ref, err := name.ParseReference(s)
	if err != nil {
		return "", caisson.Invalidf("image", "%.200q is not an image reference; write for example debian:12 or host", s)
	}
	canonical := ref.Name()
	// The library go-containerregistry writes the legacy name index.docker.io; users and other tools write docker.io.
	if rest, ok := strings.CutPrefix(canonical, name.DefaultRegistry+"/"); ok {
		canonical = "docker.io/" + rest
	}
	// The canonical form of "name:tag@digest" is "name@digest". Both forms must identify the same image.
	if again, err := name.ParseReference(canonical); err != nil || again.Identifier() != ref.Identifier() {
		return "", caisson.Invalidf("image", "%.200q is not an image reference; write for example debian:12", s)
	}
	return canonical, nil
}

// parsePlatform validates a platform such as linux/arm64; "" means this machine's.
func parsePlatform(s string) (string, error) {
	if s == "" {
		return "linux/" + runtime.GOARCH, nil
	}
	p, err := v1.ParsePlatform(s)
	if err != nil || len(s) > 64 || p.OS != "linux" || p.Architecture == "" || p.OSVersion != "" || len(p.OSFeatures) > 0 || p.String() != s {
		return "", caisson.Invalidf("platform", "%.80q is not a platform; write for example linux/amd64 or linux/arm/v7", s)
	}
	return s, nil
}
