package sentry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/caisson-dev/caisson/runtime/gvisor/protocol"
)

// maxSpec is the maximum size in bytes of a sandbox's OCI spec.
const maxSpec = 16 << 20

// A restoreConfig is the configuration for processes that are restored from a checkpoint.
type restoreConfig struct {
	rename bool // getpid may return additional PIDs: new ones, or those of earlier restores
	reseed bool // this restore gives the processes new PIDs, so that OpenSSL's random generators seed themselves again
	still  bool // the monotonic clock does not count the time since the checkpoint
}

// readRestoreConfig reads the annotations from the OCI spec whose descriptor is among the arguments of gVisor's boot command. It
// does not change the file offset, because boot reads the same file afterwards.
func readRestoreConfig(args []string) (r restoreConfig, err error) {
	spec, err := readSpec(args)
	if err != nil {
		return r, err
	}
	switch v, ok := spec.Annotations[protocol.ReseedAnnotation]; {
	case !ok:
	case v == protocol.ReseedOpenSSL, v == protocol.ReseedKeep:
		r.rename, r.reseed = true, v == protocol.ReseedOpenSSL
	default:
		return r, fmt.Errorf("%s is %q; %q and %q are known", protocol.ReseedAnnotation, v, protocol.ReseedOpenSSL, protocol.ReseedKeep)
	}
	switch v, ok := spec.Annotations[protocol.ClockAnnotation]; {
	case !ok:
	case v == protocol.ClockStill:
		r.still = true
	default:
		return r, fmt.Errorf("%s is %q; only %q is known", protocol.ClockAnnotation, v, protocol.ClockStill)
	}
	return r, nil
}

// readSpec reads the OCI spec whose descriptor is among the arguments of a process of gVisor.
func readSpec(args []string) (spec *specs.Spec, err error) {
	fd, err := specFD(args)
	if err != nil {
		return nil, err
	}
	if err := json.NewDecoder(io.NewSectionReader(borrowedFD(fd), 0, maxSpec)).Decode(&spec); err != nil || spec == nil {
		return nil, fmt.Errorf("read the spec: %w", err)
	}
	return spec, nil
}

// A borrowedFD is a descriptor that is read but not closed, because gVisor owns it.
type borrowedFD int

// ReadAt implements [io.ReaderAt].
func (fd borrowedFD) ReadAt(p []byte, off int64) (int, error) {
	n, err := unix.Pread(int(fd), p, off)
	if err != nil {
		return 0, err
	}
	if n < len(p) { // fewer bytes than requested mean the end of a regular file
		return n, io.EOF
	}
	return n, nil
}

// specFD returns the value of --spec-fd in args.
func specFD(args []string) (int, error) {
	for _, a := range args {
		if v, ok := strings.CutPrefix(strings.TrimLeft(a, "-"), "spec-fd="); ok {
			fd, err := strconv.Atoi(v)
			if err != nil || fd <= 2 {
				return 0, fmt.Errorf("boot has %s", a)
			}
			return fd, nil
		}
	}
	return 0, errors.New("boot has no --spec-fd; gVisor hands its spec over in another way now")
}
