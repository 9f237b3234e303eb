# make demo: train a network with vlug.  make test: run the suite.  Both set up everything they need.
PYTHON ?= python3
VENV := .venv

.PHONY: test demo clean
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install -q -c constraints.txt -e '.[torch,demo,dev]'
	touch $@

test: $(VENV)/ready
	$(VENV)/bin/python -m pytest

clean:
	rm -rf $(VENV) build dist
