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
)

// ReseedAnnotation in the spec of a sandbox that is restored says what becomes of the names of its processes: see [renaming].
// ReseedOpenSSL gives them new ones, so that random generators of the OpenSSL kind seed themselves anew; ReseedKeep leaves them
// those that they had.
const (
	ReseedAnnotation = "dev.caisson.reseed"
	ReseedOpenSSL    = "openssl"
	ReseedKeep       = "keep"
)

// ClockAnnotation with the value [ClockStill] in the spec of a sandbox that is restored stops its monotonic clock for the time
// since the checkpoint: see [stillClock].
const (
	ClockAnnotation = "dev.caisson.clock"
	ClockStill      = "still"
)

const maxSpec = 16 << 20

// A revival is what is done about processes that come out of a checkpoint.
type revival struct {
	rename bool // they have further names, from earlier restores or this one
	reseed bool // they get new ones
	still  bool // their monotonic clock has stood still
}

// wantedRevival reads the annotations from the spec whose descriptor is among the arguments of gVisor's boot command. Boot
// reads the same file afterwards, so its offset is left alone.
func wantedRevival(args []string) (r revival, err error) {
	spec, err := specOf(args)
	if err != nil {
		return r, err
	}
	switch v, ok := spec.Annotations[ReseedAnnotation]; {
	case !ok:
	case v == ReseedOpenSSL, v == ReseedKeep:
		r.rename, r.reseed = true, v == ReseedOpenSSL
	default:
		return r, fmt.Errorf("%s is %q; %q and %q are known", ReseedAnnotation, v, ReseedOpenSSL, ReseedKeep)
	}
	switch v, ok := spec.Annotations[ClockAnnotation]; {
	case !ok:
	case v == ClockStill:
		r.still = true
	default:
		return r, fmt.Errorf("%s is %q; only %q is known", ClockAnnotation, v, ClockStill)
	}
	return r, nil
}

// specOf reads the spec whose descriptor is among a process's arguments.
func specOf(args []string) (spec *specs.Spec, err error) {
	fd, err := specFD(args)
	if err != nil {
		return nil, err
	}
	if err := json.NewDecoder(io.NewSectionReader(borrowedFD(fd), 0, maxSpec)).Decode(&spec); err != nil || spec == nil {
		return nil, fmt.Errorf("read the spec: %w", err)
	}
	return spec, nil
}

// A borrowedFD is a descriptor that somebody else will close.
type borrowedFD int

// ReadAt implements [io.ReaderAt].
func (fd borrowedFD) ReadAt(p []byte, off int64) (int, error) {
	n, err := unix.Pread(int(fd), p, off)
	if err != nil {
		return 0, err
	}
	if n < len(p) { // of a regular file
		return n, io.EOF
	}
	return n, nil
}

// specFD finds the value of --spec-fd.
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
