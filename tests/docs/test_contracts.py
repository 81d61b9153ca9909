"""``docs/contracts.md`` and the code agree: every call, every service, every status that is treated on its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from config import describe_keys
from tasks.send.s3.refusal import BUSY_CODES, DAMAGED_CODES, FULL_CODES, REGION_CODES
from tests.docs.pages import read
from tests.docs.references import ROOT, references, syntax_tree

PAGE = read(ROOT / "docs/contracts.md")
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))
"""What stands between backticks."""

CLIENT = sorted((ROOT / "tasks").rglob("*.py"))


def constants(path: Path) -> dict[str, object]:
    """Return the module's own constants, by name."""
    found: dict[str, object] = {}
    for node in syntax_tree(path).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            found[target.id] = value.value
    return found


@cache
def calls() -> tuple[tuple[str, str, str], ...]:
    """Return every call to a service: where it is made, its method (empty: chosen while it runs) and its operation."""
    return tuple(_calls())


def _calls() -> Iterator[tuple[str, str, str]]:
    for path in [*CLIENT, *(ROOT / "flows").rglob("*.py")]:
        known = constants(path)
        for node in ast.walk(syntax_tree(path)):
            if not isinstance(node, ast.Call) or getattr(node.func, "attr", "") not in ("send", "_send", "stream"):
                continue
            operation = next((word.value for word in node.keywords if word.arg == "operation"), None)
            if operation is None or not node.args:
                continue
            method = node.args[0].value if isinstance(node.args[0], ast.Constant) else ""
            if isinstance(operation, ast.Constant):
                yield f"{path.name}:{node.lineno}", str(method), str(operation.value)
            elif isinstance(operation, ast.Name) and operation.id in known:
                yield f"{path.name}:{node.lineno}", str(method), str(known[operation.id])


def rows() -> list[tuple[str, str]]:
    """Return the first two cells of every row in a table of requests."""
    tables = re.findall(r"^\| Request \| Operation .*?\n\n", PAGE + "\n", re.MULTILINE | re.DOTALL)
    cells = [re.split(r"(?<!\\)\|", line) for table in tables for line in table.splitlines()[2:] if line]
    return [(cell[1].strip(), cell[2].strip()) for cell in cells]


def test_every_call_stands_on_the_page_with_its_method_and_its_operation() -> None:
    missing = [
        (where, method, operation)
        for where, method, operation in calls()
        if not any(
            re.search(rf"`{method}\b", request) for request, operations in rows() if f"`{operation}`" in operations
        )
    ]
    assert missing == []


def test_no_request_on_the_page_is_left_over() -> None:
    made = {operation for _, _, operation in calls()}
    # Chosen while it runs, or made in a way of their own.
    made |= {"download", "reach", "obtain token", "pause", "resume", "cancel", "delete", *s3_operations().values()}
    for _, operations in rows():
        assert set(re.findall(r"`([^`]+)`", operations)) <= made, operations


def s3_operations() -> dict[str, str]:
    """Return the S3 operations that are called, and what errors call them."""
    from tasks.send.s3.client import _OPERATIONS

    return _OPERATIONS


def test_every_s3_operation_stands_on_the_page() -> None:
    store = ast.walk(syntax_tree(ROOT / "tasks/send/s3/bucket.py"))
    names = {
        node.args[0].value
        for node in store
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in ("call", "call_once")
        and isinstance(node.args[0], ast.Constant)
    }
    called = {str(name).title().replace("_", "").replace("V2", "V2") for name in names}
    assert called == set(s3_operations())
    for name, operation in s3_operations().items():
        assert {name, operation} <= CODE


PATH = re.compile(r"/(fhir|\.well-known|protocol|validateResource|\$validate)\b[\w/$?=.-]*|\$[a-z]+(-[a-z]+)+")


def test_every_path_that_the_code_asks_for_stands_on_the_page() -> None:
    found: set[str] = set()
    for path in CLIENT:
        docstrings = {id(part.value) for part in ast.walk(syntax_tree(path)) if isinstance(part, ast.Expr)}
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                text = node.value
                if " " not in text:
                    found |= {match[0].rstrip("/") for match in PATH.finditer(text)}
    assert {"/fhir/$de-identify", "$extract-data", "/validateResource", "/fhir/metadata"} <= found
    for asked in found:
        assert asked in PAGE, asked


