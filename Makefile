# run, test, test-quick, test-all, test-next, test-tpu, test-ray, lint, format, bench, train, docs, hub, screenshots, clean: each sets up what it needs in .venv
# and skips what is done.
#   make run HFJAX_PORT=8000        any HFJAX_* setting, from the environment or the command line
#   make run PYTHON=python3.12      another Python, 3.11 or newer
#   make run ACCELERATOR=tpu        jax for a TPU VM, or cuda for NVIDIA GPUs; what is installed stays for later starts
#   make run TORCH_INDEX=URL        PyTorch from this index; an empty one is pip's usual index

PYTHON ?= python3
ACCELERATOR ?=
VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check install --quiet --no-compile
# pip would make the bytecode of all 16,000 modules, which takes longer than to unpack them. Python makes that of the
# third that is imported, and keeps it if it may.
export PYTHONDONTWRITEBYTECODE :=
# Large arrays on pages of 2 MiB, where Linux gives them to who asks: four users' chat takes a tenth less time.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1
RUFF := $(VENV)/bin/ruff

# PyTorch only traces models here. Its CPU build lacks the CUDA libraries, which are gigabytes.
CPU_INDEX := https://download.pytorch.org/whl/cpu
TORCH := --no-deps $$(grep -m 1 '^torch==' requirements.txt)
# urllib's timeout does not cover the look-up of the name; the timer does.
ANSWERS := $(PY) -c "import os, sys, threading, urllib.request; t = threading.Timer(5, os._exit, [1]); t.daemon = True; \
  t.start(); urllib.request.urlopen(sys.argv[1], timeout=3)" 2>/dev/null

.DEFAULT_GOAL := help
.PHONY: help run test test-quick test-all test-next test-tpu test-ray lint format bench bench-peers train screenshots chromium clean no-accelerator

help:
	@echo "make run          the studio on http://127.0.0.1:7860;  make run ACCELERATOR=tpu (or cuda) installs jax for it"
	@echo "make test         ruff, mypy and the tests: everything, but not every one of a kind"
	@echo "make test-quick   a minute of them, while one works: units that need no browser, no server and little compilation"
	@echo "make test-all     the slow ones too: all architectures and held-out prompts, two minutes of clients that come and go"
	@echo "make test-next    what the newest releases of all libraries break, in a venv of their own"
	@echo "make test-tpu     whole models through the TPU's compiler; no TPU is needed"
	@echo "make test-ray     the app on Ray Serve: its processes are killed, moved and left alone"
	@echo "make lint         ruff and mypy only;  make format mends what it can"
	@echo "make bench        the chat engine against others;  make bench-peers builds llama.cpp for it"
	@echo "make train        make the embedded models again"
	@echo "make docs         write docs/settings.md from hfjax_app/settings.py"
	@echo "make hub          ask the hub for every repository that the docs and the help name; needs a network"
	@echo "make screenshots  take the pictures of README and docs from the running app"
	@echo "make clean        remove .venv and everything else that is not in git"

# Ctrl-C: the trap keeps the shell alive to see the exit status, so that make has nothing to complain about.
run: $(if $(filter-out tpu cuda,$(ACCELERATOR)),no-accelerator) $(VENV)/.installed$(addprefix -,$(ACCELERATOR))
	@trap : INT; $(PY) -m hfjax_app serve || test $$? -eq 130

# A minute: what starts no server, opens no page and compiles next to nothing.
QUICK := $(addprefix tests/,test_docs.py test_errors.py test_layers.py test_line.py test_settings.py test_ladder_result.py \
  api/test_endpoints.py api/test_schemas.py service/test_images.py backends/test_backend.py backends/test_operator.py \
  chat/text chat/engine/test_decode_calls.py chat/engine/test_prefix_cache.py chat/engine/test_scheduler.py \
  chat/engine/test_stats.py chat/sampling/test_recommended.py images/test_foreign_parameters.py \
  images/test_generation_parameters.py images/test_uploads.py sentiment/test_own_labels.py sentiment/test_table.py \
  runtime/checkpoints/test_config.py runtime/checkpoints/test_quantized.py runtime/checkpoints/test_weight_files.py \
  runtime/test_compiled_text.py runtime/test_mesh.py runtime/test_program.py runtime/test_hosts.py \
  studio/test_engine_drawing.py studio/test_files.py studio/test_label_drawing.py studio/test_markdown.py \
  studio/test_seed.py studio/test_status.py studio/test_transcript.py)
