# `make help` lists the targets. Everything a target needs is installed by the targets it depends on, cached
# under $XDG_CACHE_HOME/grpo-operator (default ~/.cache), and nothing is done twice.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3
BIN := .venv/bin
CLUSTER := $(PYTHON) e2e/cluster/cli.py
IMAGES := $(PYTHON) e2e/images/cli.py
NODES ?= 1
HAS_PYTHON := $(filter command environment override,$(firstword $(origin PYTHON)))
# where .gpu-wheels and .gpu-site are
GPU_FOLDER ?= .
GPU_PATH := crds:runtime:bench$(if $(HAS_PYTHON),:$(GPU_FOLDER)/.gpu-site)$(if $(PYTHONPATH),:$(PYTHONPATH))
GPU_PYTHON = $(if $(HAS_PYTHON),$(PYTHON),$(BIN)/python)
GPU_WHEELS := annotated-types|cffi|cryptography|hypothesis|pycparser|pydantic|pydantic-core|pytest-asyncio|sortedcontainers|typing-extensions|typing-inspection
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/grpo-operator
UV := $(CACHE)/uv
export MYPY_CACHE_DIR := $(CACHE)/mypy
export PATH := $(PATH):$(UV)/bin

##@ Try it
help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST); echo
demo: uv ## Train a tiny policy in both modes and watch it. CONTEXT= is your cluster, with REGISTRY= and BASE=
	@$(PYTHON) e2e/demo/cli.py $(if $(CONTEXT),--context '$(CONTEXT)') $(if $(REGISTRY),--registry '$(REGISTRY)') \
	  $(if $(BASE),--base '$(BASE)')

##@ Develop
setup: $(BIN)/.ready ## Create .venv with all tools and all three packages
format: setup ## Format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix --quiet .
generate: setup ## Write what is generated: the CRD, the chart's copy of it, tables of docs/reference.md
	@$(BIN)/python -m grpo_api.crd && $(BIN)/python tests/contract/reference_tables.py
check: setup ## Check format, lint, types, imports, the layout, and that the generated CRD is fresh; changes nothing
	@$(BIN)/ruff format --check . && $(BIN)/ruff check . && $(BIN)/mypy && $(BIN)/lint-imports && $(BIN)/python -m grpo_api.crd --check \
	  && $(BIN)/pytest -q -p no:cacheprovider tests/arch
requirements: uv ## Compile the hash-pinned requirement files again (versions move only with UPGRADE=--upgrade)
	@compile() { uv pip compile --quiet $(UPGRADE) --generate-hashes --no-emit-index-url --no-header --python-version 3.11 "$$@"; }; \
	linux="--python-platform x86_64-manylinux_2_28 --override runtime/requirements.overrides.txt"; cpu="--override runtime/requirements-cpu.overrides.txt"; \
	compile crds/requirements-build.in -o crds/requirements-build.txt; \
	compile operator/requirements.in -o operator/requirements.txt; \
	compile $$linux $$cpu runtime/requirements-cpu.in -o runtime/requirements-cpu.txt; \
	compile $$linux runtime/requirements-cuda.in -o runtime/requirements-cuda.txt; \
	compile $$linux $$cpu tests/requirements.in -o tests/requirements.txt; \
	compile $$linux $$cpu bench/requirements-trl.in -o bench/requirements-trl.txt

##@ Test
test: uv ## Run a selection of all tests, on real engines and pods, and print how long each part took
	@$(PYTHON) tests/run_all.py
test-fast: uv ## Only the tests that need no engine, no cluster and no processes that take long
	@$(PYTHON) tests/run_all.py --fast
test-matrix: uv ## Run every case of what `make test` has a selection of, and print how long each part took
	@$(PYTHON) tests/run_all.py --matrix
test-nullgpu: setup .venv-cuda/.ready compiler ## CUDA builds of torch and vLLM on GPUs that compute nothing: all of e2e/nullgpu, part of test-matrix (an hour)
	@$(BIN)/python -m pytest -q -o faulthandler_timeout=3600 e2e/nullgpu
test-gpu: $(if $(HAS_PYTHON),gpu-site,setup) ## Tests of what needs an NVIDIA GPU (PYTHON= one with torch, transformers, pytest)
	@PYTHONPATH=$(GPU_PATH) $(GPU_PYTHON) -m pytest -q -m gpu \
	  tests/runtime/weight_sync tests/runtime/trainer tests/runtime/local/test_gpu.py
