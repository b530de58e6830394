package link_test

import (
	"os"
	"slices"
	"testing"

	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/relay"
	"github.com/caisson-dev/caisson/relay/link"
	"github.com/caisson-dev/caisson/worker"
)

var program workertest.Program

func TestMain(m *testing.M) {
	if worker.IsWorker() {
		worker.Main(slices.Concat(relay.Jobs(), link.Jobs())...)
	}
	code := m.Run()
	program.Close()
	os.Exit(code)
}
