# Everything CI does is here, and a developer runs it with one command.
GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
STATIC   = CGO_ENABLED=0 $(GO) build -trimpath -ldflags='-s -w'
LEAN     = internal/embedded/bin

.PHONY: build demo test bench lint fmt clean

# The main binary carries four lean ones: two that run inside sandboxes, gVisor's own processes, and jobs without privileges.
build:
	@mkdir -p bin
	$(STATIC) -o bin/caisson-inside ./cmd/caisson-inside
	$(STATIC) -o bin/caisson-agent ./cmd/caisson-agent
	$(STATIC) -o bin/caisson-sentry ./cmd/caisson-sentry
	$(STATIC) -o bin/caisson-worker ./cmd/caisson-worker
	@cmp -s bin/caisson-inside $(LEAN)/inside || cp bin/caisson-inside $(LEAN)/inside
	@cmp -s bin/caisson-agent $(LEAN)/agent || cp bin/caisson-agent $(LEAN)/agent
	@cmp -s bin/caisson-sentry $(LEAN)/sentry || cp bin/caisson-sentry $(LEAN)/sentry
	@cmp -s bin/caisson-worker $(LEAN)/worker || cp bin/caisson-worker $(LEAN)/worker
	$(STATIC:-w'=-w -X main.release=$(VERSION)') -o bin/caisson ./cmd/caisson

demo: build
	demo/demo.sh bin/caisson

# Tests start sandboxes with the static binaries that were just built. Packages whose tests fill the machine with sandboxes or
# agents go one at a time, because two at once measure each other; the others before them, as many as there are processors.
ALONE = ./agent ./cmd/caisson ./engine ./runtime/gvisor ./test ./wire
test: build
	@echo "$(GO) test -race, first what runs in parallel, then $(ALONE)"
	@export CAISSON_TEST_BIN=$(CURDIR)/bin; alone=$$($(GO) list $(ALONE)) && all=$$($(GO) list ./...) || exit 1; failed=0; \
	$(GO) test -race -timeout 25m $$(echo "$$all" | grep -vxF "$$alone") || failed=1; \
	$(GO) test -race -p 1 -timeout 25m $$alone || failed=1; exit $$failed

bench: build
	$(STATIC) -o bin/runsc ./bench/runsc
	$(STATIC) -o bin/bench-load ./bench/load
	$(STATIC) -o bin/bench-gateway ./bench/gateway
	$(GO) run ./cmd/caisson-bench -bin $(CURDIR)/bin -rows "$(ROWS)" -out bench/results/latest.json

lint:
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "not gofmt-ed (run make fmt):"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

fmt:
	gofmt -w $$(git ls-files '*.go')

clean:
	rm -rf bin bench/results $(LEAN)/worker $(LEAN)/inside $(LEAN)/agent $(LEAN)/sentry
