# Everything CI does is here, and a developer runs it with one command.
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STATIC   = CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w'
LEAN     = internal/embedded/bin

.PHONY: build demo test test-all test-times bench lint fmt clean

# The main binary carries four lean ones, compressed: two that run inside sandboxes, gVisor's own processes, and jobs without privileges. Their
# content must not change with each commit: sandboxes depend on it.
build:
	@mkdir -p bin
	$(STATIC) -buildvcs=false -o bin/caisson-guestd ./cmd/caisson-guestd
	$(STATIC) -buildvcs=false -o bin/caisson-agent ./cmd/caisson-agent
	$(STATIC) -buildvcs=false -o bin/caisson-sentry ./cmd/caisson-sentry
	$(STATIC) -buildvcs=false -o bin/caisson-worker ./cmd/caisson-worker
	@CGO_ENABLED=0 $(GO) run -trimpath ./internal/embedded/pack $(LEAN) $(foreach p,guestd agent sentry worker,$(p)=bin/caisson-$(p))
	$(STATIC:-w'=-w -X main.release=$(VERSION)') -o bin/caisson ./cmd/caisson

demo: build
	demo/demo.sh bin/caisson

# What is tested where, and how long it takes: docs/testing.md. COUNT=1 repeats tests whose results are cached.
COUNT ?= 0
test: build
	$(GO) run ./internal/testrun -count $(COUNT)

# Everything: before a release, and before work is finished that touched what only this covers.
test-all: build
	$(GO) run ./internal/testrun -all -count $(COUNT)

# The time of each package and of the slowest tests in the last run of one of these.
test-times:
	@$(GO) run ./internal/testrun -times

bench: build
	$(STATIC) -o bin/runsc ./bench/runsc
	$(STATIC) -o bin/bench-load ./bench/load
	$(STATIC) -o bin/bench-gateway ./bench/gateway
	$(GO) run ./cmd/caisson-bench -bin $(CURDIR)/bin -rows "$(ROWS)" -out bench/results/latest.json

# Without cgo and with -trimpath, as in build, so that dependencies are compiled once.
lint:
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "not gofmt-ed (run make fmt):"; echo "$$out"; exit 1; }
	CGO_ENABLED=0 $(GO) vet -trimpath ./...
	CGO_ENABLED=0 GOFLAGS=-trimpath $(GO) tool staticcheck ./...

fmt:
	gofmt -w $$(git ls-files '*.go')

clean:
	rm -rf bin bench/results $(filter-out $(LEAN)/README,$(wildcard $(LEAN)/*))
