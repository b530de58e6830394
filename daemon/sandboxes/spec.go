package sandboxes

import (
	"cmp"
	"context"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/caisson-dev/caisson"
)

// hostTemplate returns the built-in template: the host's own programs, so that the first run needs no download.
func hostTemplate() *caisson.Template {
	return &caisson.Template{
		Name: caisson.HostTemplate, Image: "host", Workdir: "/root", Description: "The host's own programs, read-only",
		Resources: caisson.DefaultResources(),
	}
}

// resolve combines a template, its image and a request into a spec.
func resolve(t *caisson.Template, img *caisson.Image, rootfs caisson.Rootfs, req *caisson.CreateRequest) caisson.Spec {
	conf := rootfs.Config
	s := caisson.Spec{
		Image: img.Reference, Digest: rootfs.Digest,
		// The default command of an image (often a shell, which exits at once without a terminal) is not run unless the
		// request or the template contains a command.
		Command: t.Command,
		Workdir: cmp.Or(req.Workdir, t.Workdir, conf.Workdir, "/"),
		User:    cmp.Or(req.User, t.User, conf.User, "0:0"),
		// The request overrides the template, which overrides the defaults.
		Resources: replaceLimits(replaceLimits(caisson.DefaultResources(), t.Resources), req.Resources),
		Env:       map[string]string{}, Mounts: req.Mounts, Policy: t.Policy, Models: cmp.Or(req.Models, t.Models),
		TTL: t.TTL, HardTTL: t.HardTTL, AutoPause: t.AutoPause, FinalSnapshot: t.FinalSnapshot, Randomness: req.Randomness,
	}
	if len(req.Command) > 0 {
		s.Command = req.Command
	}
	for _, env := range []map[string]string{conf.Env, t.Env, req.Env} {
		maps.Copy(s.Env, env)
	}
	if s.Services = mergeServices(t.Services, req.Services); len(s.Services) > 0 {
		s.ServicesRevision = 1
	}
	override(&s.Policy, req.Policy)
	override(&s.TTL, req.TTL)
	override(&s.HardTTL, req.HardTTL)
	override(&s.AutoPause, req.AutoPause)
	override(&s.FinalSnapshot, req.FinalSnapshot)
	return s
}

// override sets *v to *by; nil leaves it unchanged.
func override[T any](v, by *T) {
	if by != nil {
		*v = *by
	}
}

// replaceLimits returns r with the non-zero fields of over.
func replaceLimits(r, over caisson.Resources) caisson.Resources {
	r.CPUs = cmp.Or(over.CPUs, r.CPUs)
	r.Memory = cmp.Or(over.Memory, r.Memory)
	r.PIDs = cmp.Or(over.PIDs, r.PIDs)
	r.Disk = cmp.Or(over.Disk, r.Disk)
	r.OpenFiles = cmp.Or(over.OpenFiles, r.OpenFiles)
	return r
}

// labels merges the labels of a template and of a request. Labels of the request override those of the template.
func labels(template, request map[string]string) map[string]string {
	if len(template) == 0 {
		return request
	}
	all := maps.Clone(template)
	maps.Copy(all, request)
	return all
}

// env merges maps of variables into the environment of a process: sorted KEY=value strings. Later maps override earlier ones.
func env(vars ...map[string]string) []string {
	all := map[string]string{}
	for _, m := range vars {
		maps.Copy(all, m)
	}
	list := make([]string, 0, len(all))
	for k, v := range all {
		list = append(list, k+"="+v)
	}
	slices.Sort(list)
	return list
}

var (
	nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`) // format of the names of objects
	idForm   = regexp.MustCompile(`^[a-z]{2}-[a-z2-7]{16}$`)     // format of the ids of objects
	envForm  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)    // format of the names of environment variables
	// userForm matches USER and USER:GROUP, with names or numbers.
	userForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,31})?$`)
	// maxStringBytes is the maximum size in bytes of all arguments of a command, or of all variables of an environment, together.
	maxStringBytes = 1 << 20
)

// validateName returns an Invalid error unless name is "" or a valid name that is not like an id.
func validateName(field, name string) error {
	if name == "" {
		return nil
	}
	if !nameForm.MatchString(name) {
		return caisson.Invalidf(field, "%.70q is not a name: use up to 63 lower-case letters, digits, dots, dashes and underscores, beginning with a letter or digit", name)
	}
	if idForm.MatchString(name) {
		return caisson.Invalidf(field, "%q looks like an id; choose another name", name)
	}
	return nil
}

