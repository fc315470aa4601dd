# Every step of development and CI as one command. Needs Python 3.11+ (with venv and C headers), a C compiler and make; whatever else a target uses it
# installs into .venv first, once: the files in .venv/made say what has been made and from what.

PYTHON ?= python3

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
# Otherwise each process compiles all that it imports, and pytest rewrites every test again.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
MADE := .venv/made
# Bytecode is made at the first import, of what is imported alone: pip would compile all 8,000 files. (The variables of
# its options --no-... hold the opposite: 0 says not to compile.) And of PySpark, an sdist of 450 MB of .jar files, pip
# makes a wheel: the file named here says not to compress them again.
PIP := DIST_EXTRA_CONFIG=$(CURDIR)/tools/wheels_of_sdists.cfg PIP_NO_COMPILE=0 $(BIN)/python -m pip --disable-pip-version-check --quiet
FT_MADE := .venv-ft/made
RIVALS := .venv-rivals
FT_PIP := $(PIP) --python .venv-ft/bin/python
SOURCES := setup.py pyproject.toml $(wildcard include/manytail/*.h pyx/manytail/* python/manytail/*.pxd) \
	$(patsubst %,python/manytail/%.py,executor _lanes _listener _locked _timer queue) $(wildcard python/manytail/broker/*.py) \
	$(patsubst %,python/manytail/mapping/%.py,_leased _ledger _limits) \
	$(patsubst %,python/manytail/_maps/limits/%.py,blocks leases ledger sections)
STUBBED = $(patsubst python/manytail/%.pyi,manytail.%,$(wildcard python/manytail/*.pyi)) manytail.mapping
C_FILES = $(shell git ls-files --cached --others --exclude-standard -- '*.h' '*.c' 2>/dev/null || find include tests -name '*.[ch]')

# pytest arguments of your own: make test ARGS='tests/core -k fairness'
ARGS ?=
# Processes that share the tests of a run, one more than there are cores because many tests wait; 0: pytest alone, for --pdb.
WORKERS ?= $(shell echo $$(( $$(nproc 2>/dev/null || echo 2) + 1 )))
PYTEST = -m pytest --numprocesses=$(WORKERS) --max-worker-restart=0 --durations=25

.PHONY: help demo test test-long test-spark-matrix check docs bench microbench rivals lint typecheck test-freethreaded test-debug test-platforms test-rabbitmq stress wakeups simulate fuzz soak tsan asan model mutants instructions dist wheels test-wheels clean

help: ## print this
	@echo "make TARGET, where TARGET is one of"
	@awk -F ':[^#]*## ' '/^[a-z-]+:[^#]*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "The Python of all of them is PYTHON=$(PYTHON)."

demo: $(MADE)/demo ## enrich a month of New York flights with Spark and write a report (ARGS=--all: the year)
	@echo "--> running the flights job"
	$(BIN)/python -m manytail demo --spark $(ARGS)

test: $(MADE)/dev ## run the whole test suite (ARGS: arguments of pytest)
	@echo "--> running the tests"
	$(BIN)/python $(PYTEST) $(ARGS)

test-long: $(MADE)/dev ## the same with the full counts of its random tests (tests/support/counts.py)
	@echo "--> running the tests with their full counts"
	MANYTAIL_LONG=1 $(BIN)/python $(PYTEST) -o faulthandler_timeout=0 $(ARGS)

test-spark-matrix: $(MADE)/dev ## tests/spark with PySpark 4.0 to 4.3 on Java 17 and 21 (ARGS='--pairs 4.3/21 tests/spark/test_udf.py': a part)
	@echo "--> running tests/spark on each PySpark and Java"
	$(BIN)/python tools/spark_matrix.py $(ARGS)

check: ## everything that CI runs: tests, linters, tests without the GIL, sanitizers, model checker
	@MAKEFLAGS= tools/check.sh

docs: $(MADE)/docs ## build the site into site/, and fail on any warning
	@echo "--> building the site"
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --site-dir site
	@echo "The site begins at site/index.html; '$(BIN)/python -m mkdocs serve' shows it while it is written."

bench: $(MADE)/bench rivals ## measure against the rivals, in one run: a table, and a page with curves in build/bench
	@echo "--> running the benchmarks"
	$(BIN)/python bench/run.py $(ARGS)

# SAVED: with runs of .benchmarks to compare with, that of the last time.
SAVED = $(if $(wildcard .benchmarks/*/*.json),--benchmark-compare)
microbench: $(MADE)/bench ## single operations of each structure, compared with the last saved run (ARGS='-k entries'); saves this one
	@echo "--> running the microbenchmarks"
	$(BIN)/python -m pytest bench/test_single_thread.py bench/test_structures.py -q -p no:xdist --benchmark-autosave $(SAVED) $(ARGS)

