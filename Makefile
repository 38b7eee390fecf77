# The one front door for developers; continuous integration uses it too. PYTHON=python3.12 chooses another interpreter.
PYTHON ?= python3
PIP := python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

BUILD := pyproject.toml constraints.txt $(wildcard CMakeLists.txt src/excise/native/*)
SOURCES := $(BUILD) $(shell find src/excise -name '*.py')

.PHONY: help demo test fix bench experiments docs clean
.DELETE_ON_ERROR:

help:  ## what can be made
	@sed -n 's/^\([a-z]*\):.*##  */  make \1\t/p' Makefile | expand -t 20

demo: .venv-demo/installed  ## train on real digits, forget one, see what is left
	.venv-demo/bin/excise demo

test: .venv/installed  ## formatting, lint, types, then the tests and the README's own code
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/python -m pytest

fix: .venv/installed  ## format, and mend what lint can mend
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

bench: .venv-bench/installed  ## speed and memory against other libraries, on this machine
	.venv-bench/bin/python -m benchmarks.run -o benchmarks/results.json
	.venv-bench/bin/python -m benchmarks.render
	.venv-bench/bin/python docs/render_readme.py

experiments: .venv/installed  ## the tables of the paper, on real features
	.venv/bin/python -m experiments.base_models
	.venv/bin/python -m experiments.linear_probe
	.venv/bin/python -m experiments.forget_class
	.venv/bin/python -m experiments.multi_class
	.venv/bin/python -m experiments.mask_size
	.venv/bin/python -m experiments.render
	.venv/bin/python docs/render_readme.py

docs: .venv/installed  ## tables, figures, help pages and the README, from results and docstrings
	.venv/bin/python -m experiments.render
	.venv/bin/python -m benchmarks.render
	.venv/bin/python docs/render_cli.py
	.venv/bin/python docs/render_readme.py

clean:  ## remove environments, builds and caches
	rm -rf .venv .venv-demo .venv-bench build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installed anew only when something that it was built from changes. The developers' environments see every change of a
# Python file at once (they are editable); the demo's is what a user gets.
.venv-demo/installed: $(SOURCES)
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/$(PIP) .
	@touch $@

.venv/installed: $(BUILD)
	$(PYTHON) -m venv .venv
	.venv/bin/$(PIP) --editable '.[dev]'
	@touch $@

.venv-bench/installed: $(BUILD)
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/$(PIP) --editable '.[bench]'
	@touch $@
