"""Runs what docs/interop.md shows, each peer's lines in that peer's environment."""

import re
from pathlib import Path

from benchmarks.interop.peer_python import PEERS, REFERENCE, ROOT, run_in_peer

HOMES = {"fedjax": REFERENCE, "tff": REFERENCE, "flower": PEERS, "pfl": PEERS}


def block(peer: str | None = None) -> str:
    """The page's lines of a peer, or ours, of all blocks one after another."""
    info = "python" if peer is None else f"python {peer}"
    page = (ROOT / "docs" / "interop.md").read_text()
    return "\n\n".join(re.findall(rf"^```{info}\n(.*?)^```", page, re.MULTILINE | re.DOTALL))


def run_block(peer: str, store: Path, folder: Path, timeout: float = 110) -> str:
    """Run a peer's lines in a folder in which a store is `runs/stdlib`; returns what they print."""
    (folder / "runs").mkdir()
    (folder / "runs" / "stdlib").symlink_to(store)
    script = folder / f"{peer}_lines.py"
    script.write_text(block(peer))
    return run_in_peer(HOMES[peer], script, timeout=timeout, cwd=folder)
