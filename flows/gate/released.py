"""What a ``wait`` has released stays as it was approved until the last step that reads it is complete.

``4-product.md`` §2: "An approval is for what was seen. If files changed since … the job waits once more and says so."
While the wait is not complete ``sight.py`` and ``Job.close_again`` ensure that; this is for the time after it.
"""

from __future__ import annotations

from flows.gate import rules
from flows.gate.sight import no_longer
from flows.job.job import Job
from flows.job.sources import Sources
from tasks.shared.errors import DataError


def waits_again(job: Job, position: int, sources: Sources) -> bool:
    """Whether the wait at ``position``, which is complete, has to be asked again: no step has read anything yet.

    Costs a look at each file, not its content, where nobody touched it.

    Raises:
        DataError: ``approved-files-changed``: files are not as they were approved, and a step has begun to read them.
        StorageError: something cannot be read.
        Stopped: somebody asked.
    """
    approval = job.approvals.get(position)
    if sources.newest is None or approval is None or not approval.files:
        return False  # decided under a version that kept no hashes
    job.look(position, sources.newest, sources)
    if job.sight is None:
        return False
    if not (why := no_longer(approval, job.sight, job.there)):
        # Also when a send has begun: the approval is for the destination that the report names, and for no other.
        why = rules.other_settings(job.shown.get(position), job.config) if sources.delivery(position) else ()
        if why:
            job.reopen(position, why)
        return bool(why)
    begun = [job.steps[at] for at in sources.readers(position) if job.steps[at].started is not None]
    if begun:
        place = job.sight.directory.name
        raise DataError(
            "approved-files-changed",
            f"files changed after they were approved at step {position}, and step {begun[0].position}, "
            f"{begun[0].name}, has begun with what was approved",
            context="\n  ".join(why),
            hint=f"put them back as they were, take what was added out of {place}/, and continue the job; or decide "
            f"anew: copy corrected files out of the job's directory, {job.run_again(position)} "
            f"(it removes {place}/ and what later steps wrote), and put them into {place}/ when the job waits",
        )
    job.reopen(position, why)
    return True
