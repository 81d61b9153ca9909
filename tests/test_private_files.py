"""No code of ours opens a file below ``jobs_dir`` in a way that follows a link (4-product.md §4)."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.sources import syntax_tree

ROOT = Path(__file__).parents[1]

ELSEWHERE = {
    "flows/commands/complete.py": "the configuration, and a schema of ours",
    "flows/demo.py": "the lock of the demo's own directory",
    "flows/engine/api_address.py": "Prefect's profiles",
    "flows/engine/flow_runs.py": "Prefect's own sources",
    "flows/engine/server/database.py": "Prefect's own sources",
    "flows/job/inputs.py": "the CRTDL that is given",
    "flows/job/running/lock.py": "/proc",
    "flows/gate/release_facts.py": "the list of patients that is given",
    "flows/output.py": "/dev/null",
    "flows/reports/schemas.py": "the docs' schemas",
    "tasks/extractor/query.py": "the list of patients that is given",
    "tasks/flattening/lookup_model.py": "a table of ours",
    "tasks/pseudonymizer/rules.py": "the anonymization file that is given",
    "tasks/release_report/measure/kinds.py": "a table of ours",
    "tasks/release_report/report/step_files.py": "the anonymization file that is given",
    "tasks/release_report/page/words.py": "a table of ours",
    "tasks/shared/fhir/r4.py": "a table of ours",
    "tasks/shared/files/named_file.py": "what the configuration or the command line names, and the job's CRTDL",
    "tasks/shared/files/out_file.py": "a directory, to sync it; files are opened with O_NOFOLLOW",
}
"""Who opens a file without the helpers, and which one: nothing below the jobs directory that decides or is sent."""

HELPERS = {"tasks/shared/files/private_file.py"}


def test_who_opens_a_file_in_a_way_that_follows_links_is_named_with_what_it_opens() -> None:
    found = {
        module.relative_to(ROOT).as_posix()
        for package in ("flows", "tasks")
        for module in (ROOT / package).rglob("*.py")
        if any(_opens(syntax_tree(module)))
    }
    assert found - HELPERS == set(ELSEWHERE)


def _opens(tree: ast.AST) -> Iterator[bool]:
    """Yield True for each call that opens a file by name, or by an ``os.open`` that follows links."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        text = ast.unparse(call)
        match call.func:
            case ast.Name("open") | ast.Attribute(attr="read_text" | "read_bytes" | "write_text" | "write_bytes"):
                yield True
            case ast.Attribute(ast.Name("os"), "open"):
                if "NOFOLLOW" not in text and "_FLAGS" not in text and "_OPEN" not in text and "flags" not in text:
                    yield True
            case ast.Attribute(attr="open"):
                first = call.args[0] if call.args else None
                if isinstance(first, ast.Constant) or any(
                    one.arg in {"encoding", "buffering"} for one in call.keywords
                ):
                    yield True
