"""The catalogue of steps, and the declarations of each."""

import subprocess
import sys

from config import STEPS, PipelineConfig
from config.steps import IMPORTS, NEED_CRTDL
from tasks import declared
from tasks.shared.step import GivenInputs, Reads
from tests.conftest import ROOT


def loaded(code: str, *prefixes: str) -> list[str]:
    """Return the modules of these packages that are imported after ``code``."""
    code = f"import sys; {code}; print(*[m for m in sys.modules if m.startswith({prefixes})])"
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()


def test_it_has_the_steps_of_document_1_in_the_order_of_its_table():
    named = ["extractor", "local_import", "http_import", "pseudonymizer", "wait", "flattening", "send", "validation"]
    assert [name for name in STEPS if name in named] == named


def test_it_agrees_with_the_configuration_about_imports():
    config = PipelineConfig()
    imports = {name for name in STEPS if declared(name).reads(config) is Reads.NOTHING}
    assert imports == set(IMPORTS)
    assert {declared(name).output for name in imports} == {"import"}


def test_the_catalogue_agrees_with_the_configuration_about_the_crtdl_and_inputs():
    needing = {name: set(declared(name).needs(GivenInputs())) for name in STEPS}
    assert {name for name, needs in needing.items() if "crtdl" in needs} == set(NEED_CRTDL)
    for name, needs in needing.items():
        assert needs <= declared(name).takes.keys() <= vars(GivenInputs()).keys()


def test_importing_it_imports_no_step_and_no_prefect():
    assert loaded("import tasks", "prefect", "tasks.") == []


def test_what_steps_say_of_themselves_needs_no_prefect():
    assert (
        loaded("from config import STEPS; from tasks import declared; [declared(name) for name in STEPS]", "prefect")
        == []
    )


def test_a_step_that_comes_again_has_directories_of_its_own():
    steps = ["local_import", "validation", "wait", "validation", "send"]
    assert declared("validation").writes(steps, 2) == ("validation",)
    assert declared("validation").writes(steps, 4) == ("validation-4",)
    assert declared("send").writes(steps, 5) == ("send",)
