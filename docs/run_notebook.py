"""Runs the notebook in docs/notebooks and stores its outputs in it, with plots as pictures.

    python docs/run_notebook.py [NOTEBOOK]

What it needs beside trioha's own packages is not among the locked ones: nbclient, nbformat, ipykernel, and
kaleido with a Chrome or Chromium (BROWSER_PATH), for pictures that code hosts show. In Jupyter plots are
live.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "notebooks" / "archive.ipynb"
TIMEOUT_S = 600


def main(path: Path) -> None:
    """Run it, and write it."""
    os.environ["PLOTLY_RENDERER"] = "png"
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYTHONPATH"] = os.pathsep.join((str(ROOT), str(ROOT / "spark")))
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=TIMEOUT_S, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            # What Spark and its Java write to stderr is of the machine.
            cell.outputs = [one for one in cell.outputs if one.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"], "language_info": {"name": "python"}}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else NOTEBOOK)
