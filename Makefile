# Every target sets up what it needs: system packages (Debian and Ubuntu, as root or with sudo), then a
# virtual environment in .venv with the engine built into it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Installs `pmemlab` alone, for commands that need neither the engine nor PyTorch.
LAB_TOOLS := $(VENV)/.lab-tools
LAB := $(BIN)/pmemlab
# TensorFlow takes 1.6 GB and few tests need it, so it has its own environment, which also finds the other's packages.
TENSORFLOW := $(VENV)/tensorflow
GET_TORCH := $(BIN)/python -I lab/tools/torch_wheel.py constraints.txt

# Packages for the engine's memories and disk tiers, and for compiling its core.
ENGINE_LIBRARIES := libleveldb1d libpmem1
ENGINE_PACKAGES := g++ liburing-dev python3-dev $(ENGINE_LIBRARIES)
# Device file of this computer's memory; remove it to measure the memory anew.
MEMORY_HERE := results/memory-here.yaml

# libmemkind0 is in Debian 12 and Ubuntu, not in Debian 13; PMEM_MEMKIND reports an error without it. A test of power cuts is
# compiled with libpmemobj-dev.
OPTIONAL_PACKAGES := libmemkind0 libpmemobj-dev
# Tests open the report's page in this browser, and are skipped without it.
BROWSER_PACKAGES := chromium chromium-driver
# Packages for checking the rules of the core's locks.
CHECK_PACKAGES := clang libclang-rt-dev
# Packages that an emulated machine needs on its computer.
GUEST_PACKAGES := qemu-system-x86 busybox-static kmod ndctl daxctl numactl e2fsprogs dmsetup

# With this variable, each process that tests start would compile its imports, and pytest would rewrite every test anew.
unexport PYTHONDONTWRITEBYTECODE

# The projects to install, with their extras; the last has the tools that check this repository.
PROJECTS := 'engine[torch,bench,cluster,files,keras]' 'lab[report,benchmarks]' '.[dev]'
PYPROJECTS := engine/pyproject.toml lab/pyproject.toml pyproject.toml
# Debian and Ubuntu have ensurepip in a package of its own.
HAS_VENV := $(shell $(PYTHON) -c 'import ensurepip' 2>/dev/null && echo yes)

# If `make backports` has unpacked a newer QEMU and kernel, guests run on them.
BACKPORTS := .lab/backports
ifneq ($(wildcard $(BACKPORTS)/root),)
export PMEMLAB_QEMU ?= $(CURDIR)/$(BACKPORTS)/root/usr/bin/qemu-system-x86_64
export PMEMLAB_KERNEL ?= $(CURDIR)/$(BACKPORTS)/root
endif

CORE_SOURCES := $(shell find engine/core engine/pacing engine/bench engine/CMakeLists.txt -type f)

# Waits while another program installs packages.
WAIT_FOR_DPKG := -o DPkg::Lock::Timeout=300
# $(call install_packages,PACKAGES): installs the missing packages, or says how.
define install_packages
	@missing=""; for package in $(1); do \
	  dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null | grep -qx installed || missing="$$missing $$package"; \
	done; \
	if [ -n "$$missing" ]; then \
	  command -v apt-get >/dev/null || { echo "these Debian packages, or what your system calls them, are missing:$$missing" >&2; exit 1; }; \
	  if [ "$$(id -u)" = 0 ]; then sudo=""; elif command -v sudo >/dev/null; then sudo=sudo; else \
	    echo "run as root: apt-get update && apt-get install -y$$missing" >&2; exit 1; fi; \
	  echo "installing$$missing"; \
	  log=$$(mktemp) && trap 'rm -f "$$log"' EXIT; \
	  { $$sudo apt-get update -qq && $$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(WAIT_FOR_DPKG) --no-install-recommends $$missing; } >"$$log" 2>&1 \
	    || { cat "$$log"; exit 1; }; \
	fi
endef

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 20

# Processes for the tests, which get a file at a time: two per core, since many tests wait, but at most eight, since more would
# compete for memory. Files with few tests are not shorter, so the order of files is kept.
TEST_PROCESSES := $(shell expr 2 \* $$(nproc)) --maxprocesses 8 --dist loadfile --no-loadscope-reorder