// validateCommand returns an Invalid error if command cannot be executed or is too long; an empty list is valid.
func validateCommand(field string, command []string) error {
	n := 0
	for _, a := range command {
		n += len(a) + 1
		if strings.ContainsRune(a, 0) {
			return caisson.Invalidf(field, "an argument contains a NUL byte")
		}
	}
	if len(command) > 0 && command[0] == "" {
		return caisson.Invalidf(field, "the program's name is empty")
	}
	if n > maxStringBytes {
		return caisson.Invalidf(field, "more than 1MiB of arguments; pass them in a file")
	}
	return nil
}

// validateEnv returns an Invalid error if an environment has an invalid name or value, or is too long.
func validateEnv(field string, env map[string]string) error {
	n := 0
	for k, v := range env {
		n += len(k) + len(v) + 2
		if !envForm.MatchString(k) {
			return caisson.Invalidf(field, "%.70q is not the name of a variable", k)
		}
		if strings.ContainsRune(v, 0) {
			return caisson.Invalidf(field+"."+k, "the value contains a NUL byte")
		}
	}
	if n > maxStringBytes {
		return caisson.Invalidf(field, "more than 1MiB of environment")
	}
	return nil
}

// validatePath returns an Invalid error unless p is "" or an absolute path of at most 4096 bytes.
func validatePath(field, p string) error {
	if p == "" {
		return nil
	}
	if !path.IsAbs(p) || strings.ContainsRune(p, 0) || len(p) > 4096 {
		return caisson.Invalidf(field, "%.100q is not an absolute path", p)
	}
	return nil
}

// validateUser returns an Invalid error unless user is "" or has the form USER or USER:GROUP, with names or ids.
func validateUser(field, user string) error {
	if user != "" && !userForm.MatchString(user) {
		return caisson.Invalidf(field, "%.70q is not a user: write a name, a uid or uid:gid", user)
	}
	return nil
}

// validateTimes returns an Invalid error if a TTL or a time of an AutoPause is negative, or if the times that an AutoPause sets
// decrease from suspend to stop. A nil argument is not set.
func validateTimes(ttl, hardTTL *caisson.Duration, autoPause *caisson.AutoPause) error {
	if ttl != nil && *ttl < 0 {
		return caisson.Invalidf("ttl", "is negative")
	}
	if hardTTL != nil && *hardTTL < 0 {
		return caisson.Invalidf("hardTtl", "is negative")
	}
	if autoPause == nil {
		return nil
	}
	var before caisson.Duration
	for _, f := range []struct {
		name string
		time caisson.Duration
	}{{"suspend", autoPause.Suspend}, {"pause", autoPause.Pause}, {"stop", autoPause.Stop}} {
		switch {
		case f.time < 0:
			return caisson.Invalidf("autoPause."+f.name, "is negative")
		case f.time == 0:
		case f.time < before:
			return caisson.Invalidf("autoPause."+f.name, "%s is less than the %s of an earlier step; all are counted from the last use", f.time, before)
		default:
			before = f.time
		}
	}
	return nil
}

// Values of Spec.Randomness, which names the mechanism by which forks of an agent draw different random numbers.
const (
	randomnessKernel  = "kernel"
	randomnessOpenSSL = "openssl"
)

// validateRandomness returns an Invalid error if r is not a value of Spec.Randomness.
func validateRandomness(r string) error {
	switch r {
	case "", randomnessKernel, randomnessOpenSSL:
		return nil
	}
	return caisson.Invalidf("randomness", "%.70q is neither %s nor %s", r, randomnessKernel, randomnessOpenSSL)
}

// Limits of the resources that can be requested: with less than the minimum nothing can run, and more than the maximum is
// taken for a typing error.
const (
	minMemory = 64 << 20 // minimum of memory in bytes
	minDisk   = 1 << 20  // minimum of disk space in bytes
	maxCPUs   = 1024     // maximum number of CPUs of a sandbox
	maxPIDs   = 1 << 20  // maximum number of processes, and of open files, of a sandbox
)

