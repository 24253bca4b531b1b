"""Text that a model trained by charlm.py writes, from the weights in the newest checkpoint of its run directory.

    python examples/charlm_sample.py runs/charlm-001
    python examples/charlm_sample.py runs/charlm-001 --prompt 'class Queue' --temperature 0.5

The weights are a file of their own, read by the safetensors library alone: no checkpoint is loaded, nothing is trained.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from charlm import CharacterModel, decode, encode
from safetensors.torch import load_file


def newest_weights(run_dir: Path) -> Path:
    """The weights in the newest checkpoint; its folder is called ``000003-step-120``, and the first number counts."""
    found = sorted(run_dir.glob("checkpoints/[0-9]*-step-*/model.safetensors"), key=lambda file: _number(file.parent))
    if not found:
        sys.exit(f"charlm_sample: there is no checkpoint with a model in {run_dir}")
    return found[-1]


def _number(folder: Path) -> int:
    return int(folder.name.partition("-")[0])


@torch.inference_mode()
def continuation(model: CharacterModel, prompt: str, length: int, temperature: float, seed: int) -> str:
    """The prompt and `length` characters after it, each drawn by the scores that the model gives it."""
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    context = model.positions.num_embeddings
    characters = encode(prompt).long()
    for _ in range(length):
        scores = model(characters[None, -context:])[0, -1]
        chosen = torch.multinomial((scores / temperature).softmax(0), 1, generator=generator)
        characters = torch.cat([characters, chosen])
    return decode(characters)


def main() -> None:
    parser = argparse.ArgumentParser(description="Write text with a model trained by charlm.py.")
    parser.add_argument("run_dir", type=Path, help="the run directory")
    parser.add_argument("--prompt", default="\ndef ", help="what the text begins with (default: a new function)")
    parser.add_argument("--length", type=int, default=400, help="characters to write (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.9, help="below 1: likelier text (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (default: %(default)s)")
    given = parser.parse_args()
    if not given.prompt or given.temperature <= 0:
        parser.error("the prompt must hold a character, and the temperature be above 0")
    model = CharacterModel.from_weights(load_file(newest_weights(given.run_dir)))
    print(continuation(model, given.prompt, given.length, given.temperature, given.seed))


if __name__ == "__main__":
    main()