.PHONY: test
test: setup ## run the tests that need neither Docker nor a guest
	$(BIN)/python -m pytest tests -n $(TEST_PROCESSES) $(ARGS)

.PHONY: scenarios
scenarios: setup-scenarios ## train in every storage mode on emulated machines, check, and print the table
	@$(MAKE) --no-print-directory run-scenarios # a new make, which sees backports unpacked just now

.PHONY: all-scenarios
all-scenarios: ## run scenarios and long ones: more policies and filters, each power cut, what a guest can reach
	@$(MAKE) --no-print-directory scenarios ARGS="-m 'long or not long' $(ARGS)"

.PHONY: run-scenarios
run-scenarios:
	$(BIN)/python -m pytest scenarios $(ARGS)

.PHONY: throughput
throughput: setup checkpoints cache-sizes ## time Wide & Deep with 10 M rows on this computer, and predict it on devices
	@mkdir -p $(dir $(MEMORY_HERE))
	[ -e $(MEMORY_HERE) ] || $(LAB) model measure node0 -o $(MEMORY_HERE)
	$(BIN)/python -m pytest scenarios/throughput --pmemlab-machine process --pmemlab-here $(MEMORY_HERE) $(ARGS)

# The media of `make checkpoints` in addition to this computer's own.
CHECKPOINT_DEVICES := sata-s4510 nvme-p4510 optane-100-x6

.PHONY: checkpoints
checkpoints: setup ## save and load checkpoints on this computer, and paced as on SATA, NVMe and PMem
	mkdir -p results
	PYTHONPATH=lab $(BIN)/python -m benchmarks.checkpoint_io --medium here=$${TMPDIR:-/tmp} \
	  $(CHECKPOINT_DEVICES:%=--device %) --models vgg16 --repeats 3 --json results/checkpoints.json

.PHONY: cache-sizes
cache-sizes: setup ## count the hits of DRAM before persistent memory, by its size, and predict both modes
	mkdir -p results
	PYTHONPATH=lab $(BIN)/python -m benchmarks.cache_sizes --json results/cache-sizes.json

.PHONY: docker
docker: ## install and start a Docker engine, if none answers (Debian and Ubuntu)
	@docker/engine.sh up

.PHONY: docker-stop
docker-stop: ## end the Docker engine that `make docker` started
	@docker/engine.sh down

.PHONY: lab-up
lab-up: docker-answers lab-tools ## build and start machines as containers, all but those on demand, and wait until each is proved
	$(LAB) lab up $(ARGS)

.PHONY: servers-up
servers-up: docker-answers lab-tools ## start parameter servers with PMem as containers, on a network of their own
	$(LAB) lab servers $(ARGS)

.PHONY: lab-down
lab-down: lab-tools ## stop machines and servers, and remove everything that they left
	$(LAB) lab down $(ARGS)

.PHONY: show
show: lab-tools guest-packages ## print a machine's persistent memory: make show ARGS=fsdax
	$(LAB) machine show $(ARGS)

.PHONY: backports
backports: ## unpack Debian 12's newer QEMU and kernel, for the CXL machines
	lab/tools/backports.sh $(BACKPORTS)

.PHONY: bench
bench: setup ## measure the engine against PyTorch and a hand-written loop
	$(BIN)/python -m embstore.bench $(ARGS)

.PHONY: check
check: setup check-packages ## lint, check types and locks, run the long tests, and test the core under sanitizers
	@$(MAKE) --no-print-directory -j2 --output-sync run-linters $(TENSORFLOW)/.installed $(VENV)/.nvrtc
	$(BIN)/python -m pytest tests -m 'long or sanitizer' -n $$((3 * $$(nproc) / 2)) --dist loadfile --no-loadscope-reorder $(ARGS)

# Repeats tests with many more tries, for rare failures.
.PHONY: hunt
hunt: setup ## look longer for rare failures: 500 power cuts, 10,000 interleavings, 50 kills of jobs
	$(BIN)/python -m pytest tests/power_cuts -m 'long or not long' -k at_any_moment -n $$(nproc) --power-cuts 100 $(ARGS)
	PYTHONPATH=tests/engine/sanitizers $(BIN)/python -c 'from native_programs import build, run; \
	  print(run(build("interleavings_test"), "--schedules", "10000", timeout_s=3600), end=""); \
	  print(run(build("interleavings_test"), "--thorough", timeout_s=3600), end="")'
	$(BIN)/python -m pytest tests/cluster/test_killed_jobs.py -m long --kills 25 $(ARGS)

