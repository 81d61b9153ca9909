"""Detect whether a job is running, and which process runs it.

Rules (``4-product.md`` §4 and §6, ``docs/decisions/0032-two-signs-of-life.md``):

1. A process runs a job while it holds the job's lock: ``flock`` on ``.lock``, which the kernel releases when the
   process ends (``lock.py``). The file names the holder; it is empty after the lock was released.
2. Where several machines share a Prefect API, the holder also has a lease at that API (``lease.py``) and writes a
   heartbeat file (``proof.py``). It ends itself if both signs of life fail for a while.
3. Another machine takes over only after it has watched both signs, without a gap, for a whole lease (``proof.py``).
   Clocks of two machines are never compared.
4. Prefect's state of a run decides nothing alone. ``state.py`` combines it with the lock into the displayed state; a
   run that is recorded as running while its lock is free is ``interrupted``.
5. ``sweep.py`` corrects Prefect's state of such runs. It takes the lock first, so no run that begins is hit.
"""
