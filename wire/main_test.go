package wire

import (
	"context"
	"os"
	"testing"

	caisson "github.com/caisson-dev/caisson"
	"github.com/caisson-dev/caisson/internal/testbin"
	"github.com/caisson-dev/caisson/wire/egress"
)

// helper is the path of this test binary, built like the product: static, so that it can be the wire process, which a binary with
// the race detector cannot. "" without root, which all tests that use it require.
var helper string

func TestMain(m *testing.M) {
	if IsWire() {
		os.Exit(Main(testProcess()))
	}
	if os.Args[0] == probeName {
		os.Exit(probe())
	}
	if os.Args[0] == engineName {
		os.Exit(engine())
	}
	os.Exit(testbin.Run(m, &helper))
}

// testProcess returns a wire process without a model gateway that serves other machines.
func testProcess() Process {
	return Process{
		Checksums: true, // the kernel is the guest
		Compile:   func(p caisson.Policy) (caisson.Decider, error) { return egress.Compile(p) },
		Gateway: func(env Env) (Gateway, error) {
			return &testGateway{env: env, git: streamHandler(env), runs: map[string]bool{}}, nil
		},
	}
}

func noSettings(context.Context) (*caisson.GatewayConfig, error) {
	return &caisson.GatewayConfig{}, nil
}

// specOf returns the spec of a sandbox without network access.
func specOf(id caisson.ID) caisson.WireSpec {
	return caisson.WireSpec{Guest: caisson.Guest{Sandbox: id, Account: caisson.LocalAccount}}
}