rivals: $(MADE)/venv ## a CPython 3.14 with the maps that bench compares ours with, in .venv-rivals
	@python=$$($(PYTHON) tools/platforms/interpreter.py); status=$$?; \
	if [ $$status = 3 ]; then echo "--> SKIPPED rivals: see the line above"; exit 0; fi; \
	[ $$status = 0 ] && $(MAKE) --no-print-directory $(RIVALS)/made RIVALS_PYTHON=$$python

lint: $(MADE)/lint ## ruff, cython-lint and clang-format, nothing is changed
	@echo "--> linting"
	$(BIN)/ruff check .
	PATH=$(CURDIR)/$(BIN):$$PATH cython-lint pyx python
	$(BIN)/clang-format --dry-run --Werror $(C_FILES)
	@! grep -nE '^.{121,}' $(C_FILES) # comments too, which clang-format leaves alone

typecheck: $(MADE)/dev ## mypy --strict and pyright on python/ and examples/, and the stubs against the modules
	@echo "--> checking types"
	$(BIN)/python -m mypy --strict python examples
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/python -m pyright # else it asks PyPI for a newer one
	$(BIN)/python -m mypy.stubtest $(STUBBED) --ignore-missing-stub --allowlist tools/stubtest_allowed.txt --ignore-unused-allowlist

# What a machine lacks that is needed for a check (status 3) is no fault of ours, but it is said.
CHECKED = status=$$?; if [ $$status = 3 ]; then echo "--> SKIPPED $@: see the line above"; else exit $$status; fi

test-freethreaded: $(MADE)/venv ## run the suite without the GIL, each test that starts no threads in four threads at once
	@python=$$(tools/build_freethreaded.sh); status=$$?; \
	if [ $$status = 3 ]; then echo "--> SKIPPED test-freethreaded: see the line above"; exit 0; fi; \
	[ $$status = 0 ] && $(MAKE) --no-print-directory freethreaded-suite FT_PYTHON=$$python

test-platforms: ## other platforms: CPython 3.14 and 3.15, Windows, arm64, macOS, musl (ARGS: --cheap, or some of tools/platforms)
	@$(PYTHON) tools/platforms $(ARGS)

# The cheap part in two steps of make check: what waits for servers and compilers, and the tests.
.PHONY: platforms-built platforms-tested
platforms-built: $(MADE)/dev
	@$(PYTHON) tools/platforms --cheap --build

platforms-tested:
	@$(PYTHON) tools/platforms --cheap --built

test-rabbitmq: $(MADE)/dev ## the broker's tests that go through pika to a RabbitMQ server too, on a server of its own
	@$(BIN)/python tools/rabbitmq.py $(BIN)/python -m pytest tests/broker -m rabbitmq $(ARGS); $(CHECKED)

# A debug build of CPython checks what a release does not: it visits what is being freed. It loads the modules that a
# release loads, and what is installed in .venv. Left out is what computes long, and frees nothing new.
DEBUG_TESTS := $(addprefix --ignore=tests/core/entries/,test_selectors.py test_entries_model.py) tests/core/entries tests/contract/lifecycle
DEBUG_PATH = $(CURDIR)/python:$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
test-debug: $(MADE)/dev ## run tests of entry queues and life cycles in a debug build of CPython (ARGS=tests/contract: others)
	@echo "--> running tests in a debug build of CPython"
	@python=$$(tools/debug_python.sh $(BIN)/python); status=$$?; \
	if [ $$status = 3 ]; then echo "--> SKIPPED test-debug: see the line above"; exit 0; fi; \
	[ $$status = 0 ] && $(REPEATED) PYTHONPATH=$(DEBUG_PATH) $$python $(PYTEST) $(or $(ARGS),$(DEBUG_TESTS))

# Both interpreters, once test-freethreaded has made the second.
BOTH = $(BIN)/python $(wildcard .venv-ft/bin/python)
# The environment of the interpreter without the GIL. tests/native/quick_yield.c says what is preloaded and why; Linux alone needs it.
QUICK_YIELD := $(if $(filter Linux,$(shell uname)),build/quick_yield.so)
# What tests repeat, they repeat a quarter as often when they run again on another build (tests/support/counts.py).
REPEATED = MANYTAIL_PART=$(or $(MANYTAIL_PART),4)
WITHOUT_GIL = PYTHON_GIL=0 $(if $(QUICK_YIELD),LD_PRELOAD=$(CURDIR)/$(QUICK_YIELD))
# A shell loop over both. An interpreter with a GIL refuses to start with PYTHON_GIL=0.
EACH = for python in $(BOTH); do case $$python in *-ft*) export $(WITHOUT_GIL);; esac;
DELAYED = PYTHONPATH=$(CURDIR)/build/delays/lib

