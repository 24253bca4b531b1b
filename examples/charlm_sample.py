"""Sample text from a model trained by charlm.py, with the weights in the newest checkpoint of its run directory.

    python examples/charlm_sample.py runs/charlm-001
    python examples/charlm_sample.py runs/charlm-001 --prompt 'class Queue' --temperature 0.5

The weights are a separate file, read with the safetensors library only: no checkpoint is loaded, nothing is trained.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from charlm import CharacterModel, decode, encode
from safetensors.torch import load_file


def newest_weights(run_dir: Path) -> Path:
    """The weights in the newest checkpoint: that with the highest first number in a name like ``000003-step-120``."""
    files = run_dir.glob("checkpoints/[0-9]*-step-*/model.safetensors")
    newest = max(files, key=lambda file: int(file.parent.name.partition("-")[0]), default=None)
    if newest is None:
        sys.exit(f"charlm_sample: there is no checkpoint with a model in {run_dir}")
    return newest


@torch.inference_mode()
def generate(model: CharacterModel, prompt: str, length: int, temperature: float, seed: int) -> str:
    """The prompt and `length` sampled characters after it."""
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    context = model.position_embedding.num_embeddings
    tokens = encode(prompt).long()
    for _ in range(length):
        logits = model(tokens[None, -context:])[0, -1]
        next_token = torch.multinomial((logits / temperature).softmax(0), 1, generator=generator)
        tokens = torch.cat([tokens, next_token])
    return decode(tokens)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sample text from a model trained by charlm.py.")
    parser.add_argument("run_dir", type=Path, help="the run directory")
    parser.add_argument("--prompt", default="\ndef ", help="beginning of the text (default: a new function)")
    parser.add_argument("--length", type=int, default=400, help="characters to sample (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.9, help="lower is less random (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampling (default: %(default)s)")
    arguments = parser.parse_args()
    if not arguments.prompt or arguments.temperature <= 0:
        parser.error("the prompt must not be empty, and the temperature must be above 0")
    model = CharacterModel.from_weights(load_file(newest_weights(arguments.run_dir)))
    print(generate(model, arguments.prompt, arguments.length, arguments.temperature, arguments.seed))


if __name__ == "__main__":
    main()
