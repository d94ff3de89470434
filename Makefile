# Two commands are enough to begin: `make run` shows Tailrace live, `make test` proves it. `make help` lists the rest.
# `run` and `build` need Linux, Go and a C compiler. The other targets bring their tools into .tmp and, as root on Debian, install what is
# missing; elsewhere they say in one line what to install.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules --no-print-directory

# Tools, pinned. The protobuf plugins come in the versions that go.mod has.
BUF_VERSION := 1.75.0
GOLANGCI_LINT_VERSION := 2.15.0

TMP := .tmp
BIN := $(TMP)/bin
LOGS := $(TMP)/logs
BUF := $(BIN)/buf
BUF_INSTALLED := $(TMP)/npm/buf-$(BUF_VERSION)
GOLANGCI_LINT := $(BIN)/golangci-lint-$(GOLANGCI_LINT_VERSION)
PLUGINS := $(BIN)/protoc-gen-go $(BIN)/protoc-gen-connect-go
export PATH := $(abspath $(BIN)):$(PATH)

# Packages whose tests need neither Kafka nor a browser nor processes of their own.
UNIT := ./services/hub/... ./services/access/... ./services/ops/... ./services/stream/... ./edge ./edge/frame/... ./edge/wire/... ./edge/upstream/...
# It takes as long as half of the others; started last it would run alone.
LONGEST := ./services/kafka
# Packages with benchmarks of their own parts; they run one after the other.
PARTS := ./services/hub ./services/kafka ./services/stream ./edge
BENCHTIME ?= 1s
# Which figures `make bench` measures: a pattern of names such as 'Delay|FanOut'.
BENCH ?= .
FUZZTIME ?= 30s
# What `make run` reads: the broker inside the service with a demo topic, or bootstrap servers of yours.
KAFKA ?= embedded

# Thousands of sockets want more descriptors than the soft limit allows.
DESCRIPTORS := ulimit -n "$$(ulimit -Hn)" 2>/dev/null || true;
# Reads `go test -json`: a line for each package, all output of what fails, the counts at the end. Fails with the tests, and if one was skipped.
COUNT := go run .ci/count.go

.PHONY: help run build test unit soak mutants groupmutants bench parts fuzz lint generate check ci buf prepare baseline

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

run: ## start a service with a broker inside, and an edge; prints the page's address. KAFKA=host:9092 reads yours, PAGE=host:port moves the page
	@.ci/run-both.sh check
	@$(MAKE) build
	@exec .ci/run-both.sh $(KAFKA)

build: ## build both binaries into .tmp/bin (the first time takes about a minute)
	@[[ $$(go env GOOS) == linux ]] || { echo "Tailrace runs on Linux only, its edge uses epoll: build it there, or in a container" >&2; exit 1; }
	@cc=$$(go env CC); [[ $$(go env CGO_ENABLED) == 1 ]] && command -v "$${cc%% *}" >/dev/null || \
		{ echo "librdkafka needs cgo: install a C compiler such as gcc (Go looks for $$cc), and leave CGO_ENABLED alone" >&2; exit 1; }
	@echo "building tailrace and tailrace-edge"
	@go build -trimpath -o $(BIN)/ ./services/cmd/tailrace ./edge/cmd/tailrace-edge

test: prepare ## all tests with the race detector, on a real Kafka and in a real browser, at CI size
	@mkdir -p $(LOGS)
	@$(DESCRIPTORS) go test -json -race -shuffle=on -timeout 20m $(LONGEST) ./... | $(COUNT) $(LOGS)/test.json

unit: ## the fast tests: no Kafka, no browser
	@mkdir -p $(LOGS)
	@$(DESCRIPTORS) go test -json -race -shuffle=on -timeout 5m $(UNIT) | $(COUNT) $(LOGS)/unit.json

soak: prepare ## all tests and figures at full size; writes .tmp/soak/DATE.txt (hours)
	@$(DESCRIPTORS) .ci/soak.sh

