"""The embedded Prefect server of a jobs directory: start, proof, lingering, end.

``4-product.md`` §6. One process serves a jobs directory. All that it keeps is in ``HOME``, which is
``jobs_dir/.prefect`` (0700, files 0600). The rules, and the modules that carry them out:

- **Start** (``start.py``, ``database.py``). The first command that needs the server starts it, under ``start.lock``, on
  a free port of 127.0.0.1. It passes on a listening socket and ``server.lock``, locked: the server is alive at once,
  and requests wait in the queue of the socket. A new database is a copy of a migrated one; a damaged one, or one of a
  newer Prefect, is refused before the server opens it.
- **Proof** (``proof.py``, ``watch.py``, ``auth.py``). ``server.json`` names the address, but is not trusted: the lock
  on ``server.lock`` shows that the server lives, and a keyed hash over a random challenge proves that it has
  ``api-secret``, which is never sent before. The server answers only requests with the secret, with its name as
  ``Host``, and with no other ``Origin`` than its own.
- **Release reports** (``auth.py``). Next to the UI, it serves the release reports of its jobs directory to
  requests with the secret.
- **Lingering** (``child.py``). Each user holds a shared lock on ``clients.lock``, which the kernel releases however the
  user ends. When the last one is gone, the server stays for the seconds that a user asked for, or until
  ``server stop`` where ``server start`` keeps it (``background.py``).
- **End** (``child.py``, ``watch.py``). The server withdraws ``server.json`` and ends while it holds ``clients.lock``
  alone, so that a newcomer waits and starts another one. It ends at once when its directory is removed. A command whose
  server ends under it stops within a second, with exit code 3, and ``continue`` starts another server.
"""
