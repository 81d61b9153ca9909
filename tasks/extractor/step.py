"""``extractor`` as a Prefect task."""

from tasks.extractor.extraction import run
from tasks.shared.prefect_task import step_task

extractor = step_task("extractor", run)