.PHONY: delays
delays: $(MADE)/dev $(QUICK_YIELD)
	@echo "--> building manytail with planted delays"
	$(EACH) MANYTAIL_DELAYS=1 $$python setup.py --quiet build --build-base build/delays --build-lib build/delays/lib || exit; done

stress: delays ## histories and lost wake-ups on a build with delays planted between the steps of the algorithms
	$(EACH) $(DELAYED) $$python $(PYTEST) tests/linear tests/wakeups $(ARGS) || exit; done

ROUNDS ?= 100000
wakeups: delays ## look for lost wake-ups in the same build, ROUNDS=100000 of each pair of calls (half an hour per interpreter)
	$(EACH) $(DELAYED) MANYTAIL_ROUNDS=$(ROUNDS) $$python -m pytest -o faulthandler_timeout=0 tests/wakeups $(ARGS) || exit; done

SEEDS ?= 100000
simulate: $(MADE)/dev ## run the scheduler of maps in SEEDS=100000 simulated worlds (tests/simulation), until a promise is broken
	cd tests && ../$(BIN)/python -m simulation --seeds=$(SEEDS) $(ARGS)

# The interpreters, each with manytail
SOAK_PYTHONS ?= $(BOTH)
MINUTES ?= 10
soak: $(MADE)/bench ## random mixed loads for MINUTES=10, invariants checked, memory watched and plotted
	$(BIN)/python bench/soak.py --minutes $(MINUTES) $(SOAK_PYTHONS) $(ARGS)

fuzz: $(MADE)/dev $(QUICK_YIELD) ## random maps, calls of queues, and situations on both builds for MINUTES=10, until one fails (tests/fuzz; ARGS=--seeds=1000)
	@$(EACH) for fuzzer in maps queues situations; do PYTHONPATH=tests $$python -m fuzz $$fuzzer --minutes=$(MINUTES) $(ARGS) & all="$$all $$!"; done; done; \
	for one in $$all; do wait $$one || status=1; done; exit $${status:-0}

tsan: $(MADE)/venv ## native threads drive the queues under ThreadSanitizer, then threads of a free-threaded CPython
	@echo "--> native threads under ThreadSanitizer"
	@$(BIN)/python tools/native.py tsan $(addprefix --freethreaded=,$(wildcard .venv-ft/bin/python)) $(ARGS); $(CHECKED)

asan: $(MADE)/dev ## the same threads, then tests/core and tests/contract, under AddressSanitizer and UBSan
	@echo "--> native threads, tests/core and tests/contract under AddressSanitizer and UBSan"
	@$(BIN)/python tools/native.py asan $(ARGS); $(CHECKED)

model: $(MADE)/venv ## the kernels in a model checker: every schedule of a few threads within a bound
	@echo "--> the kernels in the model checker"
	@$(BIN)/python tools/native.py model $(ARGS); $(CHECKED)

mutants: $(MADE)/dev ## weaken and break the kernels and the faces in every way of tests/mutants.toml, and see what catches it
	@echo "--> mutants"
	@$(BIN)/python tools/mutants.py $(ARGS); $(CHECKED)

instructions: $(MADE)/dev ## count the instructions of pairs of calls under valgrind, for both interpreters (ARGS='--pair PubSub')
	@$(BIN)/python tools/instructions.py $(BOTH) $(ARGS); $(CHECKED)

dist: $(MADE)/dev ## build the sdist, and a wheel from it, into dist/
	@echo "--> building the sdist and a wheel from it"
	$(BIN)/python -m build --outdir dist

wheels: $(MADE)/dev ## a wheel for each interpreter here, repaired, checked and tried outside the tree (ARGS='-- tests/core/entries': less)
	@echo "--> building, repairing, checking and trying wheels"
	$(BIN)/python tools/wheels.py $(BOTH) $(ARGS)

test-wheels: $(MADE)/dev $(QUICK_YIELD) ## the same, and the whole suite with each of them outside the tree (an hour)
	@echo "--> building, repairing and checking wheels, and running the whole suite with each"
	$(if $(QUICK_YIELD),LD_PRELOAD=$(CURDIR)/$(QUICK_YIELD)) $(BIN)/python tools/wheels.py --whole $(BOTH) -- $(ARGS) -- $(FT_TESTS) --parallel-threads=4 $(ARGS)

