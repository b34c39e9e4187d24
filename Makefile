# Every target sets up what it needs; the second time that costs nothing.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: run test lint docs bench setup clean

# The main job within about two minutes: Human Activity, or a generated stand-in without the file.
run: setup
	$(BIN)/python run_models.py --dataset activity --ode morph --n-members 1 --budget 100 $(ARGS)

# Two tests at a time, each on one thread; `make test ARGS="-n 0"` runs them one after the other.
test: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal $(ARGS)

# A short form of every benchmark, twenty minutes to an hour; see `python -m benchmarks --help`.
bench: setup
	$(BIN)/python -m benchmarks all --short --markdown benchmarks/RESULTS.md $(ARGS)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The site in site/, with warnings as errors. The variable silences an announcement of the theme.
docs: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

setup: $(STAMP)

# Written last, so that an interrupted install starts over.
$(STAMP): setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist site *.egg-info