.PHONY: run-linters
run-linters:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	find engine/core engine/pacing engine/bench lab/powercut/library -name '*.cc' -o -name '*.h' | xargs $(BIN)/clang-format --dry-run -Werror
	$(BIN)/mypy

.PHONY: fidelity
fidelity: setup ## compare predictions with published figures, in lab/FIDELITY.md
	$(LAB) model fidelity --write lab/FIDELITY.md $(ARGS)

.PHONY: doctor
doctor: lab-tools ## say which machines run on this computer, and what the others need
	$(LAB) machine doctor

.PHONY: wheels
wheels: build-packages $(BIN)/pip ## build this clone's wheels into wheels/, with all their dependencies
	$(GET_TORCH) wheel -q -w wheels
	$(BIN)/python -m pip wheel -q -w wheels -f wheels -c constraints.txt './engine[torch,cluster,keras]' './lab[report]'

.PHONY: clean
clean: ## remove everything built, installed and downloaded here; `make clean-cache`: kernels too
	rm -rf $(VENV) build dist wheels .lab docker/wheels results
	find . -name __pycache__ -prune -exec rm -rf {} +
	find . -name '*.egg-info' -prune -exec rm -rf {} +
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache engine/embstore/_core*.so engine/embstore/bench/_yardsticks*.so

# Removes the caches that all of this user's clones share.
.PHONY: clean-cache
clean-cache:
	cache="$${PMEMLAB_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/pmemlab}"; [ ! -d "$$cache" ] || { \
	  cd "$$cache" && rm -rf kernel-* initramfs-* scratch-* chosen by-hand accelerator.json lock && \
	  cd / && rmdir --ignore-fail-on-non-empty "$$cache"; }
	cache="$${POWERCUT_CACHE:-$${XDG_CACHE_HOME:-$$HOME/.cache}/powercut}"; [ ! -d "$$cache" ] || { \
	  cd "$$cache" && rm -rf library-* && cd / && rmdir --ignore-fail-on-non-empty "$$cache"; }

# --- Targets that the above depend on.

# `setup` installs everything; `setup-scenarios` what scenarios import and their guests run on. The core is compiled while
# packages are downloaded and unpacked, which leaves a second processor idle. With WHEELS=FOLDER, the wheels that `make wheels`
# left there are installed instead, and nothing is compiled or downloaded.
.PHONY: setup setup-scenarios
ifdef WHEELS
setup: $(VENV)/.wheels
setup-scenarios: $(VENV)/.wheels cxl-backports
else
setup: $(BIN)/pip engine-packages
	@$(MAKE) --no-print-directory -j2 $(VENV)/.core $(VENV)/.packages
setup-scenarios: $(BIN)/pip engine-packages
	@$(MAKE) --no-print-directory -j3 $(VENV)/.core $(VENV)/.scenario-packages cxl-backports
endif

$(VENV)/.wheels: $(wildcard $(WHEELS)/embstore-*.whl) | $(BIN)/pip
	$(call install_packages,$(ENGINE_LIBRARIES))
	-@$(MAKE) --no-print-directory optional-packages
	$(BIN)/python -m pip install -q --no-index --find-links $(WHEELS) 'embstore[torch,cluster,keras]' 'pmemlab[report]'
	touch $@ $(LAB_TOOLS)

.PHONY: engine-packages
engine-packages:
	$(call install_packages,$(ENGINE_PACKAGES))
	-@$(MAKE) --no-print-directory optional-packages

# Runs first and alone: two pips at the same time must not install the same package.
$(VENV)/.build-tools: $(PYPROJECTS) constraints.txt
	$(BIN)/python -I lab/tools/extras.py --build engine lab > $(VENV)/build-requirements.txt
	$(BIN)/python -m pip install -q -c constraints.txt -r $(VENV)/build-requirements.txt
	touch $@

# Compiles against the build tools in the environment, so a changed source costs seconds.
$(VENV)/.core: $(VENV)/.build-tools $(CORE_SOURCES)
	$(BIN)/python -m pip install -q --no-build-isolation --no-deps -e engine -e lab
	touch $@ $(LAB_TOOLS)

