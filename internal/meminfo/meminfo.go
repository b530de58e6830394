// Package meminfo reads the amount of available memory of the host.
package meminfo

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/caisson-dev/caisson"
)

// Available returns the memory that is available without swapping: MemAvailable of /proc/meminfo, see proc(5).
func Available() (caisson.Size, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	return parse(string(data))
}

// parse returns the value of MemAvailable in the content of /proc/meminfo.
func parse(meminfo string) (caisson.Size, error) {
	for line := range strings.Lines(meminfo) {
		if rest, ok := strings.CutPrefix(line, "MemAvailable:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			return caisson.Size(kib) << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo does not say how much memory is available")
}
