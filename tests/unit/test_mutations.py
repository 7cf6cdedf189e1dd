"""The list of mutations can't rot: each still fits the code as it is (`tox run -e mutants` runs them)."""

import pytest

from tests.mutants import ROOT, Mutation, mutations


@pytest.mark.parametrize("mutation", mutations(), ids=lambda mutation: mutation.rule)
def test_a_mutation_matches_the_source_and_names_tests_that_exist(mutation: Mutation) -> None:
    """Its text stands once in the file, what it makes of it can be compiled and is something else."""
    source = (ROOT / mutation.file).read_text()
    mutated = mutation.applied(source)
    assert mutated != source
    compile(mutated, mutation.file, "exec")
    assert mutation.tests, "somebody must notice"
    for test in mutation.tests:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / "unit" / path).read_text(), "the test stands there"


def test_every_rule_is_named_once() -> None:
    """The table is read by people."""
    rules = [mutation.rule for mutation in mutations()]
    assert len(rules) == len(set(rules)) >= 12


def test_a_mutation_that_no_longer_matches_says_so() -> None:
    """Whoever changes the code renews the list."""
    stale = Mutation("a rule", "a.py", "gone", "", [])
    with pytest.raises(ValueError, match=r"a\.py has 'gone' 0 times; renew"):
        stale.applied("here")
