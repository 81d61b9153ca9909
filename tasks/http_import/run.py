"""Import from HTTP URLs (docs/steps.md). No credentials are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from config import PipelineConfig
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.file_work import Done, digest
from tasks.shared.files.data_directory import as_shown
from tasks.shared.http.answer import place
from tasks.shared.http.url_names import base_of, named_urls
from tasks.shared.import_directory import download_all, import_report, imported
from tasks.shared.report import StepReport
from tasks.shared.service import Service
from tasks.shared.step import CheckContext, StepContext

SERVICE: Final = Service("http_import")
"""The servers of all URLs."""

_THREADS: Final = 4
_REFUSED: Final = frozenset({401, 404, 410})
"""Statuses of HEAD that a GET without credentials would also get; others may be about HEAD alone."""


def run(context: StepContext) -> StepReport:
    """Download the URLs into ``import/``, at most four at once. A finished file is known by its URL, not by its name.

    Raises the findings about URLs, and what ``Downloader.fetch`` raises.
    """
    urls = urls_of(context.config, context.given.input)
    for problem in problems_of(urls):
        raise problem
    before, warnings = imported(context.job_dir), list[str]()
    wanted, kept = _named(urls, before), {digest(url) for url in urls}
    if gone := [done.file for done in before if done.identity not in kept]:
        warnings.append(f"removed, because their URLs are no longer in the list: {', '.join(as_shown(gone, most=5))}")
    stall = context.config.services.http_import.stall_timeout
    with context.client(SERVICE) as client:
        done = download_all(context, client, wanted, stall=stall, threads=_THREADS, warnings=warnings)
    return import_report(context, done, warnings)


def _named(urls: Sequence[str], before: Sequence[Done]) -> dict[str, str]:
    """Return URLs by the base names of their files. A finished file keeps its name, however the list has changed."""
    finished = {done.identity: done.file for done in before}
    wanted = {finished[digest(url)]: url for url in urls if digest(url) in finished}
    return wanted | named_urls([url for url in urls if digest(url) not in finished], taken=wanted)


def urls_of(config: PipelineConfig, url: str | None) -> tuple[str, ...]:
    """Return the URL that was given, or those of the configuration."""
    return (url,) if url is not None else tuple(config.services.http_import.urls)


def findings(context: CheckContext) -> Iterator[SluiceError]:
    """Yield all errors that would stop the import. Each URL that is not imported yet gets one ``HEAD``, without retry.
    After an error, other URLs of the same server get none. ``context.sizes`` gets the sizes that servers report.
    """
    urls = urls_of(context.config, context.given.input)
    problems = problems_of(urls)
    yield from problems
    if problems or not context.online:
        return
    done = {one.identity for one in imported(context.job_dir)}
    silent: set[str] = set()
    with SERVICE.client(context.config) as client:
        for url in urls:
            host = urlsplit(url).netloc
            if digest(url) in done or host in silent:
                continue
            try:
                answer = client.peek("HEAD", url)
            except SluiceError as error:
                silent.add(host)
                yield error
                continue
            if answer.status in _REFUSED:
                hint = "check the address; http_import sends no credentials"
                what = f"the server answers {answer.status} for this URL"
                yield InputError("url-refused", what, context=place(url), hint=hint)
            elif (length := answer.headers.get("content-length", "")).isdigit() and answer.status == 200:
                context.sizes[url] = int(length)


def problems_of(urls: Sequence[str]) -> list[SluiceError]:
    """Return the errors of the URLs that show without a request."""
    if not urls:
        hint = "set it, or give the URL as INPUT"
        what = "http_import has no URL"
        return [InputError("input-missing", what, context="services.http_import.urls", hint=hint)]
    found: list[SluiceError] = []
    for url, count in Counter(urls).items():
        if (problem := _problem(url)) is not None:
            found.append(problem)
        elif count > 1:
            what = f"the same URL is listed {count} times; its data would be imported as often"
            found.append(InputError("url-duplicate", what, context=place(url), hint="list it once"))
    cores = [url for url in dict.fromkeys(urls) if base_of(url).casefold() == "core"]
    if len(cores) > 1:
        what = f"{len(cores)} URLs give a core file, and only one can come before all others"
        hint = "import them in separate jobs"
        found.append(InputError("name-clash", what, context="\n  ".join(map(place, cores)), hint=hint))
    return found


def _problem(url: str) -> InputError | None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme.lower() in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        hint = "write it like https://host.example/path/Patient.ndjson"
        return InputError("url-invalid", "not an HTTP URL with a host", context=place(url), hint=hint)
    if parts.username is not None or parts.password is not None:
        hint = "use a URL that needs no login, or the extractor step, which has an auth block"
        what = "the URL carries a user name or a password, and http_import sends none"
        return InputError("url-credentials", what, context=place(url), hint=hint)
    return None
