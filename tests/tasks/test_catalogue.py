"""The catalogue of steps (document 1, "pipeline")."""

import subprocess
import sys

import pytest

from config import CRTDL_STEPS, IMPORT_STEPS, StepName
from tasks import CATALOGUE
from tests.conftest import ROOT


def test_it_has_exactly_the_steps_of_document_1():
    assert set(CATALOGUE) == {str(name) for name in StepName}


def test_it_agrees_with_the_configuration_about_imports_and_crtdl():
    assert {name for name, step in CATALOGUE.items() if step.is_import} == {str(name) for name in IMPORT_STEPS}
    assert {name for name, step in CATALOGUE.items() if step.requires_crtdl} == {str(name) for name in CRTDL_STEPS}


def test_importing_it_imports_no_step_and_no_prefect():
    code = "import sys, tasks; print([m for m in sys.modules if m.startswith(('prefect', 'tasks.'))])"
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_step_has_a_prefect_task_of_its_name(name):
    assert CATALOGUE[name].load().name == name
