"""``local_import`` as a Prefect task."""

from tasks.local_import.importer import run
from tasks.shared.prefect_task import step_task

local_import = step_task("local_import", run)
