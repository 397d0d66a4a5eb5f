# The targets that a developer needs. `make` alone lists them.
SHELL := /bin/bash
GOLANGCI := 2.15.0
BINARY_LIMIT := 20000000

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: build
build: ## build the static binary into bin/
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/destajo ./cmd/destajo

.PHONY: test
test: ## run all tests
	go test ./...

.PHONY: test-race
test-race: ## run the tests of what runs concurrently with the race detector
	go test -race ./internal/... ./spot/...

SEED ?= 1
KILLS ?= 120

.PHONY: test-chaos
test-chaos: ## kill control planes and agents KILLS times over 50 jobs drawn from SEED, and count what is left
	@go run ./internal/chaos/cmd -seed $(SEED) -kills $(KILLS)

.PHONY: vet
vet: ## go vet and gofmt
	go vet ./...
	@bad=$$(gofmt -l .); if [ -n "$$bad" ]; then echo "not gofmt'ed: $$bad"; exit 1; fi

.PHONY: tools
tools: ## install the pinned linter
	@golangci-lint version 2>/dev/null | grep -q 'version v\?$(GOLANGCI)' || go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI)

.PHONY: lint
lint: tools ## run the linter
	PATH="$$(go env GOPATH)/bin:$$PATH" golangci-lint run

.PHONY: size
size: build ## check that the binary stays within its budget
	@n=$$(stat -c %s bin/destajo); echo "bin/destajo: $$n bytes of $(BINARY_LIMIT)"; [ $$n -le $(BINARY_LIMIT) ]

.PHONY: snapshot
snapshot: ## make the embedded snapshot anew from DATA, a folder of collected price lists
	go run ./tools/snapshot $(DATA)

.PHONY: fuzz
fuzz: ## fuzz every parser for a short time
	go test -run=xxx -fuzz=FuzzParse -fuzztime=20s ./job
	go test -run=xxx -fuzz=FuzzParseRequest -fuzztime=20s ./gpu
	go test -run=xxx -fuzz=FuzzRead -fuzztime=20s ./internal/catalog
	go test -run=xxx -fuzz=FuzzRead -fuzztime=20s ./internal/gguf
	go test -run=xxx -fuzz=FuzzParseRows -fuzztime=20s ./plan/estimate

.PHONY: bench
bench: bench-run ## run all benchmarks: the planner, the importers, the state, whole runs beside Slurm
	go test -run=xxx -bench=. -benchmem ./plan ./internal/catalog ./job ./gpu ./internal/store

.PHONY: bench-cli
bench-cli: build ## whole processes beside a program that prints hello and imports cobra
	go run ./tools/benchcli bin/destajo

.PHONY: bench-run
bench-run: build ## how fast jobs run, beside Slurm and task-spooler where they are installed
	go run ./tools/benchrun bin/destajo
