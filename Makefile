# The commands a person types.  CMake does the work (CMakePresets.json); this only installs what
# is missing first.

JOBS ?= $(shell nproc)
# The system's Python: that is the one tools/setup installs modules for.
PYTHON ?= $(firstword $(wildcard /usr/bin/python3) python3)
PYTEST = $(PYTHON) -m pytest -p no:cacheprovider -q

.PHONY: help setup run build test check ci clean
.DEFAULT_GOAL := help

help:
	@echo "make run      build kvgraft and start the demonstration (Ctrl-C ends it)"
	@echo "make test     build everything with checks on and run all tests"
	@echo "make setup    install the Debian packages that run and test need"
	@echo "make build    build the command: build/run/kvgraft"
	@echo "make check    format, layers, purity, headers, package"
	@echo "make ci       what .ci/run does: test, sanitizers, fuzzing, checks"
	@echo "make clean    remove build/"
	@echo
	@echo "ARGS='...' is passed on: make run ARGS='--exit --json'"

setup:
	@tools/setup test

build:
	@tools/setup run
	@mkdir -p build
	@{ cmake --preset run && cmake --build --preset run -j $(JOBS); } >build/run.log 2>&1 || \
	    { tail -40 build/run.log; exit 1; }

run: build
	@build/run/kvgraft demo $(ARGS)

test:
	@tools/setup test
	cmake --preset dev
	cmake --build --preset dev -j $(JOBS)
	ctest --preset dev -LE long
	KVGRAFT=$(CURDIR)/build/dev/kvgraft $(PYTEST) tests/e2e $(ARGS)

check:
	@tools/setup ci
	tools/check-style
	tools/check-layers
	tools/check-headers
	tools/check-pure
	tools/check-package

ci:
	.ci/run

clean:
	rm -rf build
