from __future__ import annotations

import string

import pytest
from cel import compile as compile_expression
from hypothesis import given
from hypothesis import strategies as st

from forebay.config.expressions import MAX_CHARACTERS, ExpressionError, Reading, read_expression
from forebay.config.rules import KINDS

KEYS = {name: name.replace(".", "__") for name in KINDS}


def read(source: str) -> Reading:
    """What is found in an expression over the names that there are."""
    return read_expression(source, KINDS, KEYS)


@pytest.mark.parametrize(
    ("source", "text", "names"),
    [
        (
            "running_seq_count > 32 || gpu_cache_usage_perc > 0.9",
            "running_seq_count > 32 || gpu_cache_usage_perc > 0.9",
            ("running_seq_count", "gpu_cache_usage_perc"),
        ),
        ("request.max_tokens > 4096", "request__max_tokens > 4096", ("request.max_tokens",)),
        ("request . model=='a'", "request__model=='a'", ("request.model",)),
        ("'request.model' == request.model", "'request.model' == request__model", ("request.model",)),
        (
            "request.model in ['a', 'b'] // not request.stream",
            "request__model in ['a', 'b'] // not request.stream",
            ("request.model",),
        ),
        (
            "['a', 'b'].exists(m, request.model.startsWith(m))",
            "['a', 'b'].exists(m, request__model.startsWith(m))",
            ("request.model",),
        ),
        (
            'r"\\d" == class && """x"y""" != class && !(class == \'it\\\'s\')',
            'r"\\d" == class && """x"y""" != class && !(class == \'it\\\'s\')',
            ("class",),
        ),
    ],
)
def test_names_are_found_outside_of_strings_and_put_into_one_word(
    source: str, text: str, names: tuple[str, ...]
) -> None:
    """Everything else stays as it is, and CEL can read what comes out."""
    found = read(source)
    assert (text, names, "bool") == (found.text, found.names, found.kind)
    compile_expression(found.text)