gpu-wheels: ## Download into .gpu-wheels what PYTHON= of test-gpu may lack, for a machine without a registry
	@rm -rf $(GPU_FOLDER)/.gpu-wheels && $(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --dest $(GPU_FOLDER)/.gpu-wheels \
	  --python-version 3.12 --implementation cp $(foreach libc,2_34 2_28 2_17 2014,--platform manylinux$(if $(findstring _,$(libc)),_)$(libc)_x86_64) \
	  $$(grep -oE '^($(GPU_WHEELS))==[^ ]+' tests/requirements.txt) && ls $(GPU_FOLDER)/.gpu-wheels

##@ Measure
bench: setup ## Compare two ways of doing the same thing, in turn, by their ratio (PAIRS=, JSON=; scripts have --help)
	@for script in bench/bundles.py bench/engine_start.py; do echo "==> $$script"; \
	  $(BIN)/python $$script $(if $(PAIRS),--pairs '$(PAIRS)') $(if $(JSON),--json '$(JSON)') || exit 1; done
bench-sync: setup ## Measure a weight sync against its floors (SIZES=1,100,1000 MB, RECEIVERS=1,2,4, ENGINES=1,2 or 0, JSON=)
	@$(BIN)/python bench/sync.py $(if $(SIZES),--sizes '$(SIZES)') $(if $(RECEIVERS),--receivers '$(RECEIVERS)') \
	  $(if $(ENGINES),--engines '$(ENGINES)') $(if $(BACKENDS),--backends '$(BACKENDS)') $(if $(JSON),--json '$(JSON)')
bench-trl: setup ## Measure a step against TRL's GRPOTrainer, installed in the cache (PAIRS=2, CASES=tiny,27M, JSON=)
	@$(BIN)/python bench/against_trl.py $(if $(PAIRS),--pairs '$(PAIRS)') $(if $(CASES),--cases '$(CASES)') \
	  $(if $(JSON),--json '$(JSON)')
bench-logprobs: $(if $(HAS_PYTHON),gpu-site,setup) ## Measure chunked logprobs against dense ones (PAIRS=3, CASES=tiny,27M, DEVICE=cpu or cuda, PYTHON=, JSON=)
	@PYTHONPATH=$(GPU_PATH) $(GPU_PYTHON) bench/logprobs.py \
	  $(if $(PAIRS),--pairs '$(PAIRS)') $(if $(CASES),--cases '$(CASES)') $(if $(DEVICE),--device '$(DEVICE)') $(if $(JSON),--json '$(JSON)')
bench-checkpoint: $(if $(HAS_PYTHON),gpu-site,setup) ## Measure what training waits for at a save, with and without a thread (PAIRS=3, CASES=27M,110M, DEVICE=cpu or cuda, FOLDER=, PYTHON=, JSON=)
	@PYTHONPATH=$(GPU_PATH) $(GPU_PYTHON) bench/checkpoint.py $(if $(PAIRS),--pairs '$(PAIRS)') $(if $(CASES),--cases '$(CASES)') \
	  $(if $(DEVICE),--device '$(DEVICE)') $(if $(FOLDER),--folder '$(FOLDER)') $(if $(JSON),--json '$(JSON)')
bench-lora: setup ## Measure what an adapter spares beside whole weights (PARAMETERS=25 millions, RANK=16)
	@$(BIN)/python bench/lora.py $(if $(PARAMETERS),--parameters '$(PARAMETERS)') $(if $(RANK),--rank '$(RANK)')
bench-sparse: setup ## Measure what sending only changed weights spares (PARAMETERS=25 millions, STEPS=50)
	@$(BIN)/python bench/sparse.py $(if $(PARAMETERS),--parameters '$(PARAMETERS)') $(if $(STEPS),--steps '$(STEPS)')
bench-executors: setup ## Measure a colocated engine in its rank, beside it and on Ray (ROUNDS=3, STEPS=60)
	@$(BIN)/python bench/executors.py $(if $(ROUNDS),--rounds '$(ROUNDS)') $(if $(STEPS),--steps '$(STEPS)')
bench-learning: setup ## Train small jobs and hold them to the rewards they must reach (CASES=reverse,add, JSON=)
	@$(BIN)/python bench/learning.py $(if $(CASES),--cases '$(CASES)') $(if $(JSON),--json '$(JSON)')
bench-turns: setup ## Measure what a turn takes beside its sampling, by kind of environment (ROUNDS=5, EPISODES=3, AT_ONCE=16)
	@$(BIN)/python bench/turns.py $(if $(ROUNDS),--rounds '$(ROUNDS)') $(if $(EPISODES),--episodes '$(EPISODES)') \
	  $(if $(AT_ONCE),--at-once '$(AT_ONCE)')
bench-async: setup ## Measure asynchronous training beside synchronous, and its modes (PAIRS=2, CASES=a,b,c,d,e, STEPS=, JSON=)
	@$(BIN)/python bench/asynchronous.py $(if $(PAIRS),--pairs '$(PAIRS)') $(if $(CASES),--cases '$(CASES)') \
	  $(if $(STEPS),--steps '$(STEPS)') $(if $(JSON),--json '$(JSON)')
bench-gpu: $(if $(HAS_PYTHON),gpu-site,setup) ## Measure packing, tag, IPC and training steps on an NVIDIA GPU, and NCCL where there are two (PYTHON=, JSON=)
	@export PYTHONPATH=$(GPU_PATH); \
	  for script in sync learner; do $(GPU_PYTHON) bench/gpu/$$script.py $(if $(JSON),--json '$(JSON)') || exit 1; done; \
	  $(GPU_PYTHON) bench/gpu/two_gpus.py
gpu-day: $(if $(HAS_PYTHON),gpu-site,setup) ## All that one NVIDIA GPU shows in ten minutes, into one file (JSON=gpu-day.json, PYTHON=, COMMIT=)
	@PYTHONPATH=$(GPU_PATH) $(GPU_PYTHON) bench/gpu/day.py $(if $(JSON),--json '$(JSON)') $(if $(COMMIT),--commit '$(COMMIT)') \
	  $(if $(SMALL),--small)
gpu-day-table: setup ## Bring that file into docs/benchmarks.md (JSON=gpu-day.json)
	@$(BIN)/python bench/gpu/day.py $(if $(JSON),--json '$(JSON)') --into docs/benchmarks.md
bench-scale: setup cluster-programs ## Measure one operator with JOBS=200 running jobs and as many new ones, on fake nodes (JSON=)
	@$(BIN)/python e2e/scale/cli.py $(if $(JOBS),--jobs '$(JOBS)') $(if $(JSON),--json '$(JSON)')

##@ Local cluster
cluster-up: cluster-programs ## Start the local cluster (NODES=1 or 2)
	@$(CLUSTER) up --nodes $(NODES)
cluster-status: ## Show its processes, nodes, volumes and images
	@$(CLUSTER) status
cluster-down: ## End it and remove everything but the cache
	@$(CLUSTER) down
images: uv cluster-up ## Build the images and bring them into the local cluster
	@$(IMAGES) load

# What the targets above need.
uv:
	@command -v uv >/dev/null || { echo "==> installing uv into $(UV)"; \
	  $(PYTHON) -m venv $(UV) >/dev/null 2>&1 || { apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null && $(PYTHON) -m venv --clear $(UV); }; \
	  $(UV)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r crds/requirements-build.txt; }
gpu-site:
	@if ls $(GPU_FOLDER)/.gpu-wheels/*.whl >/dev/null 2>&1; then $(PYTHON) -m pip install --quiet --no-index --no-deps --upgrade \
	  --target $(GPU_FOLDER)/.gpu-site $(GPU_FOLDER)/.gpu-wheels/*.whl; fi
debian-packages:
	@$(CLUSTER) prerequisites
browser:
	@command -v chromium > /dev/null || { apt-get update -qq && apt-get install -qq --yes --no-install-recommends chromium > /dev/null; }
compiler:
	@command -v gcc nm > /dev/null || { apt-get update -qq && apt-get install -qq --yes --no-install-recommends gcc libc6-dev > /dev/null; }
# Debian's package would start a Prometheus: only its promtool is unpacked
promtool:
	@test -x $(CACHE)/bin/promtool || { mkdir -p $(CACHE)/bin && cd $(CACHE)/bin && apt-get update -qq && \
	  apt-get download -qq -o APT::Sandbox::User=root prometheus && dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool > .promtool && \
	  rm prometheus_*.deb && chmod +x .promtool && mv .promtool promtool; }
cluster-programs: uv debian-packages
	@$(CLUSTER) build
gitops-health kueue versitygw: uv debian-packages
	@$(CLUSTER) build --only $@
built-images: uv debian-packages
	@$(IMAGES) build
$(BIN)/.ready: tests/environment.sh tests/requirements.txt crds/requirements-build.txt crds/pyproject.toml operator/pyproject.toml runtime/pyproject.toml runtime/name_vllm_cpu.py | uv
	@tests/environment.sh && touch $@
# what the CUDA image holds, for e2e/nullgpu only: 9 GB, of which 7 GB are also in .venv and take no space of their own
.venv-cuda/.ready: tests/environment.sh runtime/requirements-cuda.txt crds/requirements-build.txt crds/pyproject.toml runtime/pyproject.toml | uv
	@tests/environment.sh cuda && touch $@

.PHONY: demo setup format generate check requirements test test-fast test-matrix test-nullgpu test-gpu gpu-wheels gpu-site bench bench-sync bench-trl bench-logprobs bench-checkpoint bench-lora bench-sparse bench-executors bench-learning bench-async bench-turns bench-gpu gpu-day gpu-day-table bench-scale cluster-up cluster-status cluster-down images help uv debian-packages browser compiler promtool cluster-programs gitops-health kueue versitygw built-images
