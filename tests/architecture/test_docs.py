"""The papers tell the truth: links lead somewhere, and every key, reason, promise and test they name is there."""

import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from streaming.cli.main import program
from tests import invariants
from tests.unit.udfs.requests import test_lane_receipts, test_request_format
from udfs.records import PendingDelete, Reason
from udfs.requests.lane_receipts import lane_receipt
from udfs.requests.request_format import decode

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# other tests create and delete files in the hidden folders meanwhile
_VISIBLE = [path for path in ROOT.iterdir() if not path.name.startswith(".") and path.name != "build"]
PAGES = sorted(
    page.relative_to(ROOT)
    for top in _VISIBLE
    for page in ([top] if top.is_file() else top.rglob("*.md"))
    if page.suffix == ".md"
)
_INDEX = Path("docs/README.md")
DECISIONS = sorted(page for page in (DOCS / "decisions").glob("*.md") if page.name != "README.md")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_DEFINITION = re.compile(r"^ *(?:async def|def|class) (\w+)", re.MULTILINE)
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


def text_of(page: Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def prose_of(page: Path) -> str:
    """A page without its blocks of code."""
    return _FENCE.sub("", text_of(page))


def rows(text: str) -> Iterator[list[str]]:
    """The cells of every row of every table."""
    for line in text.splitlines():
        if line.startswith("|") and not line.startswith("|--"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_readme_can_be_read_in_one_go() -> None:
    lines = text_of(Path("README.md")).splitlines()
    assert len(lines) <= 150
    assert [line for line in lines if len(line) > 120] == []


@cache
def anchors(page: Path) -> frozenset[str]:
    """What GitHub makes of a page's headings."""
    headings = (
        re.sub(r"[^\w\- ]", "", each.lower()).strip().replace(" ", "-") for each in _HEADING.findall(prose_of(page))
    )
    return frozenset(headings)


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    broken = []
    for link in _LINK.findall(_CODE.sub("", prose_of(page))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target.relative_to(ROOT))):
            broken.append(link)
    assert broken == []


def test_every_page_of_docs_is_linked_from_an_index() -> None:
    linked = {
        ((ROOT / page).parent / link.partition("#")[0]).resolve()
        for page in (_INDEX, Path("docs/decisions/README.md"))
        for link in _LINK.findall(prose_of(page))
    }
    pages = [page for page in PAGES if page.parts[0] == "docs" and page != _INDEX]
    assert [str(page) for page in pages if ROOT / page not in linked] == []


# keys that one comment explains together with the key above
_EXPLAINED_ABOVE = {"dead_letter", "tls_ca_file", "tls_cert_file", "tls_key_file", "region"} | {
    "max_deletes_per_hour_per_tenant",
    "max_deletes_per_hour_per_owner",
}


def test_every_configuration_key_has_a_comment_above_it() -> None:
    lines = text_of(Path("conf/default.toml")).splitlines()
    keys = [(line.partition(" = ")[0], above) for above, line in pairwise(lines) if re.match(r"[a-z]\w* = ", line)]
    assert len(keys) > 60
    assert {key for key, above in keys if not above.startswith("# ")} == _EXPLAINED_ABOVE


def test_the_page_on_configuration_names_every_section() -> None:
    sections = tomllib.loads(text_of(Path("conf/default.toml")))
    assert set(re.findall(r"`\[(\w+)\]`", text_of(Path("docs/configuration.md")))) == set(sections)


def test_every_reason_is_documented_once_with_its_meaning_and_what_to_do() -> None:
    found = [cells for cells in rows(text_of(Path("docs/reasons.md"))) if cells[0].startswith("`")]
    assert sorted(cells[0].strip("`") for cells in found) == sorted(Reason)
    assert [cells[0] for cells in found if not all(cells)] == []


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Names of all functions and classes in a module, methods among them."""
    return frozenset(_DEFINITION.findall(path.read_text(encoding="utf-8")))


@cache
def known_tests() -> frozenset[str]:
    return frozenset().union(*(defined_in(path) for path in (ROOT / "tests").rglob("test_*.py")))


def test_every_promise_names_an_invariant_code_and_tests_that_exist() -> None:
    page = text_of(Path("docs/promises.md"))
    promises = [cells for cells in rows(page) if len(cells) == 4 and cells[0] != "promise"]
    named = {name for cells in promises for name in re.findall(r"`(\w+)`", cells[1])}
    assert named == {
        promise.__name__ for promise in (*invariants.PROMISES, *invariants.OF_TOPICS, *invariants.OF_INSPECTIONS)
    }
    assert [cells[0] for cells in promises if not (re.search("`.+`", cells[2]) and re.search("`.+`", cells[3]))] == []
    for path, name in re.findall(r"`([\w/]+\.py)::(\w+)`", page):
        assert name in defined_in(ROOT / path), f"{path} defines no {name}"
    missing = {name for name in re.findall(r"`(test_\w+|Test\w+)`", page) if name not in known_tests()}
    assert missing == set()


def test_every_row_of_the_threat_model_names_tests_that_exist() -> None:
    threats = [cells for cells in rows(text_of(Path("docs/threat-model.md"))) if len(cells) == 5 and cells[0] != "who"]
    assert len(threats) > 20
    for cells in threats:
        assert all(cells), cells
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", cells[4])
        assert named, f"no test shows it: {cells}"
        for path, name in named:
            assert name in defined_in(ROOT / path), f"{path} defines no {name}"


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    top = "udfs|streaming|tests|bench|conf|docs|checkpoints"
    paths = re.findall(rf"`((?:{top})/[\w./-]+\.(?:py|md|toml|json|properties|conf))(?:::\w+)?`", prose_of(page))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_contributing_names_every_package_and_the_layers_as_import_linter_holds_them() -> None:
    page = text_of(Path("CONTRIBUTING.md"))
    packages = [folder.parent.relative_to(ROOT) for folder in (ROOT / "streaming").glob("*/__init__.py")]
    assert [str(each) for each in packages if f"`{each}/`" not in page] == []
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = [each["layers"] for each in linter["contracts"] if each["name"] == "inside the shell"]
    assert "\n".join(layers) in page


def said_commands(page: Path) -> Iterator[str]:
    """What a page tells its readers to type after `ledger-reaper `, a line of code or a piece of one each."""
    text = text_of(page)
    code = [line for block in _FENCE.findall(text) for line in block.splitlines()]
    code += [each.strip("`") for each in _CODE.findall(_FENCE.sub("", text))]
    for line in code:
        for said in re.findall(r"(?<! /)ledger-reaper ((?:-|[a-z]+\b)[^|#;)]*)", line):
            yield said.strip()


@cache
def commands() -> Any:
    return program()


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_command_that_a_page_names_exists_with_these_options(page: Path) -> None:
    top = commands()
    unknown = []
    for said in said_commands(page):
        command = top
        for word in re.match(r"(?:[a-z-]+ ?)*", said)[0].split():  # type: ignore[index]
            if word.startswith("-") or not hasattr(command, "commands"):
                break
            command = command.commands.get(word)
            if command is None:
                unknown.append(said)
                break
        options = {name for each in getattr(command, "params", ()) for name in (*each.opts, *each.secondary_opts)}
        if command is not None:
            unknown += [said for each in re.findall(r"(?<![\w-])--[a-z][a-z-]*", said) if each not in options]
    assert unknown == []


def test_every_paper_that_the_code_names_is_there() -> None:
    paper = re.compile(r"\b((?:docs|checkpoints|bench)/[\w./-]*\w)")
    missing = set()
    for source in (path for top in ("udfs", "streaming", "tests", "conf") for path in (ROOT / top).rglob("*")):
        if source.suffix in (".py", ".toml", ".properties", ".conf"):
            missing |= {
                f"{source.relative_to(ROOT)}: {named}"
                for named in paper.findall(source.read_text(encoding="utf-8"))
                if named.endswith(".md") or named.startswith("docs/")
                if not (ROOT / named).exists() and not any(ROOT.glob(f"{named}-*.md"))
            }
    assert missing == set()


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_says_why_what_and_at_what_price(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    number = int(page.name[:4])
    assert text.startswith(f"# {number}. ")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Decision", "Price", "What would change it"]
    assert [
        part[:30] for part in re.split(r"^## ", text, flags=re.MULTILINE)[1:] if not part.partition("\n")[2].strip()
    ] == []


def test_decisions_are_numbered_without_a_gap_and_indexed_by_title() -> None:
    index = text_of(Path("docs/decisions/README.md"))
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    for page in DECISIONS:
        number, _, title = page.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ").partition(". ")
        assert f"{number}. [{title}]({page.name})" in index


_HOSTS = re.compile(r"github\.com|(?:[\w-]+\.)*example\.com|json-schema\.org|127\.0\.0\.1|localhost|a")


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_no_page_names_a_place_that_only_one_machine_has_or_a_package_registry(page: Path) -> None:
    text = text_of(page)
    assert re.findall(r"(?<!\w)/(?:work|home|root|Users)/\S+", text) == []
    assert [host for host in re.findall(r"https?://([\w.-]+)", text) if not _HOSTS.fullmatch(host)] == []


def _examples() -> Iterator[Any]:
    """The examples of tests/unit/udfs/requests/test_request_format.py that are JSON, each under its id there."""
    for function, place in (
        (test_request_format.test_requests_are_read, None),
        (test_request_format.test_a_payload_that_is_no_json_object_is_refused, None),
        (test_request_format.test_a_wrong_field_is_refused_by_name, None),
        (test_request_format.test_a_wrong_offload_context_is_refused, "offloadContext"),
        (test_request_format.test_a_wrong_snapshot_context_is_refused, "snapshotContext"),
    ):
        for case in vars(function)["pytestmark"][0].args[1]:
            value = case.values[0]
            if value is None or isinstance(value, bytes):
                try:
                    value = json.loads(value or b"", parse_constant=_refuse)
                except (ValueError, RecursionError):
                    continue
            base = test_request_format.SNAPSHOT if place == "snapshotContext" else test_request_format.OFFLOAD
            yield pytest.param(base | {place: value} if place else value, id=case.id)


def _refuse(name: str) -> None:
    raise ValueError(name)


# what docs/request-format.md lists under "What the schema can't say"
_BEYOND_A_SCHEMA = {
    "id has a fraction",
    "half has a fraction",
    "other topic's schema",
    "other tenant's schema",
    "with partition",
    "nameless topic",
    "a property appears twice",
    "key of another topic",
    "segment with hashes in the wrong order",
    "segment id of 64 bits",
}


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), f"a name appears twice among {[name for name, _value in pairs]}"
    return dict(pairs)


@cache
def schema() -> Draft202012Validator:
    document = json.loads((DOCS / "request.schema.json").read_text(encoding="utf-8"), object_pairs_hook=_named_once)
    Draft202012Validator.check_schema(document)
    return Draft202012Validator(document)


@pytest.mark.parametrize("value", list(_examples()))
def test_the_schema_says_of_a_request_what_the_reader_says(value: Any, request: pytest.FixtureRequest) -> None:
    is_read = isinstance(decode(test_request_format.payload(value)), PendingDelete)
    name = request.node.callspec.id
    if name in _BEYOND_A_SCHEMA:
        assert not is_read
        assert schema().is_valid(value)
    else:
        assert schema().is_valid(value) == is_read


@pytest.mark.parametrize("case", ["as documented", "no request"])
def test_the_schema_of_receipts_describes_what_is_published_and_what_is_documented(case: str) -> None:
    document = json.loads((DOCS / "receipt.schema.json").read_text(encoding="utf-8"), object_pairs_hook=_named_once)
    Draft202012Validator.check_schema(document)
    columns = {} if case == "as documented" else dict.fromkeys(("topic", "ledger_id", "component", "ledger_type"))
    published = json.loads(lane_receipt(test_lane_receipts.row(**columns))[1])
    Draft202012Validator(document).validate(published)
    assert list(published) == document["required"] == list(document["properties"])
    example = re.search(r"```json\n(.*?)```", (DOCS / "request-format.md").read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    documented = json.loads(example[1])
    Draft202012Validator(document).validate(documented)
    assert list(documented) == document["required"]
