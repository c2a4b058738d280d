# What to do with a checkout. `make` alone lists the targets.
#
# On Debian 12 or 13 every target first installs what it needs and the machine lacks (scripts/bootstrap: apt, as
# root or through sudo). NO_BOOTSTRAP=1 keeps it from that.

PREFIX ?= /usr/local
DESTDIR ?=
# The interpreter of the virtual environment. Not simply python3: on some machines that is a slow wrapper.
PYTHON ?= $(shell [ -x /usr/bin/python3 ] && echo /usr/bin/python3 || echo python3)
VENV := .venv
PY := $(VENV)/bin/python
# What `make test` runs; give your own: make test T="tests/unit -k prefix"
T ?= tests --ignore=tests/bench --ignore=tests/matrix
PYTEST_ARGS ?=
# Processes that share the tests: one a processor, but two at least (many tests wait) and not more than eight.
# WORKERS=0: all in one process, for a debugger.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -ge 2 ] || n=2; [ $$n -le 8 ] || n=8; echo $$n)
PYTEST_ALL = -n $(WORKERS) --dist worksteal $(PYTEST_ARGS)
DEV := $(VENV)/.with-test-tools
# Root runs the privileged tests itself; anybody else through sudo, with the few variables they read.
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo --preserve-env=SVCCTL_REQUIRE,SVCCTL_CRASH,SVCCTL_KERNELS,SVCCTL_SEED,CI)
BPF_SOURCES := $(wildcard bpf/*.bpf.c bpf/include/*.h bpf/include/*/*.h) scripts/build_objects.py
OBJECTS := build/.objects

.PHONY: help build objects demo test lint format bench matrix crash dist deb install uninstall completions man clean need-%

help: ## this list
	@sed -nE 's/^([a-z]+):[^#]*## (.*)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 22

build: need-build $(VENV)/.installed $(OBJECTS) ## leave .venv/bin/svcctl, running the sources of this checkout

objects: need-objects $(OBJECTS) ## compile the BPF programs only

demo: need-demo build ## the main job on real traffic, in throw-away namespaces, each command shown
	$(SUDO) scripts/demo

test: need-test build $(DEV) ## all tests but other kernels and measurements; T=... for some
ifeq ($(SUDO),)
	$(PY) -m pytest $(PYTEST_ALL) $(T)
else
	@worst=0; judge() { case $$1 in 0 | 5) ;; *) worst=$$1 ;; esac; }; \
	$(PY) -m pytest $(PYTEST_ALL) -m "not kernel and not crash" $(T); judge $$?; \
	$(SUDO) scripts/as-root-test $(PYTEST_ALL) -m "kernel or crash" $(T); judge $$?; \
	exit $$worst    # 5: no test of T is in that half
endif

lint: need-build build $(DEV) ## ruff, formatting, mypy --strict
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

format: need-build build $(DEV) ## mend what ruff can mend
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: need-bench build $(DEV) ## measurements, each against a peer of the same run; B="startup connect" for some
	$(SUDO) scripts/bench $(B)

matrix: need-test need-matrix build $(DEV) ## the quick tests inside five Debian kernels (qemu); K="5.10 7" for some
	$(SUDO) $(PY) -m tests.matrix.run $(K)

crash: need-test build $(DEV) ## kill -9 at every system call of every writer
	SVCCTL_CRASH=all $(SUDO) scripts/as-root-test -m crash $(PYTEST_ALL) tests

dist: need-build build $(DEV) ## wheel and source archive in dist/, the same bytes every time
	$(PY) -m build --no-isolation --outdir dist .

deb: need-objects need-deb $(OBJECTS) ## dist/svcctl_VERSION_all.deb for Debian 12 and 13
	$(PYTHON) scripts/build_deb.py dist

install: need-objects $(if $(DESTDIR),,need-install) $(OBJECTS) ## below DESTDIR PREFIX, for the system's Python (PREFIX=/usr/local)
	$(PYTHON) scripts/install.py --prefix "$(PREFIX)" --destdir "$(DESTDIR)" --python "$(PYTHON)"

uninstall: ## remove what `make install` with the same PREFIX and DESTDIR put there
	$(PYTHON) scripts/install.py --uninstall --prefix "$(PREFIX)" --destdir "$(DESTDIR)"

completions: build ## write the completion scripts again from the commands that exist
	$(PY) scripts/completions.py

man: build ## write the man pages again from man/*.in and the commands that exist
	$(PY) scripts/manual.py

clean: ## remove everything that was built (downloaded kernels too)
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis svcctl/objects/*.o
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

need-%:
	@[ -n "$(NO_BOOTSTRAP)" ] || scripts/bootstrap $*

$(VENV)/.installed: pyproject.toml hatch_build.py | $(OBJECTS)
	[ -x $(PY) ] || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(DEV): $(VENV)/.installed
	$(PY) -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

$(OBJECTS): $(BPF_SOURCES)
	$(PYTHON) scripts/build_objects.py
	@mkdir -p $(@D) && touch $@