$(VENV)/.scenario-packages: $(VENV)/.build-tools
	$(BIN)/python -I lab/tools/extras.py engine 'lab[report]' > $(VENV)/scenario-requirements.txt
	$(BIN)/python -m pip install -q -c constraints.txt -r $(VENV)/scenario-requirements.txt
	touch $@

# Installs PyTorch first, so that packages that depend on it find it. Packages that guests import were compiled above, since
# guests can't write. Most of these here are never imported, so Python compiles them on import; the largest are imported here
# once for all of the tests' processes.
$(VENV)/.packages: $(VENV)/.scenario-packages
	$(GET_TORCH) install -q --no-compile
	$(BIN)/python -I lab/tools/extras.py $(PROJECTS) > $(VENV)/requirements.txt
	$(BIN)/python -m pip install -q --no-compile -c constraints.txt -r $(VENV)/requirements.txt
	KERAS_BACKEND=torch $(BIN)/python -c 'import keras, ray'
	touch $@

.PHONY: lab-tools
lab-tools: $(LAB_TOOLS)

$(LAB_TOOLS): lab/pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/python -m pip install -q -c constraints.txt -e lab
	touch $@

$(BIN)/pip:
	$(if $(HAS_VENV),,$(call install_packages,python3-venv))
	$(PYTHON) -m venv $(VENV)

# Checked first, because the steps after it take minutes.
.PHONY: docker-answers
docker-answers:
	@docker/engine.sh check

# For the CXL machines, for which Debian 12's own QEMU and kernel are too old.
.PHONY: cxl-backports
cxl-backports: guest-packages
	@[ -d $(BACKPORTS)/root ] || [ -n "$$PMEMLAB_QEMU" ] || ! grep -qs '^VERSION_CODENAME=bookworm' /etc/os-release || \
	  { echo "fetching a newer QEMU and kernel, for the CXL machines"; lab/tools/backports.sh $(BACKPORTS) >/dev/null; } || \
	  echo "they can't be fetched: the CXL machines will be skipped" >&2

.PHONY: tensorflow
tensorflow: setup $(TENSORFLOW)/.installed

$(TENSORFLOW)/.installed: constraints.txt | $(BIN)/pip
	$(PYTHON) -m venv --clear $(TENSORFLOW)
	$(TENSORFLOW)/bin/python -m pip install -q --no-compile -c constraints.txt tensorflow-cpu
	packages() { "$$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }; \
	  echo "import site; site.addsitedir('$$(packages $(VENV))')" > "$$(packages $(TENSORFLOW))/beside.pth"
	touch $@

.PHONY: test-gpu
test-gpu: setup $(VENV)/.nvrtc ## run the engine's tests with HBM on this computer's GPU, in place of an emulated one
	EMBSTORE_DEVICE=cuda $(BIN)/python -m pytest tests/engine -n $(TEST_PROCESSES) $(ARGS)

# Installs NVRTC, which compiles the GPU's kernels for the test of the result. Needs no GPU.
$(VENV)/.nvrtc: engine/pyproject.toml constraints.txt | $(BIN)/pip
	$(BIN)/python -I lab/tools/extras.py 'engine[gpu]' > $(VENV)/gpu-requirements.txt
	$(BIN)/python -m pip install -q -c constraints.txt -r $(VENV)/gpu-requirements.txt
	touch $@

.PHONY: optional-packages
optional-packages:
	$(call install_packages,$(OPTIONAL_PACKAGES))

# Not part of the set-up, since a browser is large. This is Debian's; on Ubuntu, your own Chrome and chromedriver serve, too.
.PHONY: browser-package
browser-package:
	$(call install_packages,$(BROWSER_PACKAGES))

.PHONY: build-packages
build-packages:
	$(call install_packages,$(ENGINE_PACKAGES))

.PHONY: check-packages
check-packages:
	$(call install_packages,$(CHECK_PACKAGES))

.PHONY: guest-packages
guest-packages:
	$(call install_packages,$(GUEST_PACKAGES))
	-@command -v cxl >/dev/null || $(MAKE) --no-print-directory cxl-package

# In Debian 12 the program is part of ndctl; only the CXL machines need it.
.PHONY: cxl-package
cxl-package:
	$(call install_packages,cxl)
