package image

import (
	"path"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/caisson-dev/caisson"
)

// Limits of an image's configuration, which is untrusted.
const (
	maxEnv      = 1000      // maximum number of environment variables
	maxArgs     = 1000      // maximum number of arguments of the entrypoint, and of the command
	maxText     = 128 << 10 // maximum size in bytes of one argument or environment variable, which is the limit of execve
	maxAllText  = 256 << 10 // maximum size in bytes of all arguments and environment variables together
	maxUserName = 256       // maximum length of the name of the user in bytes
)

// checkConfig validates an untrusted image configuration and converts it. Returns Invalid if it is malformed or too large.
func checkConfig(raw rawConfig) (caisson.ImageConfig, error) {
	var c caisson.ImageConfig
	bad := func(format string, args ...any) (caisson.ImageConfig, error) {
		return caisson.ImageConfig{}, caisson.Errorf(caisson.Invalid, "the image's configuration "+format, args...)
	}
	if len(raw.Env) > maxEnv || len(raw.Entrypoint) > maxArgs || len(raw.Cmd) > maxArgs {
		return bad("has too many variables or arguments")
	}
	total := 0
	for _, list := range [][]string{raw.Env, raw.Entrypoint, raw.Cmd} {
		for _, s := range list {
			if total += len(s) + 1; len(s) > maxText || total > maxAllText {
				return bad("has too long variables or arguments")
			}
			if strings.ContainsRune(s, 0) || !utf8.ValidString(s) {
				return bad("has the invalid variable or argument %.80q", s)
			}
		}
	}
	for _, kv := range raw.Env {
		key, value, ok := strings.Cut(kv, "=")
		if !ok || key == "" || strings.ContainsFunc(key, func(r rune) bool { return r > unicode.MaxASCII || !unicode.IsGraphic(r) || r == ' ' }) {
			return bad("has the malformed variable %.80q", kv)
		}
		if c.Env == nil {
			c.Env = map[string]string{}
		}
		c.Env[key] = value
	}
	if len(raw.Entrypoint) > 0 && raw.Entrypoint[0] == "" || len(raw.Entrypoint) == 0 && len(raw.Cmd) > 0 && raw.Cmd[0] == "" {
		return bad("names an empty program")
	}
	if w := raw.WorkingDir; w != "" {
		if !path.IsAbs(w) || len(w) > maxPath || !isPrintable(w) {
			return bad("has %.80q as working directory, which is not an absolute path", w)
		}
		c.Workdir = path.Clean(w)
	}
	if len(raw.User) > maxUserName || !isPrintable(raw.User) || strings.ContainsAny(raw.User, " /") {
		return bad("has the malformed user %.80q", raw.User)
	}
	c.Entrypoint, c.Command, c.User = raw.Entrypoint, raw.Cmd, raw.User
	return c, nil
}

// isPrintable reports whether s is valid UTF-8 without control characters.
func isPrintable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

// checkResolved validates the untrusted result of a resolving job. Returns Invalid if it is malformed, and Exhausted if the
// layers have more than maxIn bytes, compressed.
func checkResolved(r *resolved, maxIn int64) error {
	if !digestForm.MatchString(r.Digest) || len(r.Layers) == 0 || len(r.Layers) > maxLayers {
		return caisson.Errorf(caisson.Invalid, "the image has no digest, no layers, or more than %d of them", maxLayers)
	}
	var total int64
	for _, l := range r.Layers {
		if !digestForm.MatchString(l.Digest) || !digestForm.MatchString(l.DiffID) || l.Size < 0 {
			return caisson.Errorf(caisson.Invalid, "the image has a layer without a digest or size")
		}
		if l.Size > maxIn-total {
			return caisson.Errorf(caisson.Exhausted, "the image is larger than allowed (%v compressed)", caisson.Size(maxIn))
		}
		total += l.Size
	}
	return nil
}
