# Every target works from a bare clone: it needs python3 and make, and no compiler.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
CACHES := .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache

.DEFAULT_GOAL := help
.PHONY: help
help: ## Print this list
	@sed -n 's/^\([a-z][a-z-]*\):.*## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name line; do printf '  make %-12s %s\n' "$$name" "$$line"; done

.PHONY: install
install: $(STAMP) ## Create .venv with everything, unless it is up to date

$(STAMP): $(wildcard packages/*/pyproject.toml) constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	# In one command, so that no name of ours is looked up at an index. Most of what would be compiled
	# nobody imports.
	$(BIN)/python -m pip install --disable-pip-version-check --no-compile -c constraints.txt \
		-e packages/weir-raft -e packages/weir-toc -e 'packages/weir-mq[access,arrow,compress,delta,fast,inbox,schema,spark]' -e 'packages/weir-lab[dev]'
	@touch $@

SITE_STAMP := $(VENV)/.installed-site
$(SITE_STAMP): $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt \
		-e packages/weir-raft -e packages/weir-toc -e packages/weir-mq -e 'packages/weir-lab[docs]'
	@touch $@

# Each build is a full one: pages are generated from code, which Sphinx does not watch.
.PHONY: site
site: $(SITE_STAMP) ## Build the documentation as a site in build/site; a broken link fails
	$(BIN)/python -m sphinx -q -E -a -W --keep-going -j auto -c tools/site . build/site

.PHONY: demo
demo: $(STAMP) ## Show weir at work, from publish to Spark
	$(BIN)/weir demo

.PHONY: verify
verify: $(STAMP) ## Check format, lint, types, floors and tidiness; changes no file
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target $(CHECKS)

# The longest begin first, so that two cores end at the same time.
CHECKS := check-types check-tests check-tidy check-lint check-contracts check-pages
.PHONY: $(CHECKS)
check-types: $(STAMP)
	$(BIN)/mypy --strict
# Every module of tests can be imported. What pytest compiles of it here, `make test` reads.
check-tests: $(STAMP)
	$(BIN)/python -m pytest -qq --collect-only -p no:cacheprovider >$(VENV)/tests || { cat $(VENV)/tests; false; }
check-tidy: $(STAMP)
	$(BIN)/python -m pytest -q -p no:cacheprovider tests/test_tidy.py
check-lint: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
check-contracts: $(STAMP)
	$(BIN)/lint-imports
check-pages: $(STAMP)
	$(BIN)/python -P tools/protocol-page --check

# What `make verify` has run, `make verify test` does not run again.
CHECKED := $(if $(filter verify,$(MAKECMDGOALS)),--ignore=tests/test_tidy.py)
# `make -j verify test` must not start the tests before the checks are done.
.PHONY: test
test: $(STAMP) | $(filter verify,$(MAKECMDGOALS)) ## Run the tests, and beside them 2,200 worlds
	WEIR_SET_SEEDS=$${WEIR_SET_SEEDS:-200} WEIR_TOC_SEEDS=$${WEIR_TOC_SEEDS:-2000} $(BIN)/python -m pytest -n 3 --dist loadscope $(CHECKED)

.PHONY: test-slow
test-slow: $(STAMP) ## Run the tests that `make test` leaves out, one after the other
	$(BIN)/python -m pytest -n 0 -m slow -o timeout=1500

PROOF = $(BIN)/python -P -m weir_lab.proofs.run --target $@ --only "$(ONLY)" $(if $(STALE),--stale)
.PHONY: proof
proof: $(STAMP) ## Measure the figures of docs/PROOF.md; ONLY=burst,latency or STALE=1 for some
	$(PROOF)

.PHONY: proof-worlds
proof-worlds: $(STAMP) ## Play the long sweeps of seeds of docs/PROOF.md; STALE=1 for some
	$(PROOF)

.PHONY: proof-parts
proof-parts: $(STAMP) ## Attack parts of the broker, play worlds with users; STALE=1 for some
	$(PROOF)

.PHONY: proof-peers
proof-peers: $(STAMP) ## Compare the broker with other brokers; STALE=1 for some
	$(PROOF)

.PHONY: proof-power
proof-power: $(STAMP) ## Measure in how many worlds each planted bug is caught; STALE=1 for some
	$(PROOF)

.PHONY: proof-packets
proof-packets: $(STAMP) ## Measure weir-toc and play its worlds; STALE=1 for some
	$(PROOF)

.PHONY: proof-page
proof-page: $(STAMP) ## Write docs/PROOF.md anew: which figures are of today's code
	$(BIN)/python -P -m weir_lab.proofs.run --page

.PHONY: cluster
cluster: $(STAMP) ## Run Spark jobs on a master and two workers, and compare their rows
	$(BIN)/python -P -m weir_lab.spark_cluster.run

.PHONY: pipeline-kills
pipeline-kills: $(STAMP) ## Kill drivers, executors and leaders 10 times each under topic, Spark, topic, Delta
	$(BIN)/python -P -m weir_lab.spark_cluster.kills --times 10

NODES ?= 1
TIERS ?=
TIMES ?= 20
.PHONY: powercut
powercut: $(STAMP) ## Cut the power of real kernels under load; NODES=1 or 3, or TIERS=1; TIMES=20
	scripts/apt-install $$(cat scripts/powercut-packages)
	$(BIN)/python -P -m weir_lab.bench.faults.powercut $(if $(TIERS),--tiers,--nodes $(NODES)) --times $(TIMES)

.PHONY: world
world: $(STAMP) ## Run a company with data centres in six cities, and cut some off
	$(BIN)/weir world

.PHONY: peers
peers: $(STAMP) ## Install, as root on Debian, the brokers that weir is compared with, and clients
	scripts/install-peers
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt \
		-e packages/weir-raft -e packages/weir-toc -e packages/weir-mq -e 'packages/weir-lab[peers]'

.PHONY: xdp
xdp: ## Compile the XDP program of a switch, and compare it with the object in the wheel
	scripts/apt-install clang-14 linux-libc-dev
	scripts/build-switch

.PHONY: toc-examples
toc-examples: $(STAMP) ## Run the lock service, the bank and the game of docs/PACKETS.md
	$(BIN)/python -m pytest -n 0 -v -m "slow or not slow" packages/weir-toc/tests/unit/examples

.PHONY: fix
fix: $(STAMP) ## Format, and repair what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: clean
clean: ## Remove caches and build output; keep .venv
	rm -rf $(CACHES) build dist
	find packages tests -name __pycache__ -type d -prune -exec rm -rf {} +
