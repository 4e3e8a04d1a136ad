# make venv | demo | test | check | compat | lab | bench | proto | clean
#
# TORCH_INDEX=URL   takes torch from another index, for instance https://download.pytorch.org/whl/cpu (the small CPU
#                   build); pip's own index by default.
# PYTHON=...        the interpreter to make .venv with; by default the first that is 3.11 or newer and has venv.
# ARGS=...          further arguments for pytest (make test), the benchmark (make bench) or Monarch's own tests
#                   (make compat; ARGS=--fast runs a fixed share of them).

VENV := .venv
PEERS := .venv-peers
BIN := $(VENV)/bin
TORCH := torch==2.13.0
TORCH_INDEX ?=
ARGS ?=
SHELL := /bin/bash

# torch comes first and without its dependencies when it has an index of its own: what else it needs is then found in
# pip's index by the next step, and nothing later has a reason to choose another torch.
TORCH_FROM := $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX))

.PHONY: venv demo test check compat lab bench proto clean

venv: $(VENV)/.kernelspec

$(VENV)/.made:
	@python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
	  for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	    if $$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$p; break; fi; \
	  done; \
	fi; \
	if [ -z "$$python" ]; then \
	  echo "No Python 3.11 or newer with its venv package was found. On Debian or Ubuntu: apt-get install python3-venv" >&2; \
	  exit 1; \
	fi; \
	echo "making $(VENV) with $$($$python --version)"; \
	$$python -m venv $(VENV)
	@touch $@

$(VENV)/.torch: | $(VENV)/.made
	@echo "installing $(TORCH) from $(or $(TORCH_INDEX),pip's own index)"
	$(BIN)/python -m pip install $(TORCH_FROM) $(TORCH)
	@touch $@

$(VENV)/.package: setup.cfg pyproject.toml $(VENV)/.torch
	@echo "installing the package and what the tour needs"
	$(BIN)/python -m pip install --quiet --editable '.[tour]'
	@touch $@

$(VENV)/.kernelspec: $(VENV)/.package monarch_kernel/kernel/specs.py $(wildcard monarch_kernel/kernel/resources/*)
	$(BIN)/monarch-kernel install --prefix $(VENV)
	@touch $@

$(VENV)/.test: $(VENV)/.kernelspec
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

$(VENV)/.dev: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --editable '.[test,dev]'
	@touch $@

demo: $(VENV)/.kernelspec
	$(BIN)/python notebooks/demo.py

test: $(VENV)/.test
	$(BIN)/python -m pytest $(ARGS)

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lab: $(VENV)/.kernelspec
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) \
	  --MultiKernelManager.default_kernel_name=monarch notebooks/01-tour.ipynb

# The peer gets an environment of its own: it brings its own torch. Its tests are part of its package.
$(PEERS)/.made: | $(VENV)/.made
	$(BIN)/python -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install $(TORCH_FROM) $(TORCH)
	$(PEERS)/bin/python -m pip install torchmonarch==0.7.0 || { \
	  echo "torchmonarch 0.7.0 could not be installed here, and make compat and make bench need it." >&2; exit 1; }
	@touch $@

bench: $(VENV)/.kernelspec $(PEERS)/.made
	$(BIN)/python benchmarks/run.py --ours $(BIN)/python --torchmonarch $(PEERS)/bin/python $(ARGS)

compat: $(VENV)/.test $(PEERS)/.made
	$(BIN)/python tests/compat/run.py --wheel-python $(PEERS)/bin/python $(ARGS)

proto: $(VENV)/.dev
	$(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=. --pyi_out=. --grpc_python_out=. \
	  monarch_kernel/protocol/host.proto

clean:
	rm -rf $(VENV) $(PEERS) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find monarch_kernel worker rdma tests benchmarks notebooks -name __pycache__ -prune -exec rm -rf {} +
