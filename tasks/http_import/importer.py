"""Import from HTTP URLs (document 1, http_import; document 3 §8).

Before there is a job each URL is asked once, without downloading it: one ``HEAD``, and where that is refused, one
``GET`` of the first byte, which is closed after its head. A URL may be good for one use, and many a signed link is good
for GET alone. No byte of a body is read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from config import PipelineConfig
from tasks.shared.errors import InputError, SluiceError
from tasks.shared.files.data_directory import CORE, existing_file
from tasks.shared.http.answer import Answer, place
from tasks.shared.http.client import ServiceClient
from tasks.shared.http.download import Downloader
from tasks.shared.http.url_names import NamedUrl, base_of, named_urls
from tasks.shared.import_directory import IMPORT, ImportDirectory, consent_names_warning
from tasks.shared.report import StepReport
from tasks.shared.service import Service
from tasks.shared.step import StepContext
from tasks.shared.stop import Stop
from tasks.shared.work import for_each

SERVICE = Service("http_import")
"""Whatever the URLs name; no credentials go there."""

# As for the extraction step (document 3 §2); http_import has no key of its own for it.
_THREADS = 4

_REFUSED = frozenset({401, 403, 404, 410})
"""Answers that no later GET without credentials makes better."""

_HEAD_REFUSED: Final = frozenset({400, 403, 404, 405, 406, 501})
"""Answers to HEAD that say nothing about GET. A 401 or 410 is one to both, and what is busy is not asked twice."""

_WHOLE: Final = re.compile(r"bytes (?:\d{1,18}-\d{1,18}|\*)/(\d{1,19})\Z")
_LENGTH: Final = re.compile(r"\d{1,19}\Z", re.ASCII)

ClientFactory = Callable[[PipelineConfig, StepContext | None], ServiceClient]


def findings(
    config: PipelineConfig,
    url: str | None = None,
    *,
    job_dir: Path | None = None,
    sizes: dict[str, int] | None = None,
    client: ClientFactory | None = None,
) -> list[SluiceError]:
    """Return all errors that would stop the import of ``url`` or of the configured URLs.

    Nothing is asked about a file that a job in ``job_dir`` has already: its URL may have expired. Each other URL is
    asked about once; ``sizes`` gets the bytes that servers say, by URL.

    References: ``url-invalid``, ``url-credentials``, ``url-duplicate``, ``name-clash``, ``url-refused`` (the server
    says that there is nothing to have), and those of ``ServiceClient.peek`` for a host that cannot be reached, once
    per host.
    """
    urls = _urls(config, url)
    problems = _problems(urls)
    if problems:
        return problems
    silent: set[str] = set()
    with (client or _client)(config, None) as probing:
        for named in named_urls(urls):
            host = urlsplit(named.url).netloc.lower()
            if host in silent or (job_dir is not None and existing_file(job_dir / IMPORT, named.base) is not None):
                continue
            try:
                answer = _head_or_first_byte(probing, named.url)
            except SluiceError as error:
                silent.add(host)
                problems.append(error)
                continue
            if answer.status in _REFUSED:
                problems.append(_refused(named.url, answer.status))
            elif sizes is not None and (size := _size(answer)) is not None:
                sizes[named.url] = size
    return problems


def run(context: StepContext, *, client: ClientFactory | None = None) -> StepReport:
    """Download the URLs into ``import/``, compressed or plain as the configuration says, at most four at once.

    No credentials are sent; a redirect to another host is an error. Files that a run before this one finished are not
    fetched again. ``resources_in`` and ``resources_out`` count resources.

    Raises the findings about URLs, and what ``Downloader.fetch`` raises.
    """
    urls = _urls(context.config, context.given.input)
    for problem in _problems(urls):
        raise problem
    target = ImportDirectory(context)
    wanted = named_urls(urls)
    context.meter.expect(files=len(wanted))

    def announce(size: int) -> None:
        context.meter.expect(bytes=size)

    with (client or _client)(context.config, context) as service:
        downloader = Downloader(
            service,
            retry=context.config.retry,
            compression=context.config.compression,
            stop=context.stop,
            meter=context.meter,
            stall_timeout=context.config.services.http_import.stall_timeout.total_seconds(),
            largest=context.config.limits.largest_resource,
        )

        def one(download: NamedUrl, stop: Stop) -> None:
            done = target.finished(download.base)
            if done is not None:
                context.meter.add(files=1, bytes=done.bytes_in, resources=done.resources, earlier=True)
                return
            target.add(
                downloader.fetch(
                    download.url,
                    target.path,
                    download.base,
                    stop=stop,
                    allow_empty=False,
                    # Only one size is a total; of several files some have not begun.
                    on_size=announce if len(wanted) == 1 else None,
                    record=target.record,
                )
            )

        for_each(wanted, one, threads=_THREADS, stop=context.stop)
    return target.result(consent_names_warning(download.base for download in wanted))


def _client(config: PipelineConfig, context: StepContext | None) -> ServiceClient:
    return context.client(SERVICE) if context else SERVICE.client(config)


def _head_or_first_byte(client: ServiceClient, url: str) -> Answer:
    answer = client.peek("HEAD", url)
    return client.peek("GET", url, headers={"Range": "bytes=0-0"}) if answer.status in _HEAD_REFUSED else answer


def _size(answer: Answer) -> int | None:
    """Return the size of the file in bytes if the server gives one."""
    if answer.status in (206, 416):
        whole = _WHOLE.match(answer.headers.get("content-range", ""))
        return int(whole[1]) if whole else None
    length = answer.headers.get("content-length", "")
    return int(length) if answer.status == 200 and _LENGTH.match(length) else None


def _refused(url: str, status: int) -> InputError:
    return InputError(
        "url-refused",
        f"the server answers {status} for this URL",
        context=place(url),
        hint="check the address; http_import sends no credentials",
    )


def _urls(config: PipelineConfig, url: str | None) -> tuple[str, ...]:
    urls = (url,) if url is not None else tuple(config.services.http_import.urls)
    if not urls:
        raise no_url()
    return urls


def no_url() -> InputError:
    """There is nothing to import."""
    return InputError(
        "input-missing",
        "http_import has no URL",
        context="services.http_import.urls",
        hint="set it, or give the URL as INPUT",
    )


def _problems(urls: Sequence[str]) -> list[SluiceError]:
    problems: list[SluiceError] = []
    for url in urls:
        try:
            parts = urlsplit(url)
            usable = parts.scheme.lower() in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            problems.append(
                InputError(
                    "url-invalid",
                    "not an HTTP URL with a host",
                    context=place(url),
                    hint="write it like https://host.example/path/Patient.ndjson",
                )
            )
        elif parts.username is not None or parts.password is not None:
            problems.append(
                InputError(
                    "url-credentials",
                    "the URL carries a user name or a password, and http_import sends none",
                    context=place(url),
                    hint="use a URL that needs no login, or the extractor step, which has an auth block",
                )
            )
    for url, count in Counter(urls).items():
        if count > 1:
            problems.append(
                InputError(
                    "url-duplicate",
                    f"the same URL is listed {count} times; its data would be imported as often",
                    context=place(url),
                    hint="list it once",
                )
            )
    cores = [url for url in dict.fromkeys(urls) if base_of(url).casefold() == CORE]
    if len(cores) > 1:
        problems.append(
            InputError(
                "name-clash",
                f"{len(cores)} URLs give a core file, and only one can come before all others",
                context="\n  ".join(map(place, cores)),
                hint="import them in separate jobs",
            )
        )
    return problems
