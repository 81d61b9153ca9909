"""The configuration file of a running sandbox, complete for ``pipeline start``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from deployments.sandbox.credentials import API_KEY, PASSWORD, TOKEN, USERNAME, Credentials
from deployments.sandbox.data import ANONYMIZATION_RULES, DATA, DEMO_CRTDL, DEMO_LOOKUP

STEPS: Final = ("extractor", "validation", "pseudonymizer", "flattening", "wait", "send")
"""Steps that use every service. ``demo`` runs the same steps."""


def configuration(urls: Mapping[str, str], data: Path, jobs: Path, credentials: Credentials) -> str:
    """Return the text of the file. Credentials are written as references to the variables they came from."""
    template = (DATA / "sandbox.yaml.template").read_text(encoding="utf-8")
    paths = {"data": data, "jobs": jobs, "rules": ANONYMIZATION_RULES, "lookup": DEMO_LOOKUP}
    values = {name: _text(str(value)) for name, value in (*urls.items(), *paths.items())}
    return template.format_map(values | {"crtdl": DEMO_CRTDL, "steps": ", ".join(STEPS), "auth": _auth(credentials)})


def _auth(credentials: Credentials) -> str:
    if credentials.username is not None:
        keys = {"username": f"${{{USERNAME}}}", "password": f"${{{PASSWORD}}}"}
    elif credentials.token is not None:
        keys = {"api_key": f'"Bearer ${{{TOKEN}}}"', "api_key_header": "Authorization"}
    elif credentials.api_key is not None:
        keys = {"api_key": f'"${{{API_KEY}}}"'}
    else:
        return ""
    comment = "    # The sandbox was started with these variables; set them for the pipeline, too.\n    auth:\n"
    return comment + "".join(f"      {key}: {value}\n" for key, value in keys.items())


def _text(value: str) -> str:
    """Return a YAML string that is not expanded: JSON is YAML, and ``$${`` stands for ``${``."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${")
