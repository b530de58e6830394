package gate

import (
	"os"
	"testing"

	"github.com/caisson-dev/caisson/internal/workertest"
	"github.com/caisson-dev/caisson/worker"
)

var program workertest.Program

func TestMain(m *testing.M) {
	if worker.IsWorker() {
		worker.Main(Jobs()...)
	}
	code := m.Run()
	program.Close()
	os.Exit(code)
}
