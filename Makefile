# Two commands do everything on a fresh machine: `make run` and `make test`.
GO      ?= go
BUILD   := build
# The race detector needs a C compiler. Without one the tests say so and run without.
RACE    := $(shell command -v cc >/dev/null 2>&1 || command -v gcc >/dev/null 2>&1 && echo -race)
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show what there is to do
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build the sidecar into build/extproc
	$(GO) build -ldflags "-X main.version=$(VERSION)" -o $(BUILD)/extproc ./cmd/extproc

.PHONY: run
run: ## Run the product: demo upstream, sidecar and a real Envoy (CONFIG=file uses that file; ARGS="-listen host:port" moves Envoy, see ARGS=-help)
	@echo "building (the first time takes some minutes) ..."
	@mkdir -p $(BUILD) && $(GO) build -o $(BUILD)/demo ./internal/stack/demo
	@exec $(BUILD)/demo $(ARGS)

.PHONY: demo-load
demo-load: ## Drive three tenants, one at ten times the rate, without lanes and with them: one table in under a minute (ARGS="-duration 1m" runs longer)
	@mkdir -p $(BUILD) && $(GO) build -o $(BUILD)/demo ./internal/stack/demo
	@exec $(BUILD)/demo load $(ARGS)

.PHONY: test
test: ## Run everything that proves the product, with a real Envoy and a real Redis
ifeq ($(RACE),)
	@echo "no C compiler found: running without the race detector (install gcc to have it)"
endif
	@mkdir -p $(BUILD) && $(GO) build -o $(BUILD)/demo ./internal/stack/demo
	@$(BUILD)/demo tools
	$(GO) vet ./...
	$(GO) vet -tags endurance ./test/endurance
	$(GO) test $(RACE) -timeout 40m ./...
	cd test/bench && $(GO) vet ./... && $(GO) test ./...

.PHONY: e2e-llm
e2e-llm: ## Stand between a server and clients that others wrote (FastAPI, aimock; the openai and anthropic libraries): a table of who was served what; it installs them
	@test -x .tools/llm/bin/python || python3 -m venv .tools/llm
	@.tools/llm/bin/pip install -q --disable-pip-version-check -r test/llm/requirements.txt
	@npm ci --prefix test/llm/node --no-audit --no-fund --silent
	$(GO) vet -tags llm ./test/llm
	cd test/llm && $(GO) test -tags llm -count=1 -timeout 15m

.PHONY: test-page
test-page: ## Open the status page in headless Chromium while load runs; on Debian it is installed if missing
	@test -n "$$CHROMIUM_BIN" || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ apt-get -q update && apt-get -qy install --no-install-recommends chromium; }
	$(GO) vet -tags browser ./test/page
	$(GO) test -tags browser -timeout 10m ./test/page

.PHONY: test-sdk
test-sdk: ## Call through Envoy with the official client libraries (Python, Node), which it installs
	test -x .tools/sdk/bin/python || python3 -m venv .tools/sdk
	.tools/sdk/bin/pip install -q --disable-pip-version-check -r test/sdk/requirements.txt
	npm ci --prefix test/sdk/node --no-audit --no-fund --silent
	$(GO) vet -tags sdk ./test/sdk
	$(GO) test -tags sdk -count=1 -timeout 10m ./test/sdk

# The newest of each minor version that there is a wheel of.
ENVOYS := 1.36.4 1.37.0 1.38.3 1.39.3 1.40.0

.PHONY: test-cross
test-cross: ## Cross kinds of requests, body modes and ends through several versions of Envoy (ENVOYS="1.38.3 1.40.0"), which it installs: one table
	CROSS_ENVOYS="$(ENVOYS)" $(GO) test -count=1 -timeout 60m -v ./test/cross

.PHONY: test-release
test-release: ## Lint the workflows, and build what a release consists of, without publishing
	$(GO) vet -tags release ./test/release
	$(GO) test -tags release -count=1 -timeout 30m ./test/release

.PHONY: test-manifests
test-manifests: ## Check the Kubernetes manifests, dashboards and image against the real API types
	cd test/manifests && $(GO) vet ./... && $(GO) test -timeout 40m ./...

.PHONY: test-leases-million
test-leases-million: ## Begin and end a million leases on each kind of store, and show that it holds no more than before (10 minutes or so)
	$(GO) test -count=1 -timeout 60m -run TestSessionsLeaveNothingBehind ./pkg/lease -v -sessions 1000000

.PHONY: fuzz
fuzz: ## Fuzz every parser, and exchanges as whole sequences of messages, for FUZZTIME each (60s): one table
	@test/fuzz/run.sh

