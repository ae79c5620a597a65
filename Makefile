# make help says what there is.
.DEFAULT_GOAL := help
.PHONY: help test race lint bench bench-doc fuzz storm peers capacity tables demo modules observe ci

help: ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

test: ## run the tests; those that need a redis-server are skipped without one
	go test ./...

race: ## run the tests with the race detector; none may be skipped for want of a server
	CACHEGUARD_REQUIRE_REDIS=1 CACHEGUARD_REQUIRE_POSTGRES=1 CACHEGUARD_REQUIRE_PROMTOOL=1 CACHEGUARD_REQUIRE_CHROMIUM=1 go test -race ./...

lint: ## formatting and go vet
	@test -z "$$(gofmt -l .)" || { echo "not formatted:"; gofmt -l .; exit 1; }
	go vet ./...

BENCH =
bench: ## measure what is to be reached, and print it beside what was; 15 minutes, less with BENCH='-only Hits'
	cd internal/reach && go run . $(BENCH)

bench-doc: ## the same, into docs/performance.md
	cd internal/reach && go run . -doc ../../docs/performance.md $(BENCH)

FUZZTIME = 10s
fuzz: ## try every decoder on bytes that nobody thought of, for FUZZTIME each
	@grep -r --include='*_test.go' -o '^func Fuzz[A-Za-z]*' . | sed 's/:func / /' | while read -r file name; do \
		echo "$$name"; \
		(cd "$$(dirname "$$file")" && go test -run '^$$' -fuzz "^$$name$$" -fuzztime $(FUZZTIME) .) || exit 1; \
	done

storm: ## let a fleet of processes face storms, and check what is promised
	go run ./loadtest

peers: ## put other libraries under the same storms and faults; takes six minutes
	cd loadtest/peers && go run .

capacity: ## measure what the library costs as a fleet grows; takes two minutes
	cd loadtest/peers && go run . -capacity

tables: ## run both and write docs/comparison.md and docs/capacity.md; for a quiet machine
	cd loadtest/peers && go run . -doc ../../docs/comparison.md && go run . -capacity -doc ../../docs/capacity.md

demo: ## serve the demo on :8080
	go run ./cmd/demo-api

modules: ## test the modules of their own: traces, the figures of make bench, the page in a real Chromium, docker-compose.yml
	cd cacheguard/otelguard && go test ./...
	cd cmd/demo-api/browsertest && go test ./...
	cd deploy/composetest && go test ./...
	cd internal/reach && go test ./...

observe: ## start demo, Prometheus with the alerts and a storm, to look at
	bash deploy/observe.sh

ci: ## everything that has to pass before a change lands
	bash .ci/run