clean: ## remove everything that make has made
	rm -rf .venv .venv-ft $(RIVALS) build dist out site python/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks spark-warehouse
	find pyx -name '*.c' -delete
	find python -name '*.so' -delete
	find . -name __pycache__ -prune -exec rm -rf {} +

$(MADE)/venv: tools/check_machine.py
	@echo "--> making .venv from $(PYTHON)"
	@$(PYTHON) tools/check_machine.py
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv .venv
	@$(PIP) install --upgrade 'pip>=25.1'
	@$(PIP) install --group build
	@mkdir -p $(@D) && touch $@

$(MADE)/demo: $(MADE)/venv $(SOURCES)
	@echo "--> building manytail and installing what the demo needs (PySpark and Java: 0.5 GB, a few minutes)"
	@$(PIP) install --no-build-isolation --editable '.[demo]'
	@touch $@

$(MADE)/dev: $(MADE)/venv $(SOURCES)
	@echo "--> building manytail and installing what the tests need (PySpark and Java: 0.5 GB, a few minutes)"
	@$(PIP) install --no-build-isolation --editable '.[demo,numpy]' --group dev
	@touch $@

$(MADE)/bench: $(MADE)/venv $(SOURCES)
	@echo "--> building manytail and installing the rivals"
	@$(PIP) install --no-build-isolation --editable '.[demo,numpy]' --group bench
	@touch $@

$(MADE)/lint: $(MADE)/venv pyproject.toml
	@echo "--> installing the linters"
	@$(PIP) install --group lint
	@touch $@

$(MADE)/docs: $(MADE)/dev pyproject.toml
	@echo "--> installing what the site is built with"
	@$(PIP) install --group docs
	@touch $@

# Called by rivals with RIVALS_PYTHON, the interpreter that was found.
$(RIVALS)/made: pyproject.toml $(SOURCES)
	@echo "--> building manytail for $(RIVALS_PYTHON) and installing the rivals into $(RIVALS)"
	@[ -x $(RIVALS)/bin/python ] || $(RIVALS_PYTHON) -m venv $(RIVALS)
	@$(PIP) --python $(RIVALS)/bin/python install --group build
	@$(PIP) --python $(RIVALS)/bin/python install --no-build-isolation --editable . --group rivals
	@touch $@

# Called by test-freethreaded with FT_PYTHON, the interpreter that was found or built. Left out is what the GIL means
# nothing to, or whose dependencies have no wheels for that interpreter: Spark, the demo, the simulator, the codec and
# the checker of histories, which have no threads, and the tests of the packaging but the one of free threading.
FT_TESTS := --ignore=tests/simulation $(patsubst %,--ignore=tests/new_maps/test_%.py,simulation ledger leases) --ignore=tests/linear/test_checker.py --ignore=tests/shared/test_codec.py --ignore=tests/arrow --ignore=tests/spark --ignore=tests/demo --ignore=tests/typing --ignore-glob='tests/packaging/test_[!f]*' -m 'not spark and not rabbitmq'

.PHONY: freethreaded-suite
freethreaded-suite: $(FT_MADE)/dev $(QUICK_YIELD)
	@echo "--> running the tests without the GIL, each in four threads at once if it is for one thread"
	$(REPEATED) $(WITHOUT_GIL) .venv-ft/bin/python $(PYTEST) $(FT_TESTS) --parallel-threads=4 $(ARGS)

build/quick_yield.so: tests/native/quick_yield.c
	@mkdir -p $(@D)
	$(CC) -O2 -shared -fPIC -o $@ $< -ldl

$(FT_MADE)/venv: $(MADE)/venv
	@echo "--> making .venv-ft from $(FT_PYTHON)"
	@[ -x .venv-ft/bin/python ] || $(FT_PYTHON) -m venv --without-pip .venv-ft
	@# Debian's Python looks in lib/python3.13 while pip writes lib/python3.13t.
	@library=.venv-ft/lib/python$$(.venv-ft/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	if [ -d $$library ] && [ ! -L $$library ]; then [ -e $${library}t ] || mv $$library $${library}t; rm -rf $$library; fi; \
	mkdir -p $${library}t; [ -e $$library ] || ln -s $${library##*/}t $$library
	@$(FT_PIP) install --group build
	@mkdir -p $(@D) && touch $@

$(FT_MADE)/dev: $(FT_MADE)/venv $(SOURCES)
	@echo "--> building manytail without the GIL"
	@$(FT_PIP) install --prefer-binary --no-build-isolation --editable '.[numpy]' --group test
	@touch $@
