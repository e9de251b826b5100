"""Runs what docs/interop.md shows, each peer's lines in the environment that the page names for them."""

import re
from pathlib import Path

from benchmarks.interop.peer_python import ROOT, run_as_installed

PAGE = ROOT / "docs" / "interop.md"
NAMES = {"fedjax": "FedJAX", "tff": "TFF", "flower": "Flower", "pfl": "pfl-research"}


def block(peer: str | None = None) -> str:
    """The page's lines of a peer, or ours, of all blocks one after another."""
    info = "python" if peer is None else f"python {peer}"
    return "\n\n".join(re.findall(rf"^```{info}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL))


def home_of(peer: str) -> Path:
    """The folder of the environment in which the page has a peer's lines run."""
    (home,) = [
        folder
        for folder, peers in re.findall(
            r"^\$ (\S+)/\.venv/bin/python LINES.py +# those for (.*)$", PAGE.read_text(), re.M
        )
        if NAMES[peer] in peers.split(" and ")
    ]
    return ROOT / home


def run_block(peer: str, store: Path, folder: Path, timeout: float = 110) -> str:
    """Run a peer's lines in a folder in which a store is `runs/stdlib`; returns what they print."""
    (folder / "runs").mkdir()
    (folder / "runs" / "stdlib").symlink_to(store)
    script = folder / f"{peer}_lines.py"
    script.write_text(block(peer))
    return run_as_installed(home_of(peer), script, timeout, folder)