@pytest.mark.parametrize(
    "source",
    [
        "request.stream ? request.max_tokens > 5 : class == 'batch'",
        "request.tokens * 2 + 1 >= 10 % 3",
        "request.cost * 2.0 > 5 && -request.cost < 0.5e1",
        "double(request.tokens) / 2.0 > 0.5 && int('5') == 5 && string(5) == '5'",
        "size(request.model) > 5 && request.model.size() < 100",
        "request.model.matches('^ft-') && 'a' + 'b' == 'ab'",
        "[1, 2].map(x, x * 2).all(x, x > 1) && [[1]][0][0] == 1",
        "{'a': 1}.a == 1 && {'a': 1}['a'] == 1 && 'a' in {'a': 1}",
        "[request.tokens, 5].filter(x, x > 3).size() == 2",
        "type(request.tokens) == int && dyn(request.tokens) == 5",
        "request.retry_count in [1, 2] || class in []",
        "0x1F == 31 && 5u > 3 && .5 < 1.0",
        "null != class",
    ],
)
def test_what_fits_is_taken(source: str) -> None:
    """CEL takes it as well."""
    assert read(source).kind == "bool"
    compile_expression(source)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("request.modle == 'a'", "did you mean request.model? (character 1)"),
        ("runing_seq_count > 1", "did you mean running_seq_count?"),
        ("request == 'a'", "it has the parts request.model, "),
        ("request['model'] == 'a'", "it has the parts"),
        ("request.max_tokens == '5'", "an int == a string is never what is meant (character 26)"),
        ("true || running_seq_count > 'a'", "an int > a string is never what is meant"),
        ("request.model > true", "a string > a bool"),
        ("[1] < [2]", "a list < a list"),
        ("request.cost * 2 > 5.0", "CEL does not mix kinds of numbers"),
        ("request.model + 1 == 'a'", "a string + an int has no meaning"),
        ("request.cost % 2.0 == 1.0", "a double % a double has no meaning"),
        ("!request.tokens", "after ! there must be a bool, not an int"),
        ("-request.model == 'a'", "- before a string has no meaning"),
        ("request.stream && request.tokens", "after && there must be a bool, not an int"),
        ("request.tokens || true", "before || there must be a bool"),
        ("request.tokens ? true : false", "before ? there must be a bool"),
        ("request.tokens in 5", "after `in` there must be a list"),
        ("request.model in [1, 2]", "a string is never in a list of an int"),
        ("request.tokens.size() > 1", "an int has no size"),
        ("request.model.size > 1", "a string has no part `size`"),
        ("request.tokens.startsWith('a')", "startsWith is for two strings, not an int and a string"),
        ("request.model.startWith('a')", "did you mean startsWith?"),
        ("unknown_function(1)", "there is no function unknown_function(); there are all, "),
        ("size()", "size() is not called so"),
        ("has(request.model)", "has() is not needed"),
        ("request.tokens[0] == 1", "an int has no [ ]"),
        ("[1]['a'] == 1", "the place in a list is an int"),
        ("'a'.all(x, true)", "all() is for lists, not for a string"),
        ("[1].all(x, x)", "in all() there must be a bool"),
        ("[1].all(1, true)", "a name is missing here"),
        ("[1].all(x, [2].all(y, x < y))", "a macro in another one would be asked for all pairs"),
        ("[[1]].all(x, x.exists(y, y > 1))", "exists() goes over a list that is written out"),
        ("[1].map(x, [2].map(y, y)).size() > 0", "a macro in another one"),
        ("([1] + [2]).all(x, x > 1)", "all() goes over a list that is written out"),
        ("[[1, 2]][0].all(x, x > 1)", "all() goes over a list that is written out"),
        ("dyn([1]).all(x, x > 1)", "all() goes over a list that is written out"),
        ("{'a': 1}.all(x, x == 'a')", "all() goes over a list that is written out"),
        ("{'a': [1]}.all(x, x == 'a')", "all() goes over a list that is written out"),
        ("{'a': [1]}.a.all(x, x == 1)", "all() goes over a list that is written out"),
        ("class.all(x, x == 'a')", "all() is for lists"),
        ("['a'].map(x, x + x).size() > 0", "in a macro texts and lists are not joined"),
        ("size(" + " + ".join(["class"] * 10) + ") > 9", "more than 8 times texts or lists are joined"),
        ("[1].all(x, true) && x > 1", "there is no `x`"),
        ("1 <", "a value is missing here (character 4)"),
        ("", "a value is missing here"),
        ("(true", "`)` is missing here"),
        ("[1, 2", "`]` is missing here"),
        ("true ? false", "`:` is missing here"),
        ("{'a' 1} == {}", "`:` is missing here"),
        ("true true", "an operator is missing here (character 6)"),
        ("class = 'a'", "'=' is not understood (character 7)"),
        ("class == 'a", "is not understood"),
        ("(" * 60 + "true" + ")" * 60, "nested too deeply"),
        ("!" * 60 + "true", "nested too deeply"),
        ("-" * 60 + "1 > 0", "nested too deeply"),
        ("x" * (MAX_CHARACTERS + 1), "longer than 4096 characters"),
    ],
)
def test_what_cannot_be_meant_is_said_with_its_place(source: str, said: str) -> None:
    """Also where CEL would find it only for certain requests, or never."""
    with pytest.raises(ExpressionError) as caught:
        read(source)
    assert said in str(caught.value)


def test_the_variable_of_a_macro_hides_a_name_only_inside() -> None:
    """Each macro has its own."""
    found = read(
        "['a'].all(x, x == 'a') && [1].all(x, x > 0) && ['b'].all(class, class == 'b') && class == 'a'"
    )
    assert ("class",) == found.names
    assert () == read("[1].all(class, class == 1)").names


def test_what_an_evaluation_costs_is_counted() -> None:
    """What is in a macro for each entry, also of a list that came from another one."""
    assert 3 == read("request.stream").steps - 1
    plain, macro = read("[1, 2, 3].size() == 3").steps, read("[1, 2, 3].all(x, x > 0)").steps
    assert (14, 29) == (plain, macro)  # 14 signs and words of its own, and 5 for each entry
    asked = read("['a', 'b'].map(x, x).exists(x, class.matches('p') || x == class)")
    assert (("'p'", 2),) == asked.patterns


WORDS = ["1", "2.5", "'a'", "true", "in", ".size()", ".all(x,", "x", "request", "int(", "/*", "//"]
SIGNS = ["(", ")", "[", "]", "{", "}", "&&", "||", "==", "<", "+", "-", "!", ".", "?", ":", ","]
PIECES = st.sampled_from([*KINDS, *WORDS, *SIGNS])


@given(st.lists(PIECES, max_size=12).map(" ".join) | st.text(string.printable, max_size=40))
def test_any_text_is_understood_or_refused(source: str) -> None:
    """Nothing else is raised, and nothing takes for ever."""
    try:
        found = read(source)
    except ExpressionError:
        return
    assert set(found.names) <= set(KINDS)
