"""One step of a job on several processes or workers (``6-scale-out.md``).

The parent is the run of the job: ``parent.py``. It divides the files of a step (``tasks/shared/shards.py``) and starts
a child for each shard: a process of this machine, or a run of a deployment (``children.py``). A child (``child.py``)
runs the step's function on its files, under a lock of its own, and ends with a receipt. Parent and child exchange the
files of ``files.py``, which are below ``.results/<position>/<shard>/``; a child never writes the job's record.
"""
