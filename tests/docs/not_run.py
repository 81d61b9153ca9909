"""The examples that no test runs, each with the reason. A new one without a reason fails ``test_every_example``."""

from __future__ import annotations

from tests.docs.pages import TESTS

NOT_RUN = {
    # page, beginning of the block: why
    ("README.md", "   extraction server"): "a picture",
    ("README.md", TESTS): ("it is what runs these tests: .ci/run holds it to the letter, and a test compares"),
    ("docs/development.md", "python3 -m venv fresh"): "installs from a package registry, and runs these tests",
    ("docs/development.md", "python3 tests/real/get.py"): (
        "downloads from package registries; a test of the page compares what the last line writes"
    ),
    ("docs/development.md", "debootstrap"): "downloads a Debian; the second line runs the tests that need it",
}

ELSEWHERE = {
    # page, beginning of the block: the test in another directory that runs it
    ("docs/deployment.md", "docker compose --file deployments/compose.yaml up"): "tests/deployments/containers/site.py",
    ("docs/deployment.md", "docker compose --file deployments/compose.yaml exec"): (
        "tests/deployments/containers/site.py"
    ),
    ("docs/deployment.md", "services:\n  worker:"): "tests/deployments/containers/site.py",
    ("docs/deployment.md", "useradd --system"): "tests/deployments/systemd/site.py",
    ("docs/deployment.md", "runuser --user postgres"): "tests/deployments/systemd/site.py",
    ("docs/deployment.md", "systemctl daemon-reload"): "tests/deployments/systemd/site.py",
    ("docs/deployment.md", "sluice pipeline start /etc/sluice"): "tests/deployments/systemd/site.py",
    ("docs/deployment.md", "python -m deployments.notify"): "tests/e2e/test_notifications.py",
    ("docs/prefect-ui.md", '{"run_input"'): "tests/flows/reports/test_wait_form.py",
    ("docs/deployment.md", "sluice job unfinished"): "tests/flows/job/test_prune.py",
}

GENERATED = {"docs/commands.md": "usage lines, generated from the commands; a test compares"}
"""Pages whose blocks are no examples."""

NOT_SPOKEN = {
    # A command between backticks: why no test runs it under this name.
    "sluice demo": "the README's example runs it as python -m flows.run demo",
}
