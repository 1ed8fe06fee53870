"""docs/guarantees.md names tests: each must exist, and its list of mutations is the one that is run."""

import ast
import re
from pathlib import Path

import pytest
from prove.mutations import MUTATIONS

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT)))


@pytest.mark.parametrize(("file", "test"), NAMED, ids=str)
def test_named_test_exists(file, test):
    tree = ast.parse((ROOT / file).read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}

    assert not test or test in functions


def test_every_mutation_is_in_the_document():
    mutations = (ROOT / "tests" / "prove" / "mutations.py").read_text()
    table = TEXT.partition("## Broken on purpose")[2].partition("## Under load")[0]

    run = re.findall(r'^        "(tests/\S+::\w+)",$', mutations, re.MULTILINE)

    assert len(run) > 10
    assert re.findall(r"`(tests/\S+::\w+)` \|$", table, re.MULTILINE) == run


def test_every_mutation_has_its_place():
    """Else only `make prove` would find that the code has moved."""
    for mutation in MUTATIONS:
        assert (ROOT / mutation.file).read_text().count(mutation.old) == 1, mutation.name
