# `make test` is the first thing to run after a clone: it sets up what it needs.
# No target retries: a test that fails once is a failed test.

.DEFAULT_GOAL := test

LINT_VERSION := v2.15.0
LINT := $(CURDIR)/bin/golangci-lint-$(LINT_VERSION)
GOTESTSUM_VERSION := v1.13.0
GOTESTSUM := $(CURDIR)/bin/gotestsum-$(GOTESTSUM_VERSION)
VULN_VERSION := v1.1.4
LICENCES_VERSION := v1.6.0
TEST_TIMEOUT ?= 15m
FUZZTIME ?= 20s

# The library, and the modules that need more than it does, so that its users do not.
MODULES := . $(patsubst %/go.mod,%,$(wildcard */go.mod */*/go.mod))

# Runs a command and fails if a process it started outlives it.
NOTHING_LEFT := go run ./internal/tools/nothingleft

# Runs one command in every module.
define each
	@for dir in $(MODULES); do (cd $$dir && echo "$$dir: $(strip $(1))" && $(1)) || exit 1; done
endef

.PHONY: test test-all documents test-browser test-386 lint fmt tour bench-smoke bench bench-limits bench-locks bench-semaphores fuzz redis race

# The longest first, and one that computes (wheel) beside those that wait, or they would run alone at the end.
LONGEST := ./wheel ./redislock ./ratelimit ./semaphore
TEST = -vet=all -race -count=1 -timeout $(TEST_TIMEOUT)

# The modules of make test; make test-all has the others too.
TESTED := . cogwheeltest examples

## test: what to run before a commit, about three minutes: the library, cogwheeltest and the examples: vet, and their tests without
## clusters, other processes, sweeps and scale, with the race detector, against real redis-server processes that they start.
## REDIS_SERVER=path runs that redis-server or valkey-server, of version 6.2 or later, instead of the one on PATH.
test: redis race
	@$(MAKE) --no-print-directory -j2 --output-sync=line test-library test-users

.PHONY: test-library test-users
test-library:
	@$(NOTHING_LEFT) go test -short $(TEST) $(LONGEST) ./...

test-users:
	@$(NOTHING_LEFT) go test -C cogwheeltest -short $(TEST) ./...
	@$(NOTHING_LEFT) go test -C examples -short $(TEST) ./...

## test-all: all tests of all modules at their full size, and the ten slowest of them. With promtool, of Debian's package prometheus, also
## the alerts.
test-all: export COGWHEEL_FULL := 1
test-all: redis race $(GOTESTSUM)
	@rm -rf bin/tests && mkdir -p bin/tests
	@promtool="$$(.ci/install-promtool)" && PROMTOOL="$$promtool" $(NOTHING_LEFT) $(MAKE) --no-print-directory test-modules
	@cat bin/tests/*.json | $(GOTESTSUM) tool slowest --num 10

.PHONY: test-modules
test-modules: # benchmarks run one after the other, and their plotting library takes a minute to build for the race detector
	$(call each, $(GOTESTSUM) --format pkgname --hide-summary skipped --jsonfile $(CURDIR)/bin/tests/$$(basename $$PWD).json -- \
		$(filter-out -race,$(TEST)) $$([ $$dir = benchmarks ] || echo -race) $$([ $$dir != . ] || echo $(LONGEST)) ./...)

# Built as the linter is.
$(GOTESTSUM):
	@mkdir -p bin/install-gotestsum
	GOBIN=$(CURDIR)/bin/install-gotestsum go install gotest.tools/gotestsum@$(GOTESTSUM_VERSION)
	@mv bin/install-gotestsum/gotestsum $@ && rmdir bin/install-gotestsum

## documents: the tests of the documents and of the list of the API, and the commands that documents print.
documents: redis race
	CHECK_COMMANDS=1 go test -count=1 -timeout $(TEST_TIMEOUT) ./internal/docscheck

## test-newest: test-all of the library and its users with the newest go-redis; test has the oldest that the library works with, which
## go.mod requires.
.PHONY: test-newest
test-newest: redis race
	$(call newest, ., $(LONGEST))
	$(call newest, cogwheeltest)
	$(call newest, examples)

# Runs the tests of a module with the newest go-redis.
NEWEST := -modfile=$(CURDIR)/bin/newest.mod
define newest
	@mkdir -p bin && cp $(strip $(1))/go.mod bin/newest.mod && cp $(strip $(1))/go.sum bin/newest.sum
	go get -C $(1) $(NEWEST) github.com/redis/go-redis/v9@latest
	@$(NOTHING_LEFT) go test -C $(1) $(NEWEST) $(TEST) $(2) ./...
endef

## test-browser: the status page of examples/service in a headless Chromium, which is installed if there is none. Writes docs/statusz.png.
test-browser: redis
	BROWSER="$$(.ci/install-chromium)" && export BROWSER && cd examples/service && go test -count=1 -timeout 5m -v -run TestBrowser .

## test-386: everything compiles for 32 bits, and the wheel runs there; needs a machine that can run 386 programs.
test-386: export GOARCH := 386
test-386: export CGO_ENABLED := 0
test-386: MODULES := $(TESTED)
test-386:
	$(call each, go vet ./...)
	go test -count=1 -timeout $(TEST_TIMEOUT) ./wheel/

## lint: the form of commit subjects, the linters of .golangci.yml, and go.mod and go.sum as `go mod tidy` would leave them.
lint: $(LINT)
	@.ci/check-subjects
	$(call each, $(LINT) run ./...)
	$(call each, go mod tidy -diff)

## fmt: formats every file as lint wants it.
fmt: $(LINT)
	$(call each, $(LINT) fmt ./...)

# Built through the Go module proxy, in a module of its own, so that go.mod never hears of it.
$(LINT):
	@echo "building golangci-lint $(LINT_VERSION); a few minutes, once"
	@mkdir -p bin/install
	GOBIN=$(CURDIR)/bin/install go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINT_VERSION)
	@mv bin/install/golangci-lint $@ && rmdir bin/install

## api: writes the exported API into docs/api.txt, which the tests compare.
.PHONY: api outside release-check vuln licences
api:
	UPDATE_API=1 go test -count=1 -run TestAPI_IsTheOneOfTheList ./internal/docscheck

## outside: builds the examples in a module outside of the repository, as a user would.
outside:
	@.ci/build-outside

## release-check: rehearses a release of the last commit from a module proxy in a folder, and installs it from outside; some minutes.
## VERSION=v0.2.0 is the version; nothing is tagged here or pushed.
release-check:
	@.ci/release-check

## vuln: known vulnerabilities of what is called, in every module; needs the network.
vuln:
	$(call each, go run golang.org/x/vuln/cmd/govulncheck@$(VULN_VERSION) ./...)

## licences: fails if a dependency of the library or of cogwheeltest has a licence that is not permissive; needs the network.
PERMISSIVE := MIT,BSD-2-Clause,BSD-3-Clause,Apache-2.0,ISC,BSL-1.0,Unlicense
licences: MODULES := . cogwheeltest
licences:
	$(call each, go run github.com/google/go-licenses@$(LICENCES_VERSION) check ./... \
		--ignore=github.com/cogwheel-go/cogwheel --allowed_licenses=$(PERMISSIVE))

## tour: shows the library at work; REDIS_ADDR=host:port makes it use that Redis.
tour:
	go run -C examples ./tour

## bench-smoke: every benchmark once, and the report of them, so that none of them rots. The figures mean nothing.
bench-smoke: MODULES := . benchmarks
bench-smoke: redis
	$(call each, go test -run '^$$' -bench . -benchtime 1x -timeout $(TEST_TIMEOUT) ./...)
	cd benchmarks && go run ./cmd/report run -size smoke -rounds 1 -netty "$$(../.ci/install-netty --find)" -data results/smoke.txt
	cd benchmarks && go run ./cmd/report write -data results/smoke.txt -to results/smoke

## bench-report: measures cogwheel beside its peers, about 38 minutes, and writes docs/benchmarks.md, benchmarks/results/report.md, plots and the
## figures of README.md; the machine must be otherwise idle. ONLY=fleets measures that package, about 12 minutes, and keeps the other results.
.PHONY: bench-report bench-page
bench-report: redis
	cd benchmarks && go run ./cmd/report run -netty "$$(../.ci/install-netty)" $(if $(ONLY),-only $(ONLY))
	$(MAKE) --no-print-directory bench-page

## bench-page: writes what bench-report writes, from the results of its last run.
bench-page:
	cd benchmarks && go run ./cmd/report write

## bench: the wheel against its peers, as a table of medians and ratios; the machine must be otherwise idle. COUNT runs each.
COUNT ?= 5
bench:
	@mkdir -p benchmarks/results
	cd benchmarks && BENCH=full go test -run '^$$' -bench . -benchtime 1x -count $(COUNT) -timeout 2h ./wheel >results/wheel.txt
	cd benchmarks && go run ./cmd/ratios -impl wheel,inline,typed,goroutines,pool -peers AfterFunc,netty,timingwheel,gozero,floor <results/wheel.txt

## bench-limits: ratelimit against redis_rate on a redis-server of their own; Versus prints the ratios itself.
bench-limits: redis
	@mkdir -p benchmarks/results
	cd benchmarks && BENCH=full go test -run '^$$' -benchtime 20x -bench 'Versus|Waiters' -timeout 1h ./limits | tee results/limits.txt
	cd benchmarks && go test -run '^$$' -benchtime 200000x -bench Denied -timeout 1h ./limits | tee -a results/limits.txt

## bench-locks: redislock against its peers on a redis-server of their own, likewise.
bench-locks: redis
	@mkdir -p benchmarks/results
	cd benchmarks && BENCH=full go test -run '^$$' -bench . -benchtime 1x -count $(COUNT) -timeout 4h ./locks >results/locks.txt
	cd benchmarks && go run ./cmd/ratios -impl cogwheel -peers bsm,redsync,rueidislock <results/locks.txt

## bench-semaphores: semaphore against semaphores whose waiters poll, on a redis-server of their own, likewise.
bench-semaphores: redis
	@mkdir -p benchmarks/results
	cd benchmarks && BENCH=full go test -run '^$$' -bench . -benchtime 1x -count $(COUNT) -timeout 2h ./semaphores >results/semaphores.txt
	cd benchmarks && go run ./cmd/ratios -impl cogwheel -peers polling <results/semaphores.txt

## fuzz: every fuzz target for FUZZTIME.
fuzz: redis
	@for pkg in $$(go list ./...); do \
		for target in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
			echo "$$pkg: $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

## robustness: clients of every kind in several processes under faults, and checks of their histories; about ten minutes.
## DURATION=30m adds random scenarios for that long, SEED=n repeats the one of that seed, and with DURATION those that follow it;
## KIND=tasks leaves out the scenarios of other kinds.
## A run that fails leaves its events, the servers' logs, seed and commit in ROBUSTNESS_DIR.
COMMIT = $$(git describe --always --dirty --abbrev=12)
export ROBUSTNESS_DIR ?= $(CURDIR)/robustness/failures
.PHONY: robustness reliability-report
robustness: ROBUSTNESS_RUN := $(if $(SEED),TestRandom,TestFixed|TestRandom)
robustness: redis
	cd robustness && ROBUSTNESS=1 ROBUSTNESS_COMMIT=$(COMMIT) \
		go test -count=1 -timeout 24h -v -run '$(ROBUSTNESS_RUN)' .

## reliability-report: runs the fixed scenarios, the controls and the peers, about a quarter of an hour, and writes
## docs/reliability.md and robustness/results/runs.md. RESULTS=file takes the results of earlier runs instead, for which ROBUSTNESS_RESULTS named that file;
## RESULTS=/dev/null rewrites the documents.
reliability-report: MEASURED := $(abspath $(or $(RESULTS),bin/robustness.jsonl))
reliability-report:
ifndef RESULTS
	@mkdir -p bin && rm -f $(MEASURED)
	ROBUSTNESS_RESULTS=$(MEASURED) $(MAKE) --no-print-directory robustness ROBUSTNESS_RUN=TestFixed
	ROBUSTNESS_RESULTS=$(MEASURED) $(MAKE) --no-print-directory controls peers
endif
	cd robustness && go run ./cmd/report -from $(MEASURED)

## simulate: a simulated fleet under faults, in simulated time: new seeds for DURATION=5m, by default for a minute, or SEED=n again.
## FLEET=1 leaves out all seeds but those of many processes on few names.
## A failure prints its seed, the commit, the shortest schedule that still fails, and its last events.
.PHONY: simulate simulate-controls
simulate:
	cd robustness && SIMULATE=1 ROBUSTNESS_COMMIT=$(COMMIT) \
		go test -count=1 -timeout 24h -v -run '^TestSimulate$$' ./sim

## mutants: puts faults that the library had back one at a time, by edits of robustness/mutants, and fails unless the tests that each of
## them names find it; MUTANT=name is one of them.
.PHONY: mutants
mutants: redis race
	cd robustness && go run ./cmd/mutants $(MUTANT)

## simulate-controls: in how many seeds the simulation finds each wrong implementation and each former fault that is put back, and how
## often such a seed finds it again. Takes half an hour; CONTROL="no-op lock" is one of them.
simulate-controls:
	cd robustness && CONTROLS=1 ROBUSTNESS_COMMIT=$(COMMIT) \
		go test -count=1 -timeout 2h -v -run '^Test(Controls|PutBack)$$' ./sim

redis:
	@.ci/install-redis

race:
	@[ "$$(go env CGO_ENABLED)" = 1 ] || { \
		echo "make: the race detector needs cgo and a C compiler: install gcc or clang (on Debian: apt-get install gcc libc6-dev)" >&2; exit 1; }

## controls: each wrong implementation is caught by the scenario or the test that has to find it. Takes three to four minutes.
.PHONY: controls
controls: redis race
	cd robustness && ROBUSTNESS_COMMIT=$(COMMIT) CONTROLS=1 go test -count=1 -timeout 10m -parallel 5 -run TestControls
	cd robustness && CONTROLS=1 go test -count=1 -timeout 10m -run TestControls ./cmd/upgrade

## upgrade-check: this version and PREDECESSOR, by default the newest tag, go on with what the other wrote to one server: a line for each
## kind of object and direction. A kind that one of them lacks is skipped. Under a minute after the builds.
.PHONY: upgrade-check
upgrade-check: export PREDECESSOR ?= $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null)
upgrade-check: redis
	@[ -n "$$PREDECESSOR" ] || { \
		echo "make: there is no tag yet: name a version to compare with: make upgrade-check PREDECESSOR=<git ref>" >&2; exit 1; }
	cd robustness && go test -count=1 -timeout $(TEST_TIMEOUT) -v -run '^TestUpgrade$$' ./cmd/upgrade

## peers: the locks of other libraries under the same faults as this one's, as a table. ROBUSTNESS_RESULTS names a file for the results.
.PHONY: peers
peers: redis
	cd robustness && ROBUSTNESS_COMMIT=$(COMMIT) PEERS=1 go test -count=1 -timeout 20m -parallel 4 -run TestPeers