// validateResources returns an Invalid error if a resource is out of its range; 0 means that it is not set.
func validateResources(field string, r caisson.Resources) error {
	switch {
	case r.CPUs < 0 || r.CPUs > maxCPUs || (r.CPUs > 0 && r.CPUs < 0.01):
		return caisson.Invalidf(field+".cpus", "%v is not between 0.01 and %d", r.CPUs, maxCPUs)
	case r.Memory < 0 || (r.Memory > 0 && r.Memory < minMemory):
		return caisson.Invalidf(field+".memory", "%s is too little; at least %s is needed", r.Memory, caisson.Size(minMemory))
	case r.Disk < 0 || (r.Disk > 0 && r.Disk < minDisk):
		return caisson.Invalidf(field+".disk", "%s is too little; at least %s is needed", r.Disk, caisson.Size(minDisk))
	case r.PIDs < 0 || r.PIDs > maxPIDs || (r.PIDs > 0 && r.PIDs < 4):
		return caisson.Invalidf(field+".pids", "%d is not between 4 and %d", r.PIDs, maxPIDs)
	case r.OpenFiles < 0 || r.OpenFiles > maxPIDs || (r.OpenFiles > 0 && r.OpenFiles < 16):
		return caisson.Invalidf(field+".openFiles", "%d is not between 16 and %d", r.OpenFiles, maxPIDs)
	}
	return nil
}

// reservedDirs are the directories in a sandbox that are reserved for Caisson.
var reservedDirs = []string{"/proc", "/sys", "/dev", "/.caisson"}

// validateMounts returns an Invalid error if a mount point is not valid, is in a reserved directory or is used twice.
func validateMounts(field string, mounts []caisson.Mount) error {
	if len(mounts) > 32 {
		return caisson.Invalidf(field, "more than 32 mounts")
	}
	seen := map[string]bool{}
	for _, m := range mounts {
		target := path.Clean(m.Target)
		if err := validatePath(field, m.Target); err != nil || target == "/" || m.Target == "" {
			return caisson.Invalidf(field, "%.100q is not a valid mount point; write SOURCE:TARGET with an absolute TARGET other than /", m.Target)
		}
		for _, own := range reservedDirs {
			if target == own || strings.HasPrefix(target, own+"/") {
				return caisson.Invalidf(field, "nothing can be mounted below %s", own)
			}
		}
		if seen[target] {
			return caisson.Invalidf(field, "%s is mounted twice", target)
		}
		seen[target] = true
	}
	return nil
}

// validateCreate returns an Invalid error if a field of a request is not valid, or if the request combines fields that exclude
// each other.
func validateCreate(req *caisson.CreateRequest) error {
	if err := cmp.Or(
		validateName("name", req.Name), validateCommand("command", req.Command), validateEnv("env", req.Env),
		validatePath("workdir", req.Workdir), validateUser("user", req.User), caisson.CheckLabels("labels", req.Labels),
		validateResources("resources", req.Resources), validateMounts("mounts", req.Mounts),
		validateTimes(req.TTL, req.HardTTL, req.AutoPause), validateRandomness(req.Randomness),
		validateRequested("services", req.Services),
	); err != nil {
		return err
	}
	if req.Snapshot == "" {
		if req.KeepRandomness {
			return caisson.Invalidf("keepRandomness", "only a sandbox created from a snapshot has random state to keep")
		}
		return nil
	}
	if req.NoStart {
		return caisson.Invalidf("noStart", "a sandbox from a snapshot is started at once")
	}
	if req.Template != "" || req.Image != "" || len(req.Command) > 0 || req.Resources != (caisson.Resources{}) || len(req.Mounts) > 0 || req.User != "" || req.Workdir != "" || len(req.Env) > 0 || len(req.Services) > 0 {
		return caisson.Invalidf("snapshot", "a snapshot has its own image, command, user, resources and services; omit them")
	}
	return nil
}

// checkDirectories returns an error unless every mount of a request came with a file descriptor of its directory. Descriptors are
// passed over the unix socket of the API only.
func checkDirectories(ctx context.Context, req *caisson.CreateRequest) error {
	caller, err := caisson.CallerOf(ctx)
	if err != nil {
		return err
	}
	if len(req.Mounts) > 0 && !caller.Local {
		return caisson.Errorf(caisson.Denied, "host directories can be mounted only over the unix socket")
	}
	if len(req.Mounts) != len(req.Directories) {
		return caisson.Invalidf("mounts", "%d mounts came with %d directories", len(req.Mounts), len(req.Directories))
	}
	return nil
}