.PHONY: soak
soak: ## Keep a mixed load up for SOAK (30m) and require flat slopes of memory, goroutines, descriptors and Redis's keys: one table
	SOAK=$(SOAK) $(GO) test -tags endurance -count=1 -timeout 10h -run TestSoak -v ./test/endurance

.PHONY: overload
overload: ## Send ten times what the upstream can do for OVERLOAD (1m), then hold 10 000 streams: one table
	OVERLOAD=$(OVERLOAD) $(GO) test -tags endurance -count=1 -timeout 1h -run TestOverload -v ./test/endurance

.PHONY: chaos
chaos: ## Kill, stop and starve one part after another under load, CHAOS times (30), in an order that CHAOS_SEED repeats: one table
	CHAOS=$(CHAOS) CHAOS_SEED=$(CHAOS_SEED) $(GO) test -tags endurance -count=1 -timeout 2h -run TestChaos -v ./test/endurance

CLUSTER := .tools/cluster/bin/cluster

.PHONY: cluster-tool
cluster-tool:
	@mkdir -p $(dir $(CLUSTER)) && $(GO) build -C tools/cluster -o ../../$(CLUSTER) .

.PHONY: cluster
cluster: cluster-tool ## Start a real Kubernetes node on this machine (root on Linux) with local images, and print its kubeconfig
	@$(CLUSTER) up

.PHONY: cluster-down
cluster-down: cluster-tool ## End the node and everything in it
	@$(CLUSTER) down

.PHONY: test-cluster
test-cluster: cluster ## Apply every overlay in that node and send requests through its Services
	$(GO) vet -tags cluster ./test/cluster/...
	$(GO) test -tags cluster -count=1 -timeout 60m ./test/cluster

.PHONY: sim
sim: ## Simulate tenants and upstreams in virtual time: one table, and build/sim.json
	cd test/bench && $(GO) test -tags sim -count=1 -timeout 60m -run TestSim ./sim -v -out ../../../$(BUILD)/sim.json

.PHONY: sim-replicas
sim-replicas: ## Simulate several sidecars before one upstream: one table
	cd test/bench && $(GO) test -tags sim -count=1 -timeout 60m -run TestReplicas ./sim -v

.PHONY: sim-ablate
sim-ablate: ## Print the simulation's rows with one part of the lanes switched off at a time
	cd test/bench && $(GO) test -tags sim -count=1 -timeout 60m -run TestAblate ./sim -v

.PHONY: bench
bench: ## Compare with Envoy alone, a no-op, ratelimit and Envoy's own filters in some minutes: tables, goals, build/bench.json, .md and .svg (ARGS="-servers ... -full", see ARGS=-help)
	cd test/bench && $(GO) run ./cmd/bench $(ARGS)

.PHONY: bench-telemetry
bench-telemetry: ## Measure what traces and scraped metrics cost: one table, and build/bench-telemetry.json
	cd test/bench && $(GO) run ./cmd/bench -telemetry -rounds 13 -duration 2s

.PHONY: bench-adaptive
bench-adaptive: ## Compare the lanes with other limiters: one table
	cd test/bench && $(GO) run ./adaptive

.PHONY: lint
lint: ## Check style with golangci-lint, built from the tools module
	$(GO) build -C tools -o ../$(BUILD)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	$(BUILD)/golangci-lint run ./...
	cd test/bench && ../../$(BUILD)/golangci-lint run -c ../../.golangci.yml ./...
	cd test/manifests && ../../$(BUILD)/golangci-lint run -c ../../.golangci.yml ./...
	cd tools/cluster && ../../$(BUILD)/golangci-lint run -c ../../.golangci.yml ./...
	cd tools/audit && ../../$(BUILD)/golangci-lint run -c ../../.golangci.yml ./...

.PHONY: audit
audit: ## Look for known vulnerabilities in what the binary calls, and at the licence of every module in it: one table
	cd tools/audit && $(GO) vet ./... && $(GO) test ./... && $(GO) run . ../..

.PHONY: generate
generate: ## Write what is generated: Envoy configuration, references in the documentation, files of the chart
	$(GO) test ./deploy/envoy ./docs -update
	cd test/manifests && $(GO) test . -run FilesAreUpToDate -update

.PHONY: image
image: ## Build the container image headgate/extproc
	docker build --build-arg VERSION=$(VERSION) --build-arg REVISION=$(shell git rev-parse HEAD) -t headgate/extproc:$(VERSION) .

.PHONY: image-check
image-check: ## Check binary, image and bill of materials without Docker (needs buildah)
	deploy/image/check.sh

.PHONY: sbom
sbom: ## Write the bill of materials (CycloneDX) to build/extproc.cdx.json
	deploy/image/sbom.sh $(BUILD)/extproc.cdx.json

.PHONY: clean
clean: ## Remove what was built
	rm -rf $(BUILD)