test-quick: $(VENV)/.installed-dev
	@$(RUFF) check
	@$(PY) -m pytest -q -m "not slow and not tpu" -n 2 $(QUICK) \
	  --deselect tests/test_layers.py::test_importing_every_module_starts_no_device_and_no_ray

$(if $(filter test-all,$(MAKECMDGOALS)),$(info all tests, the slow ones too: one to two hours on two cores))
test: MARKED := not slow and not tpu
test-all: MARKED := not tpu
test-all: export CHURN_SECONDS = 120
test-all: $(VENV)/.installed-clients
test-all: APART := --ignore tests/serving
test test-all: lint chromium
	@$(PY) -m pytest -m "$(MARKED)" -n 2 --dist loadfile --no-loadscope-reorder $(APART)
	@$(if $(APART),$(on_ray))

# libtpu compiles for TPUs that are not here, on any x86-64 Linux; minutes for each model.
test-tpu: $(VENV)/.installed-dev
	@$(PY) -m pytest -m tpu

# Two chat replicas on this machine. `make test-all` runs these tests too where Ray is installed, apart from the others:
# two workers would start Ray twice.
on_ray = if $(PY) -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('ray') is None)"; \
  then $(PY) -m pytest tests/serving; else echo "Ray is not installed: make test-ray installs it and tests serving/"; fi
test-ray: $(VENV)/.installed-dev $(VENV)/.installed-ray
	@$(PY) -m pytest tests/serving

# The newest releases that the registry has, whatever is pinned here: what breaks is what the next upgrade has to mend. torch
# stays, because it comes as a build for CPUs, and torchax, which imports with certain releases of torch only.
NEXT := .venv-next
NEXT_PIP = $(subst $(VENV),$(NEXT),$(PIP))
NEXT_TESTS := tests/runtime/seams tests/runtime/test_module.py tests/chat/test_assistant.py \
  tests/sentiment/test_classifier.py tests/images/test_generator.py tests/studio/test_api.py tests/studio/test_v1.py
NEXT_TOOLS := pytest pytest-timeout httpx openai playwright
test-next: $(VENV)/.created
	@echo "installing the newest releases into $(NEXT)"
	@rm -rf $(NEXT) && $(PY) -m venv $(NEXT)
	@$(subst $(VENV),$(NEXT),$(install_torch))
	@sed -E '/^torch(ax)?==/!s/==.*//' requirements.txt > $(NEXT)/requirements.txt
	@$(NEXT_PIP) --upgrade -r $(NEXT)/requirements.txt $(NEXT_TOOLS)
	@$(NEXT)/bin/python -c "import importlib.metadata as m; pins = [line.strip().split('==') for line in open('requirements.txt')]; \
	  [print(f'{name} {m.version(name)}, pinned is {pin}') for name, pin in pins if m.version(name).partition('+')[0] != pin]"
	@$(NEXT)/bin/python -m pytest -W default -q --tb line -rfE -k "not reviewed_release" $(NEXT_TESTS)

lint: $(VENV)/.installed-dev
	@$(RUFF) check
	@$(RUFF) format --check
	@$(PY) -m mypy hfjax_app

format: $(VENV)/.installed-dev
	@$(RUFF) check --fix
	@$(RUFF) format

bench: ROUNDS := 5
bench: $(VENV)/.installed-bench
	@$(PY) -m benchmarks.chat --rounds $(ROUNDS)

# Always built anew: a build uses this processor's instructions, and pip's cache may hold one of another's. Without AMX,
# whose code in llama.cpp ended in an illegal instruction on a virtual machine that has it.
NO_AMX := $(if $(filter x86_64,$(shell uname -m)),-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8)
bench-peers: benchmarks/requirements-peers.txt $(VENV)/.installed-bench
	@echo "building llama.cpp (minutes; needs a C++ compiler)"
	@$(PY) -m pip uninstall --quiet --yes llama-cpp-python
	@CMAKE_ARGS="-DLLAVA_BUILD=OFF $(NO_AMX)" $(PIP) --no-cache-dir --no-binary llama-cpp-python -r $< || $(build_failed)

