"""Tables keep all rows, and name their columns on narrow screens, too."""

from streaming.pages.elements import document, table
from tests.unit.pages.markup import assert_loads_nothing, elements


def test_rows_after_the_first_are_folded_and_not_left_out() -> None:
    drawn = table(("name", "bytes"), [(f"t{number}", "1") for number in range(40)], numbers={1})
    assert [cell.text for cell in elements(drawn, "td")][::2] == [f"t{number}" for number in range(40)]
    (folded,) = elements(drawn, "details")
    assert len([*folded.iter("td")]) == 2 * 15
    assert "<summary>15 more<" in drawn
    assert "<details" not in table(("name",), [("t",)] * 25, numbers=set())


def test_cells_carry_the_names_of_their_columns() -> None:
    drawn = table(('a "b"', "n"), [("<x>", "1")], numbers={1})
    assert [cell.attrib["data-head"] for cell in elements(drawn, "td")] == ['a "b"', "n"]
    assert "<x>" not in drawn


def test_an_empty_table_is_a_word() -> None:
    assert table(("a",), [], numbers=set()) == '<p class="nothing">None.</p>'


def test_a_document_loads_nothing_and_escapes_its_title() -> None:
    text = document("<script>x</script>", "<p>body</p>")
    assert_loads_nothing(text)
    assert "&lt;script&gt;" in text


def test_only_sentences_show_words_in_backticks_as_code() -> None:
    drawn = table(("name", "what to do"), [("`a`", "run `space <x>` again, `")], numbers=set(), sentences={1})
    assert ">`a`<" in drawn
    assert ">run <code>space &lt;x&gt;</code> again, `<" in drawn