@pytest.mark.parametrize("kind", ["DocumentReference", "Binary", "Task"])
def test_every_resource_that_is_asked_for_stands_on_the_page(kind: str) -> None:
    assert re.search(rf"/fhir/{kind}\b", PAGE)


def test_every_url_of_the_configuration_has_a_section() -> None:
    urls = [info.key for info in describe_keys() if re.search(r"(url|urls|endpoint|uri)$", info.key)]
    assert len(urls) >= 9
    configured = {
        key: anchor
        for anchor, cell in re.findall(r"^\| \[[^\]]+\]\(#([\w-]+)\) \| ([^|]+) \|", PAGE, re.MULTILINE)
        for key in re.findall(r"`([^`]+)`", cell)
    }
    sections = {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.+)$", PAGE, re.MULTILINE)}
    for key in urls:
        if key.startswith("services.") and key != "services.extractor.oauth_issuer_uri":  # deprecated, as in auth
            assert configured.get(key) in sections, key


def test_every_section_says_where_it_is_configured_and_what_a_crash_repeats() -> None:
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE)[2:]:
        name = section.partition("\n")[0]
        assert "\nConfiguration: `" in section, name
        assert "fter a crash" in section or name == "OIDC provider", name


STATUSES = (
    "tasks/shared/http/answer.py",
    "tasks/shared/http/client.py",
    "tasks/shared/http/download.py",
    "tasks/extractor/results.py",
    "tasks/extractor/client.py",
    "tasks/extractor/polling.py",
    "tasks/extractor/submission.py",
    "tasks/pseudonymizer/client.py",
    "tasks/pseudonymizer/deidentification.py",
    "tasks/validation/client.py",
    "tasks/flattening/client.py",
    "tasks/http_import/importer.py",
    "tasks/send/verdict.py",
    "tasks/send/s3/refusal.py",
    "tasks/send/s3/bucket.py",
    "tasks/send/transfer/store.py",
)


def test_every_status_that_is_treated_on_its_own_is_named() -> None:
    found: set[int] = set()
    for name in STATUSES:
        for node in ast.walk(syntax_tree(ROOT / name)):
            parts: list[ast.expr] = []
            if isinstance(node, ast.Set | ast.Tuple):
                parts = list(node.elts)
            elif isinstance(node, ast.Compare):
                parts = [node.left, *node.comparators]
            elif isinstance(node, ast.Dict):
                parts = [key for key in node.keys if key is not None]
            elif isinstance(node, ast.MatchValue | ast.Assign | ast.AnnAssign):
                parts = [node.value] if node.value is not None else []
            found |= {
                part.value
                for part in parts
                if isinstance(part, ast.Constant) and type(part.value) is int and 100 <= part.value < 600
            }
    assert found >= {102, 202, 401, 404, 405, 409, 410, 412, 413, 416, 422, 429, 503, 507}
    classes = {100, 101, 103, 200, 300, 400, 500}  # bounds of ranges, and answers that httpx handles itself
    for status in found - classes:
        assert re.search(rf"\b{status}\b", PAGE), status


def test_of_every_kind_of_s3_code_one_is_named() -> None:
    for codes in (BUSY_CODES, DAMAGED_CODES, FULL_CODES, REGION_CODES):
        assert codes & CODE


@pytest.mark.slow
def test_every_reference_on_the_page_exists() -> None:
    words = {word for word in CODE if re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", word)}
    headers_and_states = {"transaction-response", "batch-response", "not-found", "x-api-key", "request-retry", "torch"}
    headers_and_states |= {"sluice-probe-patient"}
    assert len(words & references()) > 60
    assert sorted(words - references() - headers_and_states) == []


@pytest.mark.slow
def test_every_reference_of_an_answer_that_services_share_is_on_the_page() -> None:
    shared = {
        reference
        for name in ("answer", "client", "credentials", "download")
        for node in ast.walk(syntax_tree(ROOT / f"tasks/shared/http/{name}.py"))
        if isinstance(node, ast.Constant) and node.value in references()
        for reference in [str(node.value)]
    }
    ours = {"internal", "request-invalid", "url-invalid", "header-invalid", "auth-value", "file-changed"}  # no answers
    assert len(shared) > 30
    assert sorted(shared - CODE - ours) == []