train: $(VENV)/.installed-train
	@$(PY) -m training.chat
	@$(PY) -m training.sentiment
	@$(PY) -m training.images

.PHONY: docs
docs: $(VENV)/.installed-dev
	@$(PY) -m tests.settings_page

.PHONY: hub
hub: $(VENV)/.installed-dev
	@$(PY) -m tests.hub_names

screenshots: $(VENV)/.installed-dev chromium
	@$(PY) -m tests.screenshots

# Tests drive Debian's chromium, and run behind its nginx; without them they are skipped and say so.
chromium:
	@test -x /usr/sbin/nginx || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && echo "installing nginx" \
	  && apt-get update -qq && apt-get install -y -qq nginx-light >/dev/null; } \
	  || echo "nginx is not installed: its tests will be skipped (as root: apt-get install nginx-light)"
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	  && echo "installing chromium" && apt-get update -qq && apt-get install -y -qq chromium >/dev/null; } \
	  || echo "chromium is not installed: the browser tests will be skipped (as root: apt-get install chromium)"

# A stamp is older than its requirements file when that changed since the last install.
$(VENV)/.installed: requirements.txt | $(VENV)/.created
	@echo "installing requirements.txt into $(VENV) (minutes, the first time)"
	@$(install_torch)
	@$(PIP) -r requirements.txt || $(build_failed)
	@$(PY) -c "import gradio" & \
	  TRANSFORMERS_VERBOSITY=error $(PY) -c "import hfjax_app.chat.engine.llm_engine, hfjax_app.images.generator, hfjax_app.sentiment.classifier"; wait
	@touch $@

# dev, tpu, cuda or ray, each beside what is there.
$(VENV)/.installed-%: requirements-%.txt $(VENV)/.installed
	@echo "installing $< into $(VENV)"
	@$(PIP) -r $< || $(build_failed)
	@touch $@

$(VENV)/.installed-bench: benchmarks/requirements.txt $(VENV)/.installed
	@echo "installing benchmarks/requirements.txt into $(VENV)"
	@$(PIP) -r benchmarks/requirements.txt || $(build_failed)
	@touch $@

$(VENV)/.installed-train: training/requirements.txt $(VENV)/.installed
	@echo "installing training/requirements.txt into $(VENV)"
	@$(PIP) -r training/requirements.txt || $(build_failed)
	@touch $@

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null \
	  || $(call stop,$(PYTHON) not found: install Python 3.11 or newer (Debian and Ubuntu: apt-get install python3 python3-venv))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || $(call stop,$$($(PYTHON) --version) is too old: Python 3.11 or newer is needed (make run PYTHON=python3.12))
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || $(call stop,the venv module of $(PYTHON) is missing: install the package python3-venv (apt-get install python3-venv))
	@$(PYTHON) -m venv $(VENV)
	@touch $@

# Where the CPU index can't be reached, or has no build for this machine, requirements.txt brings the usual build.
ifdef TORCH_INDEX
install_torch = $(PIP) --index-url $(TORCH_INDEX) $(TORCH)
else ifeq ($(origin TORCH_INDEX),undefined)
install_torch = if ! $(ANSWERS) $(CPU_INDEX)/torch/; \
	  then echo "$(CPU_INDEX) does not answer: PyTorch comes from pip's usual index"; \
	  elif ! $(PIP) --index-url $(CPU_INDEX) $(TORCH) 2>/dev/null; \
	  then echo "$(CPU_INDEX) has no build for this machine: PyTorch comes from pip's usual index"; fi
endif

no-accelerator:
	@$(call stop,ACCELERATOR=$(ACCELERATOR): must be tpu or cuda; leave it out for a CPU)

stop = { echo "error: $(1)" >&2; exit 1; }
build_failed = { command -v cc >/dev/null \
  || echo "error: no C compiler here, if a package above had to be built: install the package build-essential" >&2; exit 1; }

clean:
	rm -rf $(VENV) $(NEXT) .pytest_cache .ruff_cache .mypy_cache out test-results
	find . -name __pycache__ -prune -exec rm -rf {} +
