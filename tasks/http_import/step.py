"""``http_import`` as a Prefect task."""

from tasks.http_import.importer import run
from tasks.shared.prefect_task import step_task

http_import = step_task("http_import", run)