mutants: ## break the hub in a dozen places; its tests must notice each
	@.ci/mutants.sh

groupmutants: ## break queue mode in twenty places; its tests must notice each
	@MUTANT_PACKAGE=services/group .ci/mutants.sh

bench: prepare ## measures the whole, each figure beside its reference in the same run, and prints a table (a quarter of an hour). BENCH='Delay|FanOut' chooses
	@$(DESCRIPTORS) go test -run '^$$' -bench '$(BENCH)' -benchtime 1x -timeout 60m ./edge/e2e

parts: prepare ## benchmarks of the parts, for BENCHTIME (1s) each
	@$(DESCRIPTORS) go test -run '^$$' -bench . -benchmem -benchtime $(BENCHTIME) -timeout 60m -p 1 $(PARTS)

fuzz: ## every fuzz test for FUZZTIME (30s)
	@for package in $$(go list ./services/... ./edge/...); do \
		for name in $$(grep -hoE '^func Fuzz\w+' $$(go list -f '{{range .XTestGoFiles}}{{$$.Dir}}/{{.}} {{end}}{{range .TestGoFiles}}{{$$.Dir}}/{{.}} {{end}}' $$package) /dev/null | cut -c6- || true); do \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) $$package; \
		done; \
	done

lint: $(GOLANGCI_LINT) ## golangci-lint with the rules of .golangci.yml
	@$(GOLANGCI_LINT) run --allow-serial-runners ./...

generate: $(BUF_INSTALLED) $(PLUGINS) ## generate gen from proto
	@$(BUF) generate

check: $(BUF_INSTALLED) $(PLUGINS) ## proto rules, stale generated code, breaking changes, format, go.mod, go vet
	@$(BUF) lint
	@rm -rf $(TMP)/generated && $(BUF) generate -o $(TMP)/generated && diff -r gen $(TMP)/generated/gen || { echo "gen is stale: run make generate" >&2; exit 1; }
	@against=.ci/baseline.binpb; tag=$$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) && against=".git#tag=$$tag"; \
		$(BUF) breaking --against "$$against" || { echo "the schema breaks that of $$against" >&2; exit 1; }
	@unformatted=$$(gofmt -l services edge gen .ci); [[ -z "$$unformatted" ]] || { echo "not formatted (gofmt -w):" $$unformatted >&2; exit 1; }
	@go mod tidy -diff
	@go vet ./...

ci: ## what CI runs: check, lint, test, mutants of hub and queue mode; tells what each took
	@.ci/phases.sh check lint test mutants groupmutants

baseline: $(BUF_INSTALLED) # the schema that `check` compares with before the first tag; a change of it is a decision to break
	@$(BUF) build -o .ci/baseline.binpb

buf: $(BUF_INSTALLED) ## bring buf into .tmp/bin, for the examples of README.md

# What the tests need beyond Go.
prepare: $(BUF_INSTALLED)
	@.ci/need.sh curl curl
	@.ci/need.sh 'chromium|chromium-browser|google-chrome' chromium
	@.ci/need.sh 'nginx|/usr/sbin/nginx' nginx
	@.ci/kafka.sh install

$(BUF_INSTALLED):
	@.ci/need.sh npm npm
	@mkdir -p $(BIN)
	@npm install --silent --no-audit --no-fund --no-save --prefix $(TMP)/npm @bufbuild/buf@$(BUF_VERSION)
	@ln -sf ../npm/node_modules/.bin/buf $(BUF)
	@touch $@

$(PLUGINS): go.mod
	@mkdir -p $(BIN)
	@go build -o $(BIN)/ google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go
	@touch $(PLUGINS)

$(GOLANGCI_LINT):
	@echo "building golangci-lint $(GOLANGCI_LINT_VERSION) (three minutes the first time)"
	@GOBIN="$$PWD/$(BIN)" GOFLAGS= go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(GOLANGCI_LINT_VERSION)
	@mv $(BIN)/golangci-lint $@
